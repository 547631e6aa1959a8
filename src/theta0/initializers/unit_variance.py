"""Scale every layer so that its preactivations have unit variance on the data."""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.nn.utils import parametrize

from theta0._batches import Batch, initialised, materialised
from theta0._calls import LinearCall, watch
from theta0._layers import Layer, layers
from theta0._models import outputs_of
from theta0._moments import Moments, merged, moments
from theta0._randomness import Randomness, streams
from theta0._untouched import randomness_snapshot, snapshot

_SWEEPS = 10
_TOLERANCE = 0.1
_SKIPPED = {"embedding": "an embedding looks up and does not sum", "recurrent": "its gates are not visible"}


@dataclass(frozen=True)
class UnitVariance:
    """What `unit_variance_` did.

    Attributes:
        scales: the factor put on each layer's weight.
        deviations: the standard deviation reached at each layer.
        skipped: layers left as they were, and why.
        unconverged: layers whose deviation is more than 10 % off.
        sweeps: how many forward passes over the batches were needed.
    """

    scales: dict[str, float]
    deviations: dict[str, float]
    skipped: dict[str, str]
    unconverged: tuple[str, ...]
    sweeps: int


def unit_variance_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    std: float = 1.0,
    draw: str | None = None,
    skip: Collection[str] = (),
    max_batches: int | None = 4,
    generator: Randomness = None,
    report: Callable[[UnitVariance], None] | None = None,
) -> nn.Module:
    r"""Rescale weights, layer by layer in execution order, until every preactivation has the wanted variance.

    One factor per layer, $w ← w · \mathrm{std} / \sqrt{V(z)}$, V pooled over units, samples and positions about the
    grand mean, so that units keep their differences (kutsuna2019lcw, section 4.3); biases become 0. A layer called
    several times gets the factor that suits all its calls together, found by repeated sweeps. Frozen weights and
    biases, embeddings and fused recurrent layers are left alone; tied weights are scaled once.

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored; every initializer takes the same arguments.
        std: the standard deviation wanted.
        draw: None keeps the weights' directions; "normal" or "orthogonal" draws new ones first.
        skip: layer paths to leave alone.
        max_batches: how many batches are read; None reads all.
        generator: for `draw`: a seed, a generator or None.
        report: receives what was done.

    Returns:
        The model.

    Raises:
        ValueError: if a layer's output does not vary, or is not finite; it names the layer.
    """
    if not (math.isfinite(std) and std > 0):
        raise ValueError(f"std: expected a positive number, got {std}")
    if draw not in (None, "normal", "orthogonal"):
        raise ValueError(f"draw: expected None, 'normal' or 'orthogonal', got {draw!r}")
    inner = initialised(model)
    found = materialised(batches, inner, max_batches=max_batches)
    restore, restore_randomness = snapshot(inner), randomness_snapshot()
    buffers = [(buffer, buffer.clone()) for buffer in inner.buffers()]
    state = _State(std, frozenset(skip))
    try:
        if draw is not None:
            _draw(draw, generator, state, layers(inner, found[0]))
        result = _converge(inner, found, state)
    except BaseException:
        restore()
        raise
    finally:
        restore_randomness()
    for buffer, value in buffers:
        buffer.copy_(value)
    if report is not None:
        report(result)
    return model


@dataclass
class _State:  # shared by the sweeps' observers
    """What the sweeps know of each weight, by the key of its tensor."""

    std: float
    skip: frozenset[str]
    names: dict[int, str] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)
    first_share: dict[int, float] = field(default_factory=dict)  # deviation at the first call over the pooled one
    skipped: dict[str, str] = field(default_factory=dict)


def _converge(model: nn.Module, batches: list[Batch], state: _State) -> UnitVariance:
    for sweeps in range(1, _SWEEPS + 1):  # noqa: B007 - how many were needed is reported
        changed, pooled = _sweep(model, batches, state)
        off = [key for key, deviation in pooled.items() if not abs(deviation / state.std - 1) <= _TOLERANCE]
        if not changed and not off:
            break
    names = state.names
    return UnitVariance(
        scales={names[key]: scale for key, scale in state.scales.items()},
        deviations={names[key]: deviation for key, deviation in pooled.items()},
        skipped=state.skipped,
        unconverged=tuple(names[key] for key in off),
        sweeps=sweeps,
    )


