"""Watching a script train: its outermost module calls, what it does with their outputs, backward passes and steps."""

import gc
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from theta0._models import graph_nodes, unwrapped
from theta0._ranks import exchanges_gradients
from theta0._state import snapshot
from theta0._trace.interpreter import PROCEED, Handler, Interpreter, Step, tensors_in
from theta0._trace.source import source_of_caller
from theta0.captures.entries import (
    Constants,
    Entry,
    Use,
    closure,
    drawn_since,
    own_loss_place,
    random_states,
    surroundings,
)
from theta0.captures.tape import differentiated, leaves_of, mapped
from theta0.measurements.taken_back import StepValues
from theta0.measurements.unloaded_weights import NotLoaded, not_loaded

_BACKWARD = (Tensor.backward, torch.autograd.backward)
_VIEWS = ("T", "mT", "H", "mH", "real", "imag")  # attributes that are functions of the tensor
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_DATA = Tensor.data.__get__  # type: ignore[attr-defined] # of what a call made; of a parameter it writes to that
_ASKED_FOR = (Tensor.requires_grad_, Tensor.requires_grad.__set__)  # type: ignore[attr-defined]
_ASKED = 3  # times to stop; a script that goes on catches everything
_PATIENCE = 8  # times as many passes as are wanted: then it is enough, whatever is missing


class Stop(BaseException):
    """Ends a script when enough was seen; not an `Exception`, so that scripts do not handle it."""


