"""Which trained parameters a loss depends on by value, and at which operation the gradient's path to them ends."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss, loss_of
from theta0._models import graph_nodes
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Interpreter, Step, tensors_in, trace
from theta0._trace.operations import NodeMap, Operation, node_handler, operation_of
from theta0.measurements.backward import watch_backward
from theta0.measurements.loss_terms import Term, scaled_norms, terms_handler

# Functions whose derivative is zero wherever it exists.
_STEPS = frozenset(("round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "heaviside", "bernoulli"))
_PIECEWISE_LINEAR = frozenset(
    ("relu", "relu6", "leaky_relu", "prelu", "rrelu", "hardtanh", "hardsigmoid", "threshold", "abs", "clamp", "max")
)
_DETACHED = ("detach", "detach_", "__get__")
_NUDGE = 0.05  # of a tensor's root mean square, and of 1 where that is smaller
_EXITS = ("item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__")


# Functions that take shape, type and device of a tensor, and not its values.
FACTORIES = frozenset(
    [
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
    ]
)


@dataclass(frozen=True, eq=False)
class Cut:
    """An operation at which the gradient's path to parameters ends.

    Attributes:
        operation: the operation.
        kind: "detach", "no_grad", "left torch", "not differentiable", "zero derivative", "derivative" (of a function
            that is differentiated inside the step, which depends on nothing more), "flat" (a derivative of a derivative
            that is zero at every point), "zero" (a gradient arrives and none is passed on), "rebuilt" or "codes" (what
            is compared with data depends on data by whole numbers only).
        parameters: the names of the parameters that get no gradient, in the model's order.
        term: where only a summand of the loss is cut off: its number among the summands.
        partly: whether the parameters get a gradient by other paths.
    """

    operation: Operation
    kind: str
    parameters: tuple[str, ...]
    term: int | None = None
    partly: bool = False


@dataclass(frozen=True, eq=False)
class GradientPaths:
    """How the loss of one batch depends on the trained parameters.

    Attributes:
        cuts: where paths end, the one that most parameters lie behind first.
        idle: parameters that are used but whose use does not reach the loss.
        unused: parameters that no operation uses.
        terms: the summands of the loss; a single one where it is no sum.
        norms: of each summand, the norm of its share of the gradient; None where it has no gradient.
        piecewise_linear: the activations of zero second derivative that ran.
        passes: how often the summands were differentiated: twice where a gradient of zero was asked again.
    """

    cuts: tuple[Cut, ...]
    idle: tuple[str, ...]
    unused: tuple[str, ...]
    terms: tuple[Term, ...]
    norms: tuple[float | None, ...]
    piecewise_linear: tuple[str, ...]
    passes: int = 1


@dataclass(frozen=True)
class _Trail:
    """What is noted of a tensor.

    Attributes:
        live: the parameters on which it depends differentiably, as bits.
        lost: those on which it depends by its value only, as bits.
        cuts: the cuts behind it, as bits.
        data: whether numbers that the model is given are in it, and not only whole numbers made of them.
        derived: whether a derivative that the step takes is in it.
    """

    live: int = 0
    lost: int = 0
    cuts: int = 0
    data: bool = False
    derived: bool = False


@dataclass
class _Seen:  # grows during a pass; a plain accumulator
    bits: Mapping[int, int]
    cuts: list[tuple[Operation, str, int]] = field(default_factory=list)
    exits: list[tuple[Operation, int]] = field(default_factory=list)
    used: int = 0
    activations: dict[str, None] = field(default_factory=dict)
    coded: list[_Trail] = field(default_factory=list)


def gradient_paths(model: nn.Module, batch: Batch, loss: Loss, stuck: Sequence[str] = ()) -> GradientPaths:
    """Follow the parameters through one step, and the gradient back.

    The model is left bit-identical. Cost: one forward pass, and a backward pass for each summand of the loss and one
    more where a parameter's gradient is zero.

    Args:
        model: the model.
        batch: the batch.
        loss: a name, a callable or None.
        stuck: parameters whose gradient is known to be exactly zero: where it becomes so is looked for.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names = list(trained)
    seen, nodes = _Seen({id(p): 1 << i for i, p in enumerate(trained.values())}), NodeMap()
    paths, summands = _paths_handler(seen), terms_handler()
    with preserve_state(model), torch.enable_grad():
        with trace(model, paths, summands, node_handler(nodes)) as interpreter:
            value, _ = loss_of(model, batch, loss)
        trail = interpreter.note_of(value, paths) or _Trail()
        terms = interpreter.note_of(value, summands) or ()
        trails = [interpreter.note_of(term.tensor, paths) or _Trail() for term in terms]
        reached = _reached(value, trained)
        missing = [name for name in names if name not in reached]
        cuts = [*_ends(missing, names, seen, trail), *_lost_terms(terms, trails, names, seen)]
        norms = scaled_norms(value, terms, list(trained.values()))
        dead = _dead_terms(value, terms, norms, trained, nodes)
        elsewhere = _dead_elsewhere(model, batch, loss, trained) if dead else None
        dead = [cut for cut in dead if elsewhere is None or cut.term in elsewhere]
        cuts += [] if cuts else _constant_derivatives(names, seen, trail)
        cuts += [] if cuts else _codes(names, seen)
        if stuck and value.requires_grad:
            zeros = _zeros(value, {name: trained[name] for name in stuck if name in reached}, nodes)
            cuts += [Cut(operation, kind, lost) for operation, kind, lost in zeros]
    cut_off = {name for cut in cuts if cut.term is None and not cut.partly for name in cut.parameters}
    rest = [(name, bool(seen.used & (1 << names.index(name)))) for name in missing if name not in cut_off]
    return GradientPaths(
        cuts=tuple(sorted([*cuts, *dead], key=lambda cut: (cut.term is not None, -len(cut.parameters)))),
        idle=tuple(name for name, used in rest if used),
        unused=tuple(name for name, used in rest if not used),
        terms=tuple(terms),
        norms=tuple(norms),
        piecewise_linear=tuple(seen.activations),
        passes=1 if elsewhere is None else 2,
    )


