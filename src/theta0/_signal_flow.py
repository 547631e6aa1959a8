"""Follow what depends on a model's input through its forward pass, function by function; refuse what is not known."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint, weak
from torch.utils._pytree import tree_flatten, tree_map

from theta0._function_roles import ROLES, Role
from theta0._models import main_output, outputs_of, unwrapped


@dataclass(frozen=True, eq=False)
class Step:
    """One function applied to the signal.

    Attributes:
        function: what is called.
        role: what it does.
        arguments: positional arguments, as given.
        options: keyword arguments, as given.
        signals: the tensors among them that depend on the input, and what has been noted of each.
        path: the path of the module that runs; "" for the model itself.
        place: the same with its kind, for messages.
    """

    function: Callable[..., Any]
    role: Role
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    signals: tuple[tuple[Tensor, Any], ...]
    path: str
    place: str

    def carries(self, value: Any) -> bool:
        """Whether an argument depends on the input.

        Returns:
            True for a signal.
        """
        return isinstance(value, Tensor) and any(value is signal for signal, _ in self.signals)


Rule = Callable[[Step], tuple[Any, Any]]


class _Flow(TorchFunctionMode):  # a class because torch's interception point is one
    def __init__(self, model: nn.Module, rule: Rule) -> None:
        super().__init__()
        self.paths = {module: path for path, module in model.named_modules()}
        self.rule = rule
        self.running: list[nn.Module] = []
        self.notes: Any = weak.WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        tensors = {id(leaf): leaf for leaf in tree_flatten((args, options))[0] if isinstance(leaf, Tensor)}
        signals = tuple((tensor, self.notes[tensor]) for tensor in tensors.values() if tensor in self.notes)
        role = ROLES.get(func)
        if not signals or role == "read":
            return func(*args, **options)
        if role is None and getattr(func, "__name__", "") == "__get__":
            read = func(*args, **options)  # shape, dtype, grad_fn …
            if not isinstance(read, Tensor):
                return read
        path, place = self.place()
        if role is None:
            refuse(func, place, "expected a function that is known")
        result, note = self.rule(Step(func, role, args, options, signals, path, place))
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, Tensor):
                self.notes[leaf] = note
        return result

    def place(self) -> tuple[str, str]:
        path = self.paths.get(self.running[-1], "") if self.running else ""
        return path, f"{path} ({type(self.running[-1]).__name__})" if path else "the model's forward"

    def enter(self, module: nn.Module, inputs: Any) -> None:
        self.running.append(module)

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module in self.running:
            while self.running.pop() is not module:
                pass


def flow(model: nn.Module, inputs: Any, rule: Rule, note: Any = None) -> tuple[Tensor, Any]:
    """Run a model in evaluation mode, with a rule in place of every function that the inputs reach.

    What does not depend on the inputs (weights, constants) is computed as written. Modes are put back.

    Args:
        model: the model.
        inputs: its inputs; their floating tensors start the signal.
        rule: `step -> (result, note)`; the note travels with the result.
        note: what the inputs start with.

    Returns:
        The main output as the rules made it, and its note.

    Raises:
        ValueError: the inputs reach a function whose role is not known, or do not reach the output.
    """
    model = unwrapped(model)
    mode = _Flow(model, rule)
    inputs = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
    for leaf in tree_flatten(inputs)[0]:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            mode.notes[leaf] = note
    with _running(model, mode):
        output = main_output(_called(model, inputs))
    if output is None or output not in mode.notes:
        raise ValueError(
            "model: expected an output that the inputs reach by torch functions, got one that they do not; token "
            "inputs, scripted modules and numpy inside forward cannot be followed"
        )
    return output, mode.notes[output]


def ones_for(model: nn.Module, example: Any) -> Any:
    """One sample of ones in the form of an example, or as wide as the first linear layer where there is none.

    Args:
        model: gives the width where there is no example.
        example: a batch of inputs, or None.

    Returns:
        Inputs with a batch axis of length 1.

    Raises:
        ValueError: an example is needed, or has nothing that could be one.
    """
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtype = next(iter(kinds)) if len(kinds) == 1 else None
    if example is not None:
        leaves = tree_flatten(example)[0]
        if not leaves or not all(
            isinstance(t, Tensor) and t.is_floating_point() and t.dim() and len(t) for t in leaves
        ):
            raise ValueError(
                "example: expected a batch of floating inputs as the model takes them, got none; "
                "paths begin at real-valued inputs, so tokens cannot be followed"
            )
        return tree_map(lambda leaf: torch.ones_like(leaf[:1], dtype=dtype or leaf.dtype), example)
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding))]
    if not layers or not isinstance(layers[0], nn.Linear) or is_lazy(layers[0].weight):
        first = type(layers[0]).__name__ if layers else "no linear layer"
        raise ValueError(
            f"example: expected a batch of inputs, got None for a model that begins with {first}; the sizes of its "
            "inputs are not in its weights: pass some inputs as example"
        )
    return layers[0].weight.new_ones(1, layers[0].in_features)


def _called(model: nn.Module, inputs: Any) -> Any:
    try:
        return outputs_of(model, inputs)
    except ValueError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        raise ValueError(
            f"the model's forward, on a sample of ones: expected a result, got {reason}; pass inputs that it takes as "
            "example"
        ) from error


def refuse(function: Any, place: str, reason: str) -> NoReturn:
    """Say which function of which module cannot be followed.

    Raises:
        ValueError: always.
    """
    name = getattr(function, "__name__", str(function))
    raise ValueError(
        f"{place}: {reason}, got {name}; what can be followed are linear maps, convolutions, sums, joins, pooling, "
        "batch normalisation in evaluation form and elementwise nonlinearities: measure the part without it"
    )


@contextmanager
def _running(model: nn.Module, mode: _Flow) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    with ExitStack() as stack:
        for hook in (
            module_hooks.register_module_forward_pre_hook(mode.enter),
            module_hooks.register_module_forward_hook(mode.leave, always_call=True),
        ):
            stack.callback(hook.remove)
        stack.enter_context(warnings.catch_warnings())  # torch warns of a second firing, which `leave` bears
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)
        try:
            for module, _ in modes:
                module.training = False
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(_kept_in_memory())
            stack.enter_context(mode)
            yield
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def _kept_in_memory() -> Iterator[None]:
    """Within the block checkpointed parts run as they are: a backward pass would recompute them without the rules."""

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