@dataclass(eq=False)
class Pass:  # what a backward pass reached is known only after it
    """One backward pass of the script.

    Attributes:
        roots: what was differentiated; None in the place of a tensor whose making was not seen.
        gradients_given: the gradient given for each root.
        value: the loss.
        signature: which modules and functions it hangs on, without repetitions.
        exchanged: whether `DistributedDataParallel` averages its gradients over the ranks.
        empty: the parameters that had no gradient, or zeros, before it.
        received: the parameters that it gave a gradient to.
        gradients: of the parameters, where they had none before; of the first pass of each signature only.
        norms: of each parameter's gradient, accumulated ones included, after it.
    """

    roots: list[Use | None]
    gradients_given: list[Tensor | None]
    value: Tensor
    signature: tuple[Any, ...]
    empty: set[int]
    exchanged: bool = False
    received: set[int] = field(default_factory=set)
    gradients: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether it is of one tensor that was seen being made, with no gradient given for it."""
        return len(self.roots) == 1 and self.roots[0] is not None and self.gradients_given[0] is None


@dataclass(eq=False)
class Steps:  # grows while the script runs
    """One optimizer of the script.

    Attributes:
        optimizer: the optimizer itself.
        rate: the highest learning rate of its first group, the schedule's maximum.
        groups: the passes of each step.
        unreached: the last pass before each step that found no gradient, by which it can be said why.
        shares: of each of `groups`, the gradient's norm that the step found over its norm after the last pass; 1
            without scaling or clipping, None where that is not known.
        norms: of each of `groups`, the gradient's norm that the step found; None where that is not known.
        rates: the learning rate of its first group at each step.
        schedule: these, and those to come, as far as a scheduler says.
        rewritten: whether its parameters changed between two of its steps, as by clipping weights.
        sums: of its parameters after its last step.
        values: of its parameters before and after its steps.
        begun: how many groups there were before its last step.
        consumed: how many passes had been seen at its last step.
        restore: puts its state back.
    """

    optimizer: torch.optim.Optimizer
    restore: Callable[[], None]
    rate: float = 0.0
    groups: list[list[Pass]] = field(default_factory=list)
    unreached: list[list[Pass]] = field(default_factory=list)
    shares: list[float | None] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    schedule: tuple[float, ...] = ()
    rewritten: bool = False
    sums: Tensor | None = None
    values: StepValues = field(default_factory=StepValues)
    begun: int = 0
    consumed: int = 0

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that it holds."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def shrunk(self) -> float:
        """The first share that is known, and not zero; 1 without any."""
        return next((share for share in self.shares if share), 1.0)


@dataclass(eq=False)
class Recording:  # grows while the script runs
    """What was seen of a script.

    Attributes:
        wanted: how many passes of each kind are enough.
        deadline: when to stop in any case, by `time.monotonic`.
        calls: how many module calls that train were seen.
        passes: the backward passes.
        unseen: how many backward passes had no module's call behind them.
        rootless: the line of the first that had no operation behind it at all, of a loss that is a leaf.
        optimizers: by identity.
        alive: the optimizers and schedulers that there were at the latest first step of one, stepped or not.
        earlier: the optimizers that there were before.
        restores: put each module called, and each parameter trained, back to before the first step.
        owners: modules found in the script's variables, with the variable's name.
        stopped: how often it was asked to stop.
        trained: the parameters that an optimizer has changed.
        several: whether there are several optimizers.
        entries: how many calls and functions were noted.
        constants: the tensors that the script brought.
        covered: the modules and parameters that `restores` covers.
        live: the calls that were not trained since.
        interpreter: the interpreter that watches the script.
        insist: called where the script catches the request to stop again and again; does not return.
        handler: the interpreter's only one.
        skip: optimizer steps that are still to be passed over.
        loop: which training loop is wanted, counted from the one that runs: 1 for this one.
        together: the optimizers that there were at the first step of the loop that runs; None before one.
        exchanging: whether the latest module called averages its gradients over the ranks.
        stepping: whether an optimizer's step runs.
        places: the parameters that optimizers have trained, by where their values lie.
        written: the line that wrote to each of them last, outside of optimizers.
        not_loaded: the calls of `load_state_dict` that left out what they were given.
    """

    wanted: int
    deadline: float
    calls: int = 0
    passes: list[Pass] = field(default_factory=list)
    unseen: int = 0
    rootless: str = ""
    optimizers: dict[int, Steps] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    earlier: "weakref.WeakSet[torch.optim.Optimizer]" = field(default_factory=weakref.WeakSet)
    restores: dict[int, Callable[[], None]] = field(default_factory=dict)
    owners: dict[int, tuple[nn.Module, str]] = field(default_factory=dict)
    stopped: int = 0
    trained: set[int] = field(default_factory=set)
    several: bool = False
    entries: int = 0
    constants: Constants = field(default_factory=Constants)
    covered: set[int] = field(default_factory=set)
    live: list[Entry] = field(default_factory=list)
    interpreter: Interpreter | None = None  # None from where nothing more is to be seen
    insist: Callable[[], None] | None = None
    handler: Handler = field(default_factory=Handler)
    exchanging: bool = False
    skip: int = 0
    loop: int = 1
    together: "weakref.WeakSet[torch.optim.Optimizer] | None" = None
    stepping: bool = False
    places: dict[int, int] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    not_loaded: list[NotLoaded] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        """Whether every kind of pass was seen often enough, and a step of every optimizer; or enough is enough."""
        counts: dict[Any, int] = {}
        for one in self.passes:
            counts[one.signature] = counts.get(one.signature, 0) + 1
        stepped = any(steps.groups for steps in self.optimizers.values())
        made = (one for one in self.alive if isinstance(one, torch.optim.Optimizer) and one not in self.earlier)
        idle = any(id(one) not in self.optimizers for one in made)
        complete = stepped and not idle and bool(counts) and min(counts.values()) >= self.wanted
        return complete or len(self.passes) + self.unseen >= _PATIENCE * self.wanted

    def check(self) -> None:
        """Stop the script where it is time to; again where it did not stop.

        Raises:
            Stop: where it is.
        """
        if (self.skip > 0 or self.loop > 1) and time.monotonic() <= self.deadline:
            return
        if self.stopped or self.enough or time.monotonic() > self.deadline:
            self.stopped += 1
            if self.stopped > _ASKED and self.insist is not None:
                self.interpreter = None
                self.insist()
            raise Stop


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
    found.earlier = weakref.WeakSet(_alive((torch.optim.Optimizer,)))
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
        return _call(found, module, call, arguments, options)

    def applied(cls: Any, *arguments: Any, **options: Any) -> Any:
        if not _outermost(found):
            return apply.__func__(cls, *arguments, **options)
        return _apply(found, cls, apply.__func__, arguments, options)

    hooks = (
        register_optimizer_step_pre_hook(lambda optimizer, *_: _before_step(found, optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: _after_step(found, optimizer)),
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


def norms_of(parameters: Sequence[Tensor]) -> dict[int, float]:
    """The norms of the gradients that parameters hold, by the parameters' identities."""
    gradients = {id(p): p.grad.detach() for p in parameters if p.grad is not None}
    dense = [(g.coalesce().values() if g.is_sparse else g).double() for g in gradients.values()]
    norms = [torch.linalg.vector_norm(g).cpu() for g in dense]
    return dict(zip(gradients, torch.stack(norms).tolist(), strict=True)) if norms else {}


def _before_step(found: Recording, optimizer: torch.optim.Optimizer) -> None:
    if found.interpreter is None:
        return
    found.check()
    _count_loop(found, optimizer)
    if found.loop > 1:
        return
    steps = found.optimizers.get(id(optimizer))
    if steps is None:
        steps = found.optimizers[id(optimizer)] = Steps(optimizer, _state_of(optimizer))
        found.alive = _alive((torch.optim.Optimizer, LRScheduler))
        found.several = found.several or sum(isinstance(kept, torch.optim.Optimizer) for kept in found.alive) > 1
        for p in steps.parameters:
            if id(p) not in found.covered:
                found.covered.add(id(p))
                found.restores[id(p)] = _putter(p)
    group = optimizer.param_groups[0]
    steps.rate = max([steps.rate, *(float(group[key]) for key in ("lr", "initial_lr", "max_lr") if key in group)])
    steps.rates.append(float(group["lr"]))
    steps.rewritten = steps.rewritten or not (steps.sums is None or torch.equal(steps.sums, _sums(steps)))
    steps.begun = len(steps.groups)
    steps.values.begins(steps.parameters)
    found.stepping = True
    _consume(found, steps)


