"""Changing weights layer by layer, in execution order, by what a forward pass over the data shows: all or nothing."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import init
from torch.nn.utils import parametrize

from theta0._batches import Batch, initialised, load_batches
from theta0._models import outputs_of
from theta0._moments import Moments, merged
from theta0._randomness import Randomness, streams
from theta0._state import preserve_buffers, transaction
from theta0._trace.calls import LinearCall, trace_calls
from theta0._trace.layers import Layer, geometry, layers
from theta0._weights import assign_weight, assignable, scale_weight

_SWEEPS = 10
_SKIPPED = {"embedding": "an embedding looks up and does not sum", "recurrent": "its gates are not visible"}

Key = tuple[int, int, int]
Measure = Callable[[LinearCall], Moments]


@dataclass(frozen=True)
class Goal:
    """Where a weight's first call must stand so that all its calls together have mean 0 and deviation 1."""

    mean: Float64[Tensor, "..."]
    deviation: Float64[Tensor, "..."]


Adjust = Callable[[LinearCall, Key, Goal], bool]


@dataclass(frozen=True)
class Drawing:
    """How weights are drawn first, each from the stream of its name; half precision is drawn in float32.

    `law` is "normal" with deviation `std`, "orthogonal" with that gain, or None to keep the weights.
    """

    law: str | None
    std: float
    generator: Randomness


@dataclass
class Sweeps:
    """What repeated passes over the batches know of each weight, by its key.

    Attributes:
        skip: layer paths to leave alone.
        names: the layer of each weight's first call.
        skipped: layers left alone, and why.
        goals: for weights that were seen before.
        pooled: moments over all calls of the last pass.
        unconverged: weights that the last pass found off.
        count: how many passes were made.
    """

    skip: frozenset[str]
    names: dict[Key, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    goals: dict[Key, Goal] = field(default_factory=dict)
    pooled: dict[Key, Moments] = field(default_factory=dict)
    unconverged: tuple[Key, ...] = ()
    count: int = 0


def layerwise(
    model: nn.Module,
    batches: Iterable[Any],
    measure: Measure,
    adjust: Adjust,
    is_off: Callable[[Key, Moments], bool],
    drawing: Drawing,
    skip: Collection[str],
    max_batches: int | None,
) -> Sweeps:
    """Draw weights where that is asked for, then sweep; the model is as it was if anything fails."""
    if drawing.law not in (None, "normal", "orthogonal"):
        raise ValueError(f"draw: expected None, 'normal' or 'orthogonal', got {drawing.law!r}")
    inner = initialised(model)
    found = load_batches(batches, inner, max_batches=max_batches)
    left = _left_alone(skip, inner, found[0])
    with transaction(inner), preserve_buffers(inner):
        if drawing.law is not None:
            _draw_weights(drawing, left, layers(inner, found[0]))
        return _swept(inner, found, left, measure, adjust, is_off)


def _left_alone(skip: Collection[str], model: nn.Module, batch: Batch) -> frozenset[str]:
    """What a caller asks to skip, checked: an entry that names nothing would be silently without effect.

    Entries are paths of layers, or of modules with all that is in them; the batch shows the layers that are no modules,
    such as attention's projections.

    Raises:
        ValueError: an entry names neither a module nor a layer.
    """
    listed = isinstance(skip, Collection) and not isinstance(skip, str)
    paths = {path for path, _ in model.named_modules(remove_duplicate=False)}
    unknown: list[Any] = [e for e in skip if not isinstance(e, str) or e not in paths] if listed else [skip]
    if listed and unknown:
        met = {layer.path for layer in layers(model, batch)} | {"(model)"}  # a lone layer's name in messages
        unknown = [entry for entry in unknown if entry not in met]
    if unknown:
        raise ValueError(f"skip: expected a collection of paths of modules or layers of this model, got {unknown}")
    return frozenset(skip)


def _within(layer: str, skip: frozenset[str]) -> bool:
    return any(layer == entry or layer.startswith(f"{entry}.") for entry in skip)


def _swept(
    model: nn.Module,
    batches: list[Batch],
    skip: frozenset[str],
    measure: Measure,
    adjust: Adjust,
    is_off: Callable[[Key, Moments], bool],
) -> Sweeps:
    """Pass over the batches until nothing is changed any more, ten times at most.

    A weight is adjusted at its first call in a pass, and the output of that call with it, so that the layers behind see
    what they will get. Where a weight has several calls (more batches, or several places), the next pass aims the first
    call at what makes all of them right together. `measure` gives the moments of a call's output, one number or one for
    each unit; `adjust` changes a weight, its bias and the output to reach a goal, and says whether it did; `is_off`
    judges the moments over all calls.
    """
    state = Sweeps(skip)
    for _ in range(_SWEEPS):
        state.count += 1
        changed = _sweep(model, batches, state, measure, adjust)
        state.unconverged = tuple(key for key, found in state.pooled.items() if is_off(key, found))
        if not changed and not state.unconverged:
            break
    return state


def _sweep(model: nn.Module, batches: list[Batch], state: Sweeps, measure: Measure, adjust: Adjust) -> bool:
    first: dict[Key, Moments] = {}
    state.pooled = {}
    changed = False

    def observe(call: LinearCall) -> None:
        nonlocal changed
        reason = _reason_to_skip(call, state.skip)
        if reason is not None:
            state.skipped.setdefault(call.owner.layer, reason)
            return
        key = _key(call)
        state.names.setdefault(key, call.layer)
        if key not in first:
            changed |= adjust(call, key, state.goals.get(key, _UNIT))
            first[key] = measure(call)
        new = measure(call) if key in state.pooled else first[key]
        state.pooled[key] = merged(state.pooled[key], new) if key in state.pooled else new

    with torch.no_grad(), trace_calls(model, observe):
        for batch in batches:
            outputs_of(model, batch.inputs)
    state.goals = {key: _goal(first[key], found) for key, found in state.pooled.items()}
    return changed


_UNIT = Goal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))


