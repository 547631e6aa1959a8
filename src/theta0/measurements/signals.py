"""Preactivations and their gradients, layer by layer: one forward and one backward pass per batch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from theta0._batches import Batch, checked_forward, load_batches, with_shapes
from theta0._calls import LinearCall, NonlinearityCall, watch
from theta0._losses import Loss, checked, loss_of
from theta0._models import unwrapped
from theta0._moments import Moments, merged, moments, pooled
from theta0._nonlinearities import is_bounded, is_saturated, slope
from theta0._records import Record
from theta0._state import preserve_state
from theta0.measurements.outputs import Pass, output_records
from theta0.measurements.parameters import gradient_agreement, norm, parameter_records
from theta0.measurements.time_steps import Steps, observe_steps

QUANTILES = {"q01": 0.01, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q99": 0.99}
_SAMPLED = 1024  # entries of a tensor from which its quantiles are read, evenly spaced


@dataclass
class _Place:  # grows batch by batch; a plain accumulator
    """What has been seen at one layer call."""

    parameters: tuple[str, ...]
    moments: dict[tuple[int, ...], Moments] = field(default_factory=dict)
    largest: float = 0.0
    nonfinite: int = 0
    entries: int = 0
    values: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    gradient_moments: Moments | None = None
    bias: Tensor | None = None
    alive: dict[int, Tensor] = field(default_factory=dict)
    saturated: dict[int, list[float]] = field(default_factory=dict)
    steps: Steps = field(default_factory=Steps)


def signals(
    model: nn.Module, batches: Iterable[Any], loss: Loss = None, *, max_batches: int | None = 4
) -> list[Record]:
    r"""Measure what flows forward and backward through every layer that applies a weight.

    For a layer with preactivations $z_{nip}$ (sample n, unit i, position p), with V the population variance:

    * `preactivation_mean`, `preactivation_variance` over all n, i, p; `preactivation_max`, the largest magnitude;
      `values_per_unit`, how many n, p there are;
    * `between_unit_variance` $V_i(E_{n,p} z)$, `within_unit_variance` its complement, and their share
      `shift_share` = between / (between + within): 0 is no activation shift, 1 a layer whose output is a constant
      vector (kutsuna2019lcw, Definition 2); `weight_shift_share`, the same without what the biases add;
    * `sample_share`: $E_{i,p} V_n(z)$ over the total variance: what is left of the signal when biases and shift carry
      the rest;
    * `gradient_variance` of the loss's gradient with respect to z, and its norm over all entries, `backward_norm`;
      `forward_factor` = V(z) over that of the previous
      layer and `backward_factor` = V(∇z) over that of the next, in execution order (kutsuna2019lcw, section 4);
    * `dead_share`: units with φ'(z) = 0 at the nonlinearity's own input on every sample and position;
      `saturated_share`: entries at which φ' of a bounded nonlinearity is below 5 % of its maximum;
    * of recurrent layers called on eight `steps` or more: `step_growth`, `step_gradient_share` (see `time_steps`);
    * `weight_gradient_norm` and `nonfinite_share`; quantiles of z and ∇z as `preactivation_q01` ….

    Per parameter: what `parameters.parameter_records` lists. For the whole network (layer ""): what
    `outputs.output_records` lists, and the `gradient_agreement` of the batches (see `parameters`).

    Args:
        model: any module; left bit-identical.
        batches: `(inputs, targets)` batches.
        loss: a name, a callable, or None where the model returns its own; without any loss only forward numbers.
        max_batches: how many batches are read; None reads all.

    Returns:
        The records, layers in execution order.
    """
    checked(loss)
    model = unwrapped(model)
    return signals_of(model, load_batches(batches, model, max_batches=max_batches), loss)


def signals_of(model: nn.Module, batches: list[Batch], loss: Loss) -> list[Record]:
    """As `signals`, on batches already loaded.

    Returns:
        The records.
    """
    places: dict[str, _Place] = {}
    gradients: dict[str, Tensor] = {}
    squares: list[float] = []
    passes: list[Pass] = []
    model = with_shapes(model, batches[0])
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with preserve_state(model), torch.enable_grad():
        for batch in batches:
            for place in places.values():
                place.steps.leaves.clear()
            value, outputs = _forward(model, batch, loss, places)
            passes.append(Pass(batch, tree_map(_detached, outputs), None if value is None else float(value.detach())))
            if value is not None and value.requires_grad and parameters:
                leaves = [leaf for place in places.values() for leaf in place.steps.leaves]
                found = torch.autograd.grad(value, [*parameters.values(), *leaves], allow_unused=True)
                known = {n: g.detach() for n, g in zip(parameters, found, strict=False) if g is not None}
                squares.append(math.fsum(norm(gradient) ** 2 for gradient in known.values()))
                for name, gradient in known.items():
                    _accumulate(gradients, name, gradient, len(batches))
    norms = {name: norm(gradient) for name, gradient in gradients.items()}
    records = [record for layer, place in places.items() for record in _place_records(layer, place)]
    records += _layer_gradients(places, norms) + _factors(records) + parameter_records(model, gradients)
    agreement = gradient_agreement(squares, math.fsum(value**2 for value in norms.values()))
    return _in_order(records, places) + output_records(passes, loss) + agreement


def _accumulate(gradients: dict[str, Tensor], name: str, gradient: Tensor, count: int) -> None:
    new = gradient.to(torch.promote_types(gradient.dtype, torch.float32)) / count
    gradients[name] = gradients[name].add_(new) if name in gradients else new


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _forward(model: nn.Module, batch: Batch, loss: Loss, places: dict[str, _Place]) -> tuple[Tensor | None, Any]:
    calls: dict[str, int] = {}

    def seen(call: LinearCall) -> None:
        _observe(places.setdefault(call.layer, _Place(call.owner.parameters)), call, batch.size)

    def before(call: NonlinearityCall) -> None:
        number = calls[call.after.layer] = calls.get(call.after.layer, -1) + 1
        _observe_slope(places[call.after.layer], number, call)

    with watch(model, seen, before):
        if loss is None and batch.targets is None:
            return None, checked_forward(model, batch)
        return loss_of(model, batch, loss)


def canonical(values: Shaped[Tensor, "..."], call: LinearCall, samples: int) -> Shaped[Tensor, "n p u"]:
    """A layer's output with its axes as (sample, position, unit).

    Where no axis has the batch's length, every row counts as a sample of its own.

    Returns:
        A view where possible.
    """
    values = values.movedim(call.unit_axis, -1)
    axis = call.sample_axis
    if axis == 1 and values.dim() == 2:  # attention flattens (length, batch) into rows
        values = values.reshape(-1, samples, values.shape[-1]) if len(values) % samples == 0 else values
    if axis is None or axis >= values.dim() - 1 or values.shape[axis] != samples:
        axis = next((a for a in range(min(2, values.dim() - 1)) if values.shape[a] == samples), None)
    if axis is None:
        rows = values.reshape(-1, values.shape[-1])
        per_sample = len(rows) // samples if len(rows) % samples == 0 and len(rows) else None
        return rows.reshape(samples, per_sample, -1) if per_sample else rows.unsqueeze(1)
    return values.movedim(axis, 0).flatten(1, -2) if values.dim() > 2 else values.unsqueeze(1)


def _observe(place: _Place, call: LinearCall, samples: int) -> None:
    output = call.output.detach()
    finite = torch.isfinite(output)
    place.entries += output.numel()
    if not bool(finite.all()):
        place.nonfinite += int((~finite).sum())
    values = canonical(output, call, samples)
    new, shape = moments(values), tuple(values.shape[1:])
    place.moments[shape] = merged(place.moments[shape], new) if shape in place.moments else new
    place.largest = max(place.largest, float(output.abs().max())) if output.numel() else place.largest
    place.values.append(_sampled(output))
    if call.kind == "recurrent":
        observe_steps(place.steps, call)
    place.bias = None if call.bias is None else call.bias.detach().double()
    if call.output.requires_grad:
        call.output.register_hook(lambda gradient: _observe_gradient(place, gradient))  # type: ignore[no-untyped-call]


def _observe_gradient(place: _Place, gradient: Tensor) -> None:
    new = moments(gradient.flatten())
    place.gradient_moments = new if place.gradient_moments is None else merged(place.gradient_moments, new)
    place.gradients.append(_sampled(gradient.detach()))


def _observe_slope(place: _Place, number: int, call: NonlinearityCall) -> None:
    z = call.input
    if not z.is_floating_point() or z.dim() == 0 or not z.numel():
        return
    derivative = slope(call.function, z, call.arguments, call.options)
    unit_axis = call.after.unit_axis if z.dim() == call.after.output.dim() else -1
    if z.dim() == 1:  # a value for each sample, as after squeeze or in a hinge loss, is one unit; else one sample
        derivative, unit_axis = derivative.unsqueeze(0 if call.after.output.dim() == 1 else 1), -1
    alive = (derivative != 0).movedim(unit_axis, -1).flatten(0, -2).any(0)
    known = place.alive.get(number)
    place.alive[number] = alive if known is None or known.shape != alive.shape else known | alive
    if is_bounded(call.name, call.arguments, call.options):
        share = float(is_saturated(call.name, derivative).float().mean())
        place.saturated.setdefault(number, []).append(share)


def _sampled(values: Tensor) -> Float[Tensor, "m"]:
    flat = values.flatten()
    return flat[:: max(1, flat.numel() // _SAMPLED)].double()


def _place_records(layer: str, place: _Place) -> list[Record]:
    per_unit = _pooled_positions(place)
    total = pooled(per_unit)
    between = float(per_unit.mean.var(correction=0))
    variance = float(total.variance)
    sample = sum(float(m.squares.sum()) for m in place.moments.values())
    entries = sum(m.count * m.mean.numel() for m in place.moments.values())
    values = {
        "preactivation_mean": float(total.mean),
        "preactivation_variance": variance,
        "between_unit_variance": between,
        "within_unit_variance": variance - between,
        "preactivation_max": place.largest,
        "values_per_unit": entries / max(1, per_unit.mean.numel()),
        "nonfinite_share": place.nonfinite / max(1, place.entries),
    }
    if variance > 0 or math.isnan(variance):
        values["shift_share"] = between / variance
        values["weight_shift_share"] = _weight_shift(per_unit.mean, place.bias) / variance
    if variance > 0 and any(m.count > 1 for m in place.moments.values()):
        values["sample_share"] = sample / entries / variance
    values |= _quantiles("preactivation", place.values)
    if place.gradient_moments is not None:
        backward = place.gradient_moments
        values["gradient_variance"] = float(backward.variance)
        values["backward_norm"] = math.sqrt(float(backward.squares + backward.count * backward.mean**2))
        values |= _quantiles("gradient", place.gradients)
    if place.alive:
        values["dead_share"] = max(float((~alive).double().mean()) for alive in place.alive.values())
    if place.steps.length:
        values["steps"], values["step_growth"] = float(place.steps.length), place.steps.growth
        if math.isfinite(place.steps.share):
            values["step_gradient_share"] = place.steps.share
    if place.saturated:
        values["saturated_share"] = max(sum(shares) / len(shares) for shares in place.saturated.values())
    return [Record(layer, quantity, value) for quantity, value in values.items()]


def _weight_shift(means: Tensor, bias: Tensor | None) -> float:
    """Variance between units of the mean preactivation that the weights make, without the bias."""
    matches = bias is not None and bias.shape == means.shape
    return float((means - bias if matches and bias is not None else means).var(correction=0))


def _pooled_positions(place: _Place) -> Moments:
    pooled_by_shape = [pooled(m, 0) for m in place.moments.values()]
    result = pooled_by_shape[0]
    for other in pooled_by_shape[1:]:
        result = merged(result, other)
    return result


def _quantiles(name: str, sampled: list[Tensor]) -> dict[str, float]:
    values = torch.cat(sampled)
    points = torch.tensor(list(QUANTILES.values()), dtype=torch.float64, device=values.device)
    found = torch.quantile(values, points) if values.numel() else points * math.nan
    return {f"{name}_{key}": float(value) for key, value in zip(QUANTILES, found, strict=True)}


def _layer_gradients(places: dict[str, _Place], norms: dict[str, float]) -> list[Record]:
    return [
        Record(layer, "weight_gradient_norm", math.hypot(*(norms[name] for name in place.parameters if name in norms)))
        for layer, place in places.items()
        if any(name in norms for name in place.parameters)
    ]


def _factors(records: list[Record]) -> list[Record]:
    """Ratios of variances between neighbours in execution order; none where the divisor is zero."""
    found: list[Record] = []
    for source, target, step in (("preactivation", "forward", 1), ("gradient", "backward", -1)):
        series = [(r.layer, r.value) for r in records if r.quantity == f"{source}_variance"][::step]
        found += [
            Record(layer, f"{target}_factor", value / previous)
            for (_, previous), (layer, value) in pairwise(series)
            if previous > 0
        ]
    return found


def _in_order(records: list[Record], places: dict[str, _Place]) -> list[Record]:
    order = {layer: number for number, layer in enumerate(places)}
    return sorted(records, key=lambda record: order.get(record.layer, len(order)))
