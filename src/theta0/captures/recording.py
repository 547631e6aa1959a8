"""Watching a script train: its outermost module calls, what it does with their outputs, and backward passes."""

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from theta0._models import graph_nodes, unwrapped
from theta0._ranks import exchanges_gradients
from theta0._state import snapshot
from theta0._trace.interpreter import PROCEED, Handler, Interpreter, Step, tensors_in
from theta0._trace.source import source_of_caller
from theta0.captures.entries import (
    Entry,
    Use,
    closure,
    drawn_since,
    own_loss_place,
    random_states,
    surroundings,
)
from theta0.captures.passes import Pass, Recording
from theta0.captures.stepping import after_step, alive, before_step, norms_of
from theta0.captures.stored_data import changes
from theta0.captures.tape import differentiated, leaves_of, mapped
from theta0.measurements.unloaded_weights import not_loaded

_BACKWARD = (Tensor.backward, torch.autograd.backward)
_VIEWS = ("T", "mT", "H", "mH", "real", "imag")  # attributes that are functions of the tensor
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_DATA = Tensor.data.__get__  # type: ignore[attr-defined] # of what a call made; of a parameter it writes to that
_ASKED_FOR = (Tensor.requires_grad_, Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


@contextmanager
def recorded(wanted: int, budget: float | None = None, skip: int = 0, loop: int = 1) -> Iterator[Recording]:
    """Within the block training is recorded; `Stop` leaves it when enough was seen.

    Args:
        wanted: how many backward passes of each kind.
        budget: seconds after which it stops; None for no limit.
        skip: optimizer steps that are passed over first.
        loop: which training loop, from 1; another one begins with the first step of an optimizer made during the last.

    Yields:
        The recording.
    """
    found = Recording(wanted, time.monotonic() + (budget if budget is not None else 1e9), skip=skip, loop=loop)
    found.earlier = weakref.WeakSet(alive((torch.optim.Optimizer,)))
    handler = Handler(
        before=lambda step: _before(found, step),
        replace=lambda step: _backward(found, step) if step.function in _BACKWARD else PROCEED,
        after=lambda step, result: _after(found, step, result),
    )
    found.handler, found.interpreter = handler, Interpreter([handler])
    os.register_at_fork(after_in_child=lambda: setattr(found, "interpreter", None))  # a data loader's worker
    with torch.compiler.set_stance("force_eager"), _intercepted(found), found.interpreter:
        yield found


@contextmanager
def _intercepted(found: Recording) -> Iterator[None]:
    """Within the block module calls, functions of the user's own and optimizer steps are shown to the recording."""
    call, apply = nn.Module.__call__, torch.autograd.Function.__dict__["apply"]
    load = nn.Module.load_state_dict

    def loaded(module: nn.Module, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        result = load(module, state_dict, strict=strict, assign=assign)
        if not strict and isinstance(state_dict, Mapping):
            missed = not_loaded(
                module, state_dict, result.missing_keys, result.unexpected_keys, str(source_of_caller() or "")
            )
            found.not_loaded += [] if missed is None else [missed]
        return result

    def called(module: nn.Module, *arguments: Any, **options: Any) -> Any:
        if not _outermost(found) or not _trains(module):
            return call(module, *arguments, **options)
        if _is_being_made(module, sys._getframe(1)):
            with found.interpreter.suspended():  # type: ignore[union-attr]
                return call(module, *arguments, **options)
        return _call(found, module, call, arguments, options)

    def applied(cls: Any, *arguments: Any, **options: Any) -> Any:
        if not _outermost(found):
            return apply.__func__(cls, *arguments, **options)
        return _apply(found, cls, apply.__func__, arguments, options)

    hooks = (
        register_optimizer_step_pre_hook(lambda optimizer, *_: before_step(found, optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: after_step(found, optimizer)),
    )
    nn.Module.__call__ = called  # type: ignore[method-assign]
    nn.Module.load_state_dict = loaded  # type: ignore[assignment, method-assign]
    torch.autograd.Function.apply = classmethod(applied)  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.__call__ = call  # type: ignore[method-assign]
        nn.Module.load_state_dict = load  # type: ignore[method-assign]
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()


def _outermost(found: Recording) -> bool:
    """Whether the script itself runs, and no module, function or backward pass."""
    return found.interpreter is not None and found.interpreter.active


def _is_being_made(module: nn.Module, caller: FrameType) -> bool:
    """Whether a module calls itself in its constructor, as a parametrization does; its state is not yet what trains."""
    return caller.f_code.co_name == "__init__" and caller.f_locals.get("self") is module


def _trains(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())


def _call(
    found: Recording, module: nn.Module, call: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Run a module's call, unseen inside, and note on its outputs where they come from."""
    found.check()
    assert found.interpreter is not None
    with found.interpreter.suspended():
        found.interpreter.forget_dead()
        found.constants.forget_dead()
        inner = unwrapped(module)
        _remember(found, inner)
        found.calls += 1
        found.exchanging = exchanges_gradients(module)
        bound = _bound(found, (arguments, options))
        states, before = random_states(), _trained_weights(found, inner)
        outputs = call(module, *arguments, **options)
        entry = _entry(found, inner, None, bound, surroundings(drawn_since(states), before))
        _note(found, entry, outputs)
    entry.own_loss, entry.single = own_loss_place(outputs), isinstance(outputs, Tensor)
    entry.calls = frozenset({entry, *entry.calls})
    found.live.append(entry)
    return outputs


def _remember(found: Recording, module: nn.Module) -> None:
    """Take the state of a module that is called for the first time, and look whose it is."""
    if id(module) in found.covered:
        return
    found.restores[id(module)] = snapshot(module)
    found.covered |= {id(part) for part in module.modules()} | {id(p) for p in module.parameters()}
    find_owners(found)


def find_owners(found: Recording) -> None:
    """Collect the modules that the script's variables hold, where it stands; the nearest name counts."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] not in ("theta0", "torch"):
            for name, value in list(frame.f_locals.items()):
                if isinstance(value, nn.Module) and id(value) not in found.owners:
                    found.owners[id(value)] = value, name
        frame = frame.f_back  # type: ignore[assignment]


def _trained_weights(found: Recording, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """What a module holds that was trained before it is first compared; only where optimizers take turns."""
    if not found.several or not any(id(p) in found.trained for p in module.parameters()):
        return []
    if sum(entry.module is module and bool(entry.surroundings.weights) for entry in found.live) >= found.wanted:
        return []
    return [(t, t.detach().clone()) for t in (*module.parameters(), *module.buffers())]


def _apply(found: Recording, cls: Any, apply: Callable[..., Any], arguments: Any, options: dict[str, Any]) -> Any:
    """An `autograd.Function`: a mode sees only the functions inside it, and they have not its gradient."""
    assert found.interpreter is not None
    with found.interpreter.suspended():
        bound = _bound(found, (arguments, options))
        result = apply(cls, *arguments, **options)
        _note(found, _entry(found, None, lambda *a, **k: cls.apply(*a, **k), bound, surroundings()), result)
    return result


def _bound(found: Recording, arguments: Any) -> Any:
    """Arguments with the entries of their tensors in the tensors' places."""
    assert found.interpreter is not None
    interpreter, handler = found.interpreter, found.handler

    def bind(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        entry = interpreter.note_of(leaf, handler)
        current = entry is not None and not any(call.stale for call in entry.calls)
        return Use(entry, entry.places[id(leaf)]) if current else found.constants.of(leaf)

    return mapped(arguments, bind)


def _entry(found: Recording, module: nn.Module | None, function: Any, bound: Any, around: Any) -> Entry:
    found.entries += 1
    arguments, options = bound
    entry = Entry(found.entries, module, function, arguments, options, around)
    entry.calls = frozenset(call for use in entry.uses() if isinstance(use, Use) for call in use.entry.calls)
    return entry


def _note(found: Recording, entry: Entry, result: Any) -> None:
    """Note on tensors which entry returned them."""
    assert found.interpreter is not None
    leaves = leaves_of(result)
    entry.places = {id(leaf): place for place, leaf in enumerate(leaves)}
    if not any(leaf.requires_grad for leaf in leaves):
        entry.kept = tuple(leaf.detach().clone() for leaf in leaves)
    for leaf in leaves:
        found.interpreter.annotate(leaf, found.handler, entry)


@dataclass(eq=False)
class _Ahead:  # of the function that runs: functions do not nest under one mode
    bound: Any = None
    states: Any = None


def _before(found: Recording, step: Step) -> None:
    step.memory = None
    _note_written(found, step)
    if changes(step.name) and any(found.stored.holds(tensor) for tensor in tensors_in(step.arguments[:1], {})):
        line = str(source_of_caller() or "")
        found.stored.written[line] = found.stored.written.get(line, 0) + 1
    if found.interpreter is None or step.function in _BACKWARD or not _recordable(step):
        return
    noted = any(step.note(tensor, found.handler) is not None for tensor in step.tensors)
    if noted or (
        step.function not in (_DATA, *_ASKED_FOR)
        and torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in step.tensors)
    ):
        step.memory = _Ahead(_bound(found, (step.arguments, step.options)), random_states())


def _note_written(found: Recording, step: Step) -> None:
    """Note the line where a script itself writes to what its optimizers train."""
    name = step.name
    writes = step.function == _SET_DATA or (name.endswith("_") and not name.startswith("__"))
    if found.stepping or not found.places or not writes:
        return
    keys = [found.places.get(t.data_ptr()) for t in tensors_in(step.arguments[:1], {}) if t.layout is torch.strided]
    written = [key for key in keys if key is not None]
    if written:
        found.written |= dict.fromkeys(written, str(source_of_caller() or ""))


def _recordable(step: Step) -> bool:
    name = getattr(step.function, "__name__", "")
    if step.function in _ASKED_FOR:  # by data that something made; parameters are frozen and unfrozen
        return not isinstance(step.arguments[0], nn.Parameter)
    if name == "__get__":
        return step.function == _DATA or getattr(getattr(step.function, "__self__", None), "__name__", "") in _VIEWS
    return name not in ("__set__", "__delete__", "__deepcopy__", "__reduce_ex__")


def _after(found: Recording, step: Step, result: Any) -> Entry | None:
    ahead = step.memory
    if ahead is None:
        return None
    changed = step.arguments[0] if result is None else result
    leaves = leaves_of(changed)
    written = any(leaf.is_leaf and leaf.requires_grad for leaf in leaves) and step.function not in _ASKED_FOR
    if not leaves or written:
        return None  # a parameter that is written to, as initialization does, stays a parameter
    entry = _entry(found, None, step.function, ahead.bound, surroundings(drawn_since(ahead.states)))
    _note(found, entry, changed)
    return entry


def _backward(found: Recording, step: Step) -> Any:
    """A backward pass: what hangs behind the loss is a training step."""
    if found.interpreter is None:
        return PROCEED
    begun = _begun(found, step)
    result = step.interpreter.proceed(step)
    if begun is None:
        found.unseen += 1
        if not found.rootless and all(t.is_leaf for t in _differentiated(step)[0]):
            found.rootless = str(step.source() or "a line that is not known")
    else:
        one, parameters, versions = begun
        _finish(found, one, parameters, versions)
    find_owners(found)
    found.check()
    return result


def _begun(found: Recording, step: Step) -> tuple[Pass, list[Tensor], dict[int, Any]] | None:
    tensors, given = _differentiated(step)
    notes = [step.note(tensor, found.handler) for tensor in tensors]
    roots = [
        None if note is None or any(c.stale for c in note.calls) else Use(note, note.places[id(tensor)])
        for tensor, note in zip(tensors, notes, strict=True)
    ]
    if not any(root is not None and root.entry.calls for root in roots):
        return None
    entries = closure([root for root in roots if root is not None])
    signature = tuple(dict.fromkeys(_kind(entry) for entry in entries))
    reached = [node.variable for node in graph_nodes(tensors) if hasattr(node, "variable")]
    inside = [p for entry in entries if entry.module is not None for p in entry.module.parameters()]
    parameters = list({id(p): p for p in (*reached, *inside) if p.requires_grad}.values())
    versions = {id(p): None if p.grad is None else (id(p.grad), p.grad._version) for p in parameters}
    empty = {id(p) for p in parameters if p.grad is None or not bool(p.grad.any())}
    value = differentiated((t.detach(), gradient) for t, gradient in zip(tensors, given, strict=True))
    return Pass(roots, given, value.detach().clone(), signature, empty, found.exchanging), parameters, versions


def _differentiated(step: Step) -> tuple[list[Tensor], list[Tensor | None]]:
    """The tensors of a backward pass, and the gradients given for them."""
    options, rest = step.options, step.arguments[1:]
    first = step.arguments[0] if step.arguments else options.get("tensors")
    given = options.get("gradient", options.get("grad_tensors", rest[0] if rest else None))
    tensors = [first] if isinstance(first, Tensor) else list(first or ())
    gradients: Sequence[Any] = [given] if isinstance(given, Tensor) or given is None else list(given)
    return tensors, [*gradients, *[None] * (len(tensors) - len(gradients))]


def _kind(entry: Entry) -> Any:
    return id(entry.module) if entry.module is not None else getattr(entry.function, "__name__", str(entry.function))


def _finish(found: Recording, one: Pass, parameters: list[Tensor], versions: dict[int, Any]) -> None:
    now = {id(p): None if p.grad is None else (id(p.grad), p.grad._version) for p in parameters}
    one.received = {key for key, version in now.items() if version is not None and version != versions[key]}
    one.norms = norms_of(parameters)
    if not any(other.signature == one.signature for other in found.passes):
        kept = [p for p in parameters if id(p) in one.received & one.empty]
        one.gradients = {id(p): (p, p.grad.detach().clone()) for p in kept if p.grad is not None}
    found.passes.append(one)