def followed_paths(model: nn.Module) -> tuple[Handler, Callable[[Interpreter, Tensor], bool]]:
    """A handler that follows the trained parameters through a pass, and whether a tensor depends on some by value only.

    Returns:
        The handler, and the question, to be asked of a tensor of that pass.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    handler = _paths_handler(_Seen({id(p): 1 << i for i, p in enumerate(trained)}))

    def by_value(interpreter: Interpreter, tensor: Tensor) -> bool:
        known = interpreter.note_of(tensor, handler)
        return isinstance(known, _Trail) and known.lost != 0

    return handler, by_value


def _paths_handler(seen: _Seen) -> Handler:
    def trail_of(step: Step, tensor: Tensor) -> _Trail:
        known = step.note(tensor, handler)
        own = seen.bits.get(id(tensor), 0)
        if known is None:
            live = own or (_behind(tensor, seen.bits) if tensor.requires_grad else 0)
            return _Trail(live=live)
        return known if isinstance(known, _Trail) else _Trail()

    def after(step: Step, result: Any) -> _Trail | None:
        if step.name in FACTORIES:
            return None
        trails = [(tensor, trail_of(step, tensor)) for tensor in step.tensors]
        seen.coded += _compared_codes(step, trails, seen)
        live, lost, cuts, data = _joined(step, trails)
        cuts &= ~_meant(step, seen)
        if not live and not cuts and not lost:
            return None
        seen.used |= live
        if step.spec is not None and step.spec.name in _PIECEWISE_LINEAR:
            seen.activations[step.spec.name] = None
        if step.name in _EXITS:
            seen.exits.append((operation_of(step), live))
            return None
        changed = step.arguments[:1] if result is None else (result,)
        results = tensors_in(changed, {})
        if not results or not live:
            return _Trail(0, lost, cuts, data) if results else None
        if all(r.requires_grad for r in results):
            again = any(trail.derived for _, trail in trails)
            cuts |= _flat(step, results, live, seen) if again else 0
            return _Trail(live, lost, cuts, data, again or step.function is torch.autograd.grad)
        by = tensors_in((step.argument((1, "inputs")),), {}) if step.function is torch.autograd.grad else ()
        by_data = not any(trail_of(step, tensor).live for tensor in by)  # not by weights, or what is made of them
        seen.cuts.append((operation_of(step), _kind(step, results, by_data), live))
        made = 1 << (len(seen.cuts) - 1)
        floating = any(r.is_floating_point() for r in results)
        return _Trail(live if any(r.requires_grad for r in results) else 0, lost | live, cuts | made, data and floating)

    handler = Handler(after=after)
    return handler


def _flat(step: Step, results: Sequence[Tensor], live: int, seen: _Seen) -> int:
    """A cut, as a bit, where a derivative is zero everywhere although what is differentiated is not; else 0."""
    of = tensors_in((step.argument((0, "outputs")),), {}) if step.function is torch.autograd.grad else ()
    if not seen.activations or not any(bool(t.any()) for t in of) or any(bool(r.any()) for r in results):
        return 0
    seen.cuts.append((operation_of(step), "flat", live))
    return 1 << (len(seen.cuts) - 1)


def _joined(step: Step, trails: Sequence[tuple[Tensor, _Trail]]) -> tuple[int, int, int, bool]:
    """What is behind any of the arguments."""
    live = lost = cuts = 0
    for _, trail in trails:
        live, lost, cuts = live | trail.live, lost | trail.lost, cuts | trail.cuts
    return live, lost, cuts, any(trail.data for _, trail in trails) or _given_data(step, trails)


def _given_data(step: Step, trails: Sequence[tuple[Tensor, _Trail]]) -> bool:
    """Whether a function of the model's is given numbers that depend on no parameter."""
    owners = step.interpreter.owners
    inside = owners is not None and owners.inside_model
    plain = (t for t, trail in trails if trail == _Trail() and t.is_floating_point() and not t.requires_grad)
    return inside and any(t.numel() > 1 for t in plain)


