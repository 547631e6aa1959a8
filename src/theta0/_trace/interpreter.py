"""The one interpreter of a training step: handlers see each torch function, replace it, and note what they know.

Functions are watched, not modules, so that `F.linear`, `x @ w` and attention's projections count like `nn.Linear`, and
nothing is installed on the user's model. Scripted modules are invisible.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn, overrides
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from theta0._trace.functions import SPECS, Argument, Spec, argument
from theta0._trace.owners import Owners
from theta0._trace.source import Source, source_of_call

_overrides: Any = overrides  # torch declares no types for the stack of modes
_mode_stack, _pop_mode, _push_mode = (
    _overrides._get_current_function_mode_stack,
    _overrides._pop_mode,
    _overrides._push_mode,
)
PROCEED = object()  # a handler that replaces some functions returns it for the others
_PLAIN = frozenset((int, float, bool, str, type(None)))  # most arguments; whether one is a mapping takes longer to ask
_TRACING: ContextVar[bool] = ContextVar("theta0 traces a forward pass", default=False)


@dataclass(frozen=True, eq=False)
class Handler:
    """What a pass over a network looks for; each function is optional.

    Attributes:
        before: called before a function runs; may change `step.arguments`.
        replace: called in the function's place; returns its result, or `PROCEED`.
        after: called with the result; returns the note that travels with it, None for no note.
        join: makes the note of a result from the notes on the arguments where `after` gives none.
        makes_weights: whether functions inside parametrizations are shown too.
    """

    before: Callable[["Step"], None] | None = None
    replace: Callable[["Step"], Any] | None = None
    after: Callable[["Step", Any], Any] | None = None
    join: Callable[[Sequence[Any]], Any] | None = None
    makes_weights: bool = False


@dataclass(eq=False, slots=True)
class Step:  # not frozen: one is made for every function, and freezing costs more than the rest of it
    """One torch function that runs.

    `spec` is None for a function that is not in the table, `number` its place in the pass, `tensors` are those among
    the arguments, each once; `attention` is the attention call inside which it runs, if any; `memory` is what a handler
    keeps from before the function for after it.
    """

    function: Callable[..., Any]
    spec: Spec | None
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    number: int
    tensors: tuple[Tensor, ...]
    interpreter: "Interpreter"
    attention: "Step | None" = None
    memory: Any = None

    def argument(self, place: Argument | None) -> Any:
        """An argument given by position or keyword; None where it was not given."""
        return argument(place, self.arguments, self.options)

    def note(self, tensor: Any, handler: Handler) -> Any:
        """What a handler noted of a tensor; None if nothing."""
        return self.interpreter.note_of(tensor, handler)

    def notes(self, handler: Handler) -> list[tuple[Tensor, Any]]:
        """The arguments of which a handler noted something, with what it noted."""
        note_of, found = self.interpreter.note_of, []
        for tensor in self.tensors:
            note = note_of(tensor, handler)
            if note is not None:
                found.append((tensor, note))
        return found

    @property
    def path(self) -> str:
        """The path of the module that runs; "" for the model itself."""
        return self.interpreter.owners.running[0] if self.interpreter.owners is not None else ""

    @property
    def place(self) -> str:
        """The module that runs, with its type, for messages."""
        path, module = self.interpreter.owners.running if self.interpreter.owners is not None else ("", None)
        return f"{path} ({type(module).__name__})" if path else "the model's forward"

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return str(getattr(self.function, "__name__", self.function))

    def source(self) -> Source | None:
        """The line of the user's program that called the function."""
        return source_of_call()