def _count_loop(found: Recording, optimizer: torch.optim.Optimizer) -> None:
    """A loop begins with the first step of an optimizer that was made after the first step of the one before."""
    if found.loop == 1 or (found.together is not None and optimizer in found.together):
        return
    if found.together is not None:
        found.loop -= 1
        found.earlier.update(found.together)
    found.together = weakref.WeakSet(_alive((torch.optim.Optimizer,)))


def _sums(steps: Steps) -> Tensor:
    """A number for each parameter that changes when it does."""
    return torch.stack([p.detach().double().abs().sum().cpu() for p in steps.parameters if p.numel()])


def _putter(parameter: Tensor) -> Callable[[], None]:
    value = parameter.detach().clone()

    def restore() -> None:
        parameter.data.copy_(value)

    return restore


def _after_step(found: Recording, optimizer: torch.optim.Optimizer) -> None:
    steps, found.stepping = found.optimizers.get(id(optimizer)), False
    if found.loop > 1:
        _forget(found)
    if steps is None:
        return
    if found.skip > 0:
        found.skip -= 1
        _forget(found)
        return
    _consume(found, steps, closure=True)
    steps.sums = _sums(steps)
    steps.values.ends(steps.parameters)
    found.places |= {p.data_ptr(): id(p) for p in steps.parameters if p.numel()}
    changed = {id(p) for p in steps.parameters}
    found.trained |= changed
    for entry in found.live:
        if entry.module is not None and any(id(p) in changed for p in entry.module.parameters()):
            entry.stale = True
    found.live = [entry for entry in found.live if not entry.stale or entry.surroundings.weights]


def _forget(found: Recording) -> None:
    """Begin anew after a step that is passed over: the models stay as they are now."""
    for entry in found.live:
        entry.stale = True
    for collected in (found.passes, found.live, found.optimizers, found.restores, found.covered, found.trained):
        collected.clear()
    found.unseen = found.calls = 0


def _consume(found: Recording, steps: Steps, *, closure: bool = False) -> None:
    """Give the optimizer the passes since its last step whose gradients are still there; all those of a closure."""
    held = {id(p) for p in steps.parameters}
    new = found.passes[steps.consumed :]
    group = [one for one in new if one.received & held] if closure else passes_for(new, held)
    since = found.passes[max(other.consumed for other in found.optimizers.values()) :]
    steps.consumed = len(found.passes)
    if not group:
        steps.unreached += [since[-1:]] if since else []
        return
    if closure:  # whose gradients the step used and may have changed since; what was there before it, it did not use
        steps.shares[steps.begun :] = [None] * (len(steps.groups) - steps.begun)
        steps.norms[steps.begun :] = [None] * (len(steps.groups) - steps.begun)
    steps.groups.append(group)
    share, norm = (None, None) if closure else _share(group, steps.parameters)
    steps.shares.append(share)
    steps.norms.append(norm)
    if len(steps.groups) > 1:
        _release(found, group)


def _release(found: Recording, group: Sequence[Pass]) -> None:
    """Drop the weights kept for passes that nothing will be compared with: each optimizer's first are."""
    waiting = {id(p) for one in found.alive if isinstance(one, torch.optim.Optimizer) for p in _waiting(found, one)}
    roots = [root for one in group if one.received.isdisjoint(waiting) for root in one.roots if root is not None]
    for entry in closure(roots):
        if entry.surroundings.weights:
            entry.surroundings = replace(entry.surroundings, weights=())


def _waiting(found: Recording, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters of an optimizer that has not stepped with a gradient yet."""
    steps = found.optimizers.get(id(optimizer))
    return [] if steps is not None and steps.groups else [p for g in optimizer.param_groups for p in g["params"]]


def _share(group: Sequence[Pass], parameters: Sequence[Tensor]) -> tuple[float | None, float | None]:
    """The norm of the gradients that parameters hold, over what it was after the passes that made them; and itself."""
    held, after = {id(p) for p in parameters}, dict[int, float]()
    for one in group:
        after |= {key: norm for key, norm in one.norms.items() if key in held}
    made, left = math.hypot(*after.values()), math.hypot(*norms_of(parameters).values())
    return (left / made, left) if made > 0 and math.isfinite(made) and math.isfinite(left) else (None, None)


def passes_for(pending: Sequence[Pass], held: set[int]) -> list[Pass]:
    """The passes whose gradients some parameters still hold: the later ones, from where they were last empty.

    Returns:
        The passes.
    """
    group: list[Pass] = []
    for one in pending:
        mine = one.received & held
        if not mine:
            continue
        if mine <= one.empty:
            group = []
        group.append(one)
    return group


def _state_of(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    state = {key: dict(value) for key, value in optimizer.state.items()}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update({key: dict(value) for key, value in state.items()})
        for group, kept in zip(optimizer.param_groups, groups, strict=False):
            group.update(kept)

    return restore


def _alive(kinds: tuple[type, ...]) -> list[Any]:
    """What the script has made of some kinds; by their types, since proxies answer `isinstance` with side effects."""
    return [found for found in gc.get_objects() if issubclass(type(found), kinds)]