def _compared_codes(step: Step, trails: Sequence[tuple[Tensor, _Trail]], seen: _Seen) -> list[_Trail]:
    """Outputs that a difference compares with data, and that depend on data by whole numbers only."""
    role, kind = (step.spec.role, step.spec.kind) if step.spec is not None else ("", "")
    if len(trails) != 2 or not (role == "subtract" or (role == "loss" and kind in ("difference", "bce"))):
        return []
    (a, one), (b, other) = trails
    if a.shape != b.shape or not a.is_floating_point() or not b.is_floating_point():
        return []
    pairs = [(one, other, b), (other, one, a)]
    whole = sum(1 << i for i, cut in enumerate(seen.cuts) if cut[1] == "not differentiable")
    return [x for x, y, t in pairs if x.live and x.lost and x.cuts & whole and not x.data and _is_data(t, y)]


def _is_data(tensor: Tensor, trail: _Trail) -> bool:
    return trail == _Trail() and not tensor.requires_grad and tensor.numel() > 1


def _codes(names: Sequence[str], seen: _Seen) -> list[Cut]:
    """Where what is compared with data is made of whole numbers, and parameters behind these get nothing of it."""
    for trail in seen.coded:
        lost = trail.lost & ~trail.live
        for i, (operation, kind, _) in enumerate(seen.cuts):
            if lost and kind == "not differentiable" and trail.cuts >> i & 1:
                return [Cut(operation, "codes", tuple(n for j, n in enumerate(names) if lost >> j & 1), partly=True)]
    return []


def _meant(step: Step, seen: _Seen) -> int:
    """Constant derivatives that are meant so: detached, or not of the loss but of what weights are given."""
    weight = None if step.spec is None or step.spec.weight is None else step.argument(step.spec.weight)
    weighed = isinstance(weight, Tensor) and weight.requires_grad  # may be made of parameters
    if step.name not in _DETACHED and not weighed and not any(id(tensor) in seen.bits for tensor in step.tensors):
        return 0
    return sum(1 << i for i, (_, kind, _) in enumerate(seen.cuts) if kind == "create_graph")


def _kind(step: Step, results: Sequence[Tensor], by_data: bool) -> str:
    """Why no result of a step on tensors that need a gradient needs one; of a derivative, whether it is by data."""
    if step.function is torch.autograd.grad:
        if step.argument((4, "create_graph")):
            return "derivative"
        return "create_graph" if by_data and torch.is_grad_enabled() else "detach"
    if step.name in _DETACHED:
        return "detach"
    if not torch.is_grad_enabled():
        return "no_grad"
    if any(r.is_floating_point() for r in results):
        return "rebuilt"
    return "not differentiable"


def _behind(tensor: Tensor, bits: Mapping[int, int]) -> int:
    """The parameters behind a tensor that no step made, as the result of an `autograd.Function`."""
    found = 0
    for node in graph_nodes([tensor]):
        found |= bits.get(id(getattr(node, "variable", None)), 0)
    return found


def _reached(value: Tensor, trained: Mapping[str, nn.Parameter]) -> set[str]:
    """The parameters that the graph behind a loss contains."""
    names = {id(p): name for name, p in trained.items()}
    found = {id(node.variable) for node in graph_nodes([value]) if hasattr(node, "variable")} | {id(value)}
    return {name for key, name in names.items() if key in found}


def _ends(missing: Sequence[str], names: Sequence[str], seen: _Seen, trail: _Trail) -> list[Cut]:
    """The cuts behind which parameters without a gradient lie: first those on the loss's own way, then any other."""
    on_way = [cut for i, cut in enumerate(seen.cuts) if trail.cuts >> i & 1]
    left = [(operation, "left torch", lost) for operation, lost in seen.exits]
    found: dict[Operation, tuple[str, list[str]]] = {}
    for name in missing:
        bit = 1 << names.index(name)
        options = [cut for cut in on_way if cut[2] & bit] or [cut for cut in left if cut[2] & bit]
        chosen = options or [cut for cut in seen.cuts if cut[2] & bit and not trail.live & bit][-1:]
        if chosen:
            operation, kind, _ = chosen[0]
            found.setdefault(operation, (kind, []))[1].append(name)
    return [Cut(operation, kind, tuple(lost)) for operation, (kind, lost) in found.items()]