class Interpreter(TorchFunctionMode):  # a class because torch's interception point is one
    """Runs every torch function of a pass through handlers, and keeps their notes on tensors."""

    def __init__(self, handlers: Sequence[Handler], owners: Owners | None = None) -> None:
        super().__init__()
        self.handlers, self.owners = tuple(handlers), owners
        self.count = 0
        self.attention: Step | None = None
        self._notes: dict[int, tuple[weakref.ref[Tensor], dict[Handler, Any]]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        spec = SPECS.get(func)
        options = dict(kwargs) if kwargs else {}
        making = self.owners is not None and self.owners.making
        handlers = [h for h in self.handlers if h.makes_weights] if making else self.handlers
        if not handlers or (spec is not None and spec.role == "query"):
            return func(*args, **options)
        if spec is None and getattr(func, "__name__", "") == "__get__":
            value = func(*args, **options)  # shape, dtype, grad_fn …
            if not isinstance(value, Tensor):
                return value
        step = Step(func, spec, args, options, self.count, tensors_in(args, options), self, self.attention)
        self.count += 1
        return self._run(step, handlers)

    def _run(self, step: Step, handlers: Sequence[Handler]) -> Any:
        for handler in handlers:
            if handler.before is not None:
                handler.before(step)
        result = PROCEED
        for handler in handlers:
            if handler.replace is not None and result is PROCEED:
                result = handler.replace(step)
        if result is PROCEED:
            result = self.proceed(step)
        changed = step.arguments[:1] if result is None else (result,)  # assignments to a slice return nothing
        results = tensors_in(changed, {})
        for handler in handlers:
            self._annotate(step, result, results, handler)
        return result

    def proceed(self, step: Step) -> Any:
        """Run the function itself; attention, one opaque call, so that its projections are seen."""
        if step.function is F.multi_head_attention_forward:
            return self._attend(step)
        return step.function(*step.arguments, **step.options)

    def _attend(self, step: Step) -> Any:
        """Attention's projections go through the module global `F.linear`, which is interpreted meanwhile."""
        original = F.linear

        def interpreted(*arguments: Any, **options: Any) -> Any:
            F.linear = original  # handlers may use it
            try:
                return self.__torch_function__(original, (), arguments, options)
            finally:
                F.linear = interpreted

        F.linear, outer, self.attention = interpreted, self.attention, step
        try:
            return step.function(*step.arguments, **step.options)
        finally:
            F.linear, self.attention = original, outer

    def _annotate(self, step: Step, result: Any, results: Sequence[Tensor], handler: Handler) -> None:
        note = handler.after(step, result) if handler.after is not None else None
        if note is None and handler.join is not None:
            known = [found for _, found in step.notes(handler)]
            note = handler.join(known) if known else None
        for tensor in results:
            self.annotate(tensor, handler, note)

    def annotate(self, tensor: Tensor, handler: Handler, note: Any) -> None:
        """Note something of a tensor, in the place of what the handler noted before; None for nothing."""
        entry = self._notes.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            entry[1].pop(handler, None)
            if note is not None:
                entry[1][handler] = note
        elif note is not None:
            self._notes[id(tensor)] = (weakref.ref(tensor), {handler: note})

    def forget_dead(self) -> None:
        """Drop the notes on tensors that are gone, as a pass of unknown length has to."""
        self._notes = {key: entry for key, entry in self._notes.items() if entry[0]() is not None}

    @property
    def active(self) -> bool:
        """Whether functions that are called now come here: not inside a function that runs, nor where suspended."""
        return self in _mode_stack()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within the block functions run as if this interpreter were not there; modes of the user's stay."""
        stack = _mode_stack()
        above = stack[stack.index(self) + 1 :]
        for _ in (self, *above):
            _pop_mode()
        for mode in above:
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in above:
                _pop_mode()
            for mode in (self, *above):
                _push_mode(mode)

    def note_of(self, tensor: Any, handler: Handler) -> Any:
        """What a handler noted of a tensor; None if nothing."""
        entry = self._notes.get(id(tensor))
        return entry[1].get(handler) if entry is not None and entry[0]() is tensor else None


def tensors_in(arguments: Sequence[Any], options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The tensors among arguments, inside lists, tuples and mappings too, each once, in order."""
    found: dict[int, Tensor] = {}
    _gather(arguments, found)
    if options:
        _gather(options.values(), found)
    return tuple(found.values())


def _gather(values: Iterable[Any], found: dict[int, Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            found[id(value)] = value
        elif isinstance(value, (list, tuple)):
            _gather(value, found)
        elif type(value) not in _PLAIN and isinstance(value, Mapping):
            _gather(value.values(), found)


@contextmanager
def trace(model: nn.Module, *handlers: Handler) -> Iterator[Interpreter]:
    """Within the block, every torch function that runs is shown to the handlers, in the model and in its loss.

    Compiled submodules run eagerly meanwhile, since a compiled region is opaque; checkpointed parts keep what they
    compute, since a backward pass would compute it again without the handlers. Only the model's own weights have
    owners; all handlers see the same pass.
    """
    owners = Owners(model)
    with ExitStack() as stack:
        for handle in (
            module_hooks.register_module_forward_pre_hook(owners.enter),
            module_hooks.register_module_forward_hook(owners.leave, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(warnings.catch_warnings())  # torch warns of a second firing, which `Owners` allows for
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)
        stack.enter_context(eager())
        stack.enter_context(without_checkpoints())
        stack.callback(_TRACING.reset, _TRACING.set(True))
        yield stack.enter_context(Interpreter(handlers, owners))


def eager() -> AbstractContextManager[object]:
    """Within the block compiled regions run eagerly.

    Where the compiler is not loaded nothing has been compiled, and a look at a model does not wait seconds for it.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def tracing() -> bool:
    """Whether a pass is being traced: a layer then applies its weight to its input and takes no short cut."""
    return _TRACING.get()


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Within the block checkpointed parts run as they are."""

    class Plain:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *arguments: Any) -> Any:
            return function(*arguments)

    def once(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield nullcontext()

    instead = {"CheckpointFunction": Plain, "_checkpoint_without_reentrant_generator": once}
    found = {name: getattr(checkpoint, name) for name in instead if hasattr(checkpoint, name)}
    try:
        for name in found:
            setattr(checkpoint, name, instead[name])
        yield
    finally:
        for name, original in found.items():
            setattr(checkpoint, name, original)


def _no_dropout(step: Step) -> Any:
    if step.spec is None:
        return PROCEED
    if step.spec.role == "dropout":
        return step.argument(step.spec.input)
    if step.function is F.scaled_dot_product_attention:
        arguments = (*step.arguments[:4], 0.0, *step.arguments[5:]) if len(step.arguments) > 4 else step.arguments
        return step.function(*arguments, **{key: v for key, v in step.options.items() if key != "dropout_p"})
    return PROCEED


DROPOUT_OFF = Handler(replace=_no_dropout)


def no_dropout() -> Interpreter:
    """A context in which functional dropout and attention's own are off."""
    return Interpreter([DROPOUT_OFF])