def _sweep(model: nn.Module, batches: list[Batch], state: _State) -> tuple[bool, dict[int, float]]:
    """One pass over the batches; a weight is scaled at its first call, and the output of that call with it.

    Returns:
        Whether any weight was changed, and each weight's deviation over all its calls.
    """
    first: dict[int, float] = {}
    seen: dict[int, Moments] = {}
    changed = False

    def observe(call: LinearCall) -> None:
        nonlocal changed
        reason = _reason_to_skip(call, state)
        if reason is not None:
            state.skipped.setdefault(call.owner.layer, reason)
            return
        key = _key(call)
        state.names.setdefault(key, call.owner.layer)
        if key not in first:
            changed |= _scaled(call, key, state)
            first[key] = _deviation(call)
        new = moments(call.output.flatten())
        seen[key] = merged(seen[key], new) if key in seen else new

    with torch.no_grad(), watch(model, observe):
        for batch in batches:
            outputs_of(model, batch.inputs)
    pooled = {key: math.sqrt(float(m.variance)) for key, m in seen.items()}
    state.first_share = {key: first[key] / deviation for key, deviation in pooled.items() if deviation > 0}
    return changed, pooled


def _scaled(call: LinearCall, key: int, state: _State) -> bool:
    """Bring a weight's first call to its wanted deviation, output and all; whether anything was changed."""
    bias = call.bias
    had_bias = bias is not None and bias.requires_grad and bool(bias.any())
    if bias is not None and had_bias:
        shape = [-1] + [1] * (-call.unit_axis - 1)
        call.output.sub_(bias.reshape(shape))
        bias.zero_()
    deviation = _deviation(call)
    if not (math.isfinite(deviation) and deviation > 0):
        how = "does not vary" if deviation == 0 else "is not finite"
        raise ValueError(
            f"unit_variance_: layer {call.layer!r}: expected an output that varies, got one that {how} "
            f"(standard deviation {deviation}); draw its weight anew, or leave it alone with "
            f"skip=[{call.owner.layer!r}]"
        )
    scale = state.std * state.first_share.get(key, 1.0) / deviation
    if abs(scale - 1) < _TOLERANCE / 5:
        return had_bias
    _multiply(call, scale)
    state.scales[key] = state.scales.get(key, 1.0) * scale
    call.output.mul_(scale)
    return True


def _multiply(call: LinearCall, scale: float) -> None:
    """Scale a weight where it is kept: a parameter or a view of one in place, else through its parametrization."""
    owner = call.owner
    if parametrize.is_parametrized(owner.module, owner.attribute):
        setattr(owner.module, owner.attribute, getattr(owner.module, owner.attribute) * scale)
        reached = getattr(owner.module, owner.attribute)
        if not torch.allclose(reached, call.weight * scale, rtol=0.01, atol=1e-6 * float(reached.abs().max())):
            raise ValueError(
                f"unit_variance_: layer {owner.layer!r}: expected a weight that can be scaled, but its parametrization "
                f"does not follow an assignment; remove it, or leave the layer alone with skip=[{owner.layer!r}]"
            )
    else:
        call.weight.data.mul_(scale)


def _reason_to_skip(call: LinearCall, state: _State) -> str | None:
    owner = call.owner
    if call.kind in _SKIPPED:
        return _SKIPPED[call.kind]
    if owner.layer in state.skip:
        return "skipped as asked"
    kept = dict(owner.module.named_parameters())
    short = [name for name in kept if any(full == name or full.endswith(f".{name}") for full in owner.parameters)]
    if any(not kept[name].requires_grad for name in short):
        return "frozen"
    if owner.attribute not in kept and not parametrize.is_parametrized(owner.module, owner.attribute):
        return "computed by a hook before each forward pass"
    return None


def _key(call: LinearCall) -> int:
    """Tied weights share a key: the parameter's identity, or that of a parametrized module."""
    if parametrize.is_parametrized(call.owner.module, call.owner.attribute):
        return id(call.owner.module)
    return id(call.weight if call.weight._base is None else call.weight._base)


def _deviation(call: LinearCall) -> float:
    return math.sqrt(float(moments(call.output.flatten()).variance))


def _draw(draw: str, generator: Randomness, state: _State, found: list[Layer]) -> None:
    """Draw new weights, each from the stream of its name; half precision is drawn in float32."""
    stream = streams(generator)
    drawn: Callable[..., Tensor] = init.normal_ if draw == "normal" else init.orthogonal_
    for layer in found:
        usable = layer.kind not in _SKIPPED and not layer.frozen and layer.path not in state.skip
        if not usable:
            continue
        with torch.no_grad():
            weight: Tensor = getattr(layer.module, layer.attribute)
            fresh = torch.empty(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32))
            drawn(fresh, generator=stream(layer.parameters[0]))
            if layer.parametrized:
                setattr(layer.module, layer.attribute, fresh.to(weight))
            else:
                weight.copy_(fresh)