def _lost_terms(terms: Sequence[Term], trails: Sequence[_Trail], names: Sequence[str], seen: _Seen) -> list[Cut]:
    """Summands of the loss that depend on parameters by their values, and have no gradient at all."""
    found = []
    for number, (term, trail) in enumerate(zip(terms, trails, strict=True)):
        if term.tensor.requires_grad or not trail.lost or len(terms) < 2:
            continue
        operation, kind, _ = next(cut for i, cut in enumerate(seen.cuts) if trail.cuts >> i & 1)
        lost = tuple(name for i, name in enumerate(names) if trail.lost >> i & 1)
        found.append(Cut(operation, kind, lost, number))
    return found


def _dead_terms(
    value: Tensor,
    terms: Sequence[Term],
    norms: Sequence[float | None],
    trained: Mapping[str, nn.Parameter],
    nodes: NodeMap,
) -> list[Cut]:
    """Summands that are not zero although their gradient is exactly zero."""
    found = []
    for number, (term, norm) in enumerate(zip(terms, norms, strict=True)):
        if len(terms) > 1 and norm == 0.0 and term.value != 0.0:
            for operation, kind, lost in _zeros(term.tensor, trained, nodes)[:1]:
                found.append(Cut(operation, kind, lost, number))
    return found


def _dead_elsewhere(
    model: nn.Module, batch: Batch, loss: Loss, trained: Mapping[str, nn.Parameter]
) -> frozenset[int] | None:
    """The summands whose gradient is zero with other weights too, and not only where they happen to be stationary.

    The entropy of equal probabilities is at its maximum, and its gradient is zero there and nowhere else. None where
    the user's own code fails with other weights.
    """
    generator, summands = torch.Generator().manual_seed(0), terms_handler()
    kept = [(p, p.detach().clone()) for p in trained.values()]
    try:
        for p, before in kept:  # through .data: graphs that have saved the parameters stay valid
            size = max(float(torch.linalg.vector_norm(before)) / max(1, p.numel()) ** 0.5, _NUDGE)
            p.data.add_((_NUDGE * size * torch.randn(p.shape, generator=generator)).to(p))
        with trace(model, summands) as interpreter:
            value, _ = loss_of(model, batch, loss)
        norms = scaled_norms(value, interpreter.note_of(value, summands) or (), list(trained.values()))
    except UserCodeError:
        return None
    finally:
        for p, before in kept:
            p.data.copy_(before)
    return frozenset(number for number, norm in enumerate(norms) if norm == 0.0)


def _constant_derivatives(names: Sequence[str], seen: _Seen, trail: _Trail) -> list[Cut]:
    """Derivatives by an input that the loss is made of, and that are constants for autograd, or zero everywhere."""
    found = []
    for i, (operation, kind, lost) in enumerate(seen.cuts):
        if kind in ("create_graph", "flat") and trail.cuts >> i & 1:
            parameters = tuple(name for j, name in enumerate(names) if lost >> j & 1)
            found.append(Cut(operation, kind, parameters, partly=True))
    return found[:1]


def _zeros(
    value: Tensor, parameters: Mapping[str, nn.Parameter], nodes: NodeMap
) -> list[tuple[Operation, str, tuple[str, ...]]]:
    """The operations at which a gradient that is not zero becomes zero, for parameters whose whole gradient is."""
    everything = [node.variable for node in graph_nodes([value]) if hasattr(node, "variable")]
    if not parameters or not everything:
        return []
    names = {id(p): name for name, p in parameters.items()}
    found: dict[Operation, dict[str, None]] = {}
    for passage in watch_backward(value, everything, retain=True):
        if not passage.outputs_nonzero:
            continue
        for (parent, _), alive in zip(passage.node.next_functions, passage.inputs_nonzero, strict=False):
            if alive or parent is None or passage.node not in nodes.operations:
                continue
            behind = [names.get(id(leaf)) for leaf in _leaves(parent)]
            lost = found.setdefault(nodes.operations[passage.node], {})
            lost.update(dict.fromkeys(name for name in behind if name is not None))
    kinds = {operation: "zero derivative" if operation.name in _STEPS else "zero" for operation in found}
    return [(operation, kinds[operation], tuple(lost)) for operation, lost in found.items() if lost]


def _leaves(node: Any) -> Iterable[Any]:
    pending, known = [node], set()
    while pending:
        current = pending.pop()
        if current is None or current in known:
            continue
        known.add(current)
        if hasattr(current, "variable"):
            yield current.variable
        pending.extend(parent for parent, _ in current.next_functions)