def _goal(first: Moments, pooled: Moments) -> Goal:
    deviation = pooled.variance.sqrt()
    varies = deviation > 0
    unit = torch.where(varies, deviation, 1.0)
    return Goal((first.mean - pooled.mean) / unit, torch.where(varies, first.variance.sqrt() / unit, 1.0))


def multiply(call: LinearCall, factor: float | Tensor, who: str) -> None:
    """Scale a weight where it is kept: a parameter or a view of one in place, else through its parametrization."""
    owner = call.owner
    try:
        scale_weight(owner.module, owner.attribute, factor, part=call.weight)
    except ValueError as error:
        raise ValueError(
            f"{who}: layer {owner.layer!r}: expected a weight that can be scaled, but {error}; remove it, or leave the "
            f"layer alone with skip=[{owner.layer!r}]"
        ) from error


def per_unit(call: LinearCall, values: Tensor) -> Tensor:
    """One value for each unit of a call, in a shape that multiplies its weight."""
    weight = call.weight
    if call.kind == "matmul":
        return values
    if call.kind == "conv_transpose":
        groups = geometry(call, weight.dim() - 2, weight.shape[2:])[-1]
        each = values.view(groups, 1, -1).expand(-1, len(weight) // groups, -1)
        return each.reshape(len(weight), weight.shape[1], *[1] * (weight.dim() - 2))
    return values.view(-1, *[1] * (weight.dim() - 1))


def refuse_constant(who: str, call: LinearCall, deviation: float) -> NoReturn:
    """Refuse a layer whose output no scale can bring to unit variance."""
    how = "does not vary" if deviation == 0 else "is not finite"
    raise ValueError(
        f"{who}: layer {call.layer!r}: expected an output that varies, got one that {how} "
        f"(standard deviation {deviation}); initialize its weight again, or leave it alone with "
        f"skip=[{call.owner.layer!r}]"
    )


def _draw_weights(drawing: Drawing, skip: frozenset[str], found: list[Layer]) -> None:
    stream = streams(drawing.generator)
    for layer in found:
        usable = layer.kind not in _SKIPPED and not layer.frozen and not _within(layer.path, skip)
        if not usable or not assignable(layer.module, layer.attribute):
            continue
        with torch.no_grad():
            weight: Tensor = getattr(layer.module, layer.attribute)
            fresh = torch.empty(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32))
            if drawing.law == "normal":
                init.normal_(fresh, std=drawing.std, generator=stream(layer.parameters[0]))
            else:
                init.orthogonal_(fresh, gain=drawing.std, generator=stream(layer.parameters[0]))
            assign_weight(layer.module, layer.attribute, fresh, exact=False)


def _reason_to_skip(call: LinearCall, skip: frozenset[str]) -> str | None:
    owner = call.owner
    if call.kind in _SKIPPED:
        return _SKIPPED[call.kind]
    if _within(owner.layer, skip):
        return "skipped as asked"
    kept = dict(owner.module.named_parameters())
    short = [name for name in kept if any(full == name or full.endswith(f".{name}") for full in owner.parameters)]
    if any(not kept[name].requires_grad for name in short):
        return "frozen"
    if owner.attribute not in kept and not parametrize.is_parametrized(owner.module, owner.attribute):
        return "computed by a hook before each forward pass"
    if not assignable(owner.module, owner.attribute):
        return "its parametrization cannot be assigned to"
    return None


def _key(call: LinearCall) -> Key:
    """Tied weights share a key: their parameter's identity, or their parametrization's, and which part of it."""
    owner, weight = call.owner, call.weight
    part = int(weight.storage_offset()), weight.numel()
    if parametrize.is_parametrized(owner.module, owner.attribute):
        parametrizations: nn.ModuleDict = owner.module.parametrizations  # type: ignore[assignment]
        return (id(parametrizations[owner.attribute]), *part)
    return (id(weight if weight._base is None else weight._base), *part)
