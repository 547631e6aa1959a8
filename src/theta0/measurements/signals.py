"""Preactivations and their gradients, layer by layer: one forward and one backward pass per batch."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from theta0._batches import Batch, checked_forward, prepared
from theta0._losses import Loss, applied, checked, loss_of, returned_loss
from theta0._models import StepInputs, main_output
from theta0._moments import (
    Number,
    SampleMoments,
    bad_entries,
    fetched,
    floats,
    larger,
    largest_magnitude,
    merged_samples,
    readable,
    real_entries,
    sample_moments,
    spread_of,
    squares_of,
)
from theta0._records import Record
from theta0._state import preserve_state
from theta0._state.tensor_files import TensorFile, belongs_in_a_file
from theta0._trace.calls import LinearCall, NonlinearityCall, described, trace_calls
from theta0._trace.interpreter import Handler
from theta0._trace.layouts import by_sample
from theta0._trace.slopes import can_saturate, saturated_share, slope
from theta0.measurements.attainable_loss import mark_sides
from theta0.measurements.inspection import Inspection, Inspectors, inspectors
from theta0.measurements.outputs import Pass, output_records
from theta0.measurements.parameters import gradient_agreement, parameter_records
from theta0.measurements.residual_stream import Ancestry, ResidualStream, residual_handler
from theta0.measurements.time_steps import Steps, observe_steps

QUANTILES = {"q01": 0.01, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q99": 0.99}
_SAMPLED = 1024  # entries of a tensor from which its quantiles are read
_TOGETHER = 2**14  # entries up to which gradients are added in one call; each call alone costs more than they do


@dataclass
class _Layer:  # grows batch by batch; a plain accumulator
    """What has been observed at one layer call."""

    parameters: tuple[str, ...]
    kind: str
    first: bool
    moments: dict[tuple[int, ...], SampleMoments] = field(default_factory=dict)
    largest: Number = 0.0
    nonfinite: Number = 0
    entries: int = 0
    values: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    gradient_spreads: list[tuple[int, Number, Number, Number]] = field(default_factory=list)
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
    * `weight_gradient_norm`, `relative_gradient`, that over the weights' own norm, and `nonfinite_share`;
      quantiles of z and ∇z as `preactivation_q01` ….

    Per parameter: what `parameters.parameter_records` lists. For the whole network (layer ""): what
    `outputs.output_records` lists, the norm of the loss's gradient with respect to the outputs, `output_gradient_norm`,
    and the `gradient_agreement` of the batches (see `parameters`).

    Args:
        model: any module; left bit-identical.
        batches: `(inputs, targets)` batches.
        loss: a name, a callable, or None where the model returns its own; without any loss only forward numbers.
        max_batches: how many batches are read; None reads all.

    Returns:
        The records, layers in execution order.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> table = {(r.layer, r.quantity): r.value for r in signals(model, batches, "cross_entropy")}
        >>> 0.1 < table["0", "preactivation_variance"] < 1
        True
    """
    checked(loss)
    return observed(*prepared(model, batches, max_batches), loss).records


@dataclass(frozen=True, eq=False)
class Observation:
    """What one forward and backward pass per batch shows.

    Inspection and residual stream are those of the first batch. `layer_types` are in words, by path, as `Linear 10×64`;
    `firsts` are the layers to whose inputs no other weight was applied.
    """

    records: list[Record]
    inspection: Inspection
    stream: ResidualStream
    layer_types: dict[str, str]
    firsts: frozenset[str]


def observed(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> Observation:
    """Watch one forward and one backward pass per batch, for all that a diagnosis asks of them."""
    layers: dict[str, _Layer] = {}
    watched, ancestry = inspectors(model), Ancestry()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    totals = _Totals(len(batches), _sums(parameters.values()))
    with preserve_state(model), torch.enable_grad():
        for batch in batches:
            first = batch is batches[0]
            handlers = (*watched.handlers, residual_handler(ancestry)) if first else ()
            value, outputs = _forward(model, batch, loss, layers, watched if first else None, handlers)
            known = None if value is None else float(value.detach())
            totals.passes.append(Pass(batch, tree_map(_detached, outputs), known))
            if value is not None and value.requires_grad and parameters:
                leaves = [x for layer in layers.values() for x in layer.steps.leaves]
                with _output_watched(main_output(outputs), totals):
                    _take_gradients(value, parameters, leaves, totals)
            del outputs, value
            for layer in layers.values():
                layer.steps.leaves.clear()
    types = {name: layer.kind for name, layer in layers.items()}
    firsts = frozenset(name for name, layer in layers.items() if layer.first)
    return Observation(_all_records(model, layers, totals, loss), watched.inspection, ancestry.stream, types, firsts)


@dataclass
class _Totals:  # grows batch by batch; a plain accumulator
    """What all batches add up to.

    `gradients` are those of the mean loss, `squares` the squared norms of each batch's, one a parameter,
    `output_squares` that of the gradient with respect to the outputs.
    """

    batches: int
    gradients: dict[str, Tensor] | TensorFile
    passes: list[Pass] = field(default_factory=list)
    squares: list[list[Number]] = field(default_factory=list)
    output_squares: list[Number] = field(default_factory=list)

    def add(self, gradients: Mapping[str, Tensor]) -> list[Number]:
        """Add one batch's gradients of some parameters.

        Returns:
            Numbers whose sum is their squared norm.
        """
        real = {name: real_entries(gradient) for name, gradient in gradients.items()}
        types = {name: torch.promote_types(gradient.dtype, torch.float32) for name, gradient in real.items()}
        if isinstance(self.gradients, TensorFile):
            for name, gradient in real.items():
                self.gradients.add(name, gradient, 1 / self.batches, types[name])
        else:
            known = [name for name in real if name in self.gradients]
            if known:
                sums = [self.gradients[name] for name in known]
                torch._foreach_add_(sums, [real[name] for name in known], alpha=1 / self.batches)
            for name in [name for name in real if name not in self.gradients]:
                self.gradients[name] = real[name].to(types[name]) / self.batches
        small = [gradient for gradient in real.values() if gradient.numel() <= _TOGETHER]
        norms = torch._foreach_norm(small, dtype=torch.float64) if small else ()
        large = [squares_of(gradient) for gradient in real.values() if gradient.numel() > _TOGETHER]
        return large + ([torch.stack(norms).square().sum()] if norms else [])


def _sums(parameters: Collection[Tensor]) -> dict[str, Tensor] | TensorFile:
    """Where gradients are added up: of a large model on a CPU in a file, so that they take no room beside a pass."""
    size = sum(p.numel() * max(4, p.element_size()) for p in parameters)
    on_cpu = all(p.device.type == "cpu" for p in parameters)
    return TensorFile() if on_cpu and belongs_in_a_file(size) else {}


@contextmanager
def _output_watched(output: Tensor | None, totals: _Totals) -> Iterator[None]:
    """Within the block, the squared norm of the gradient that arrives at the outputs is kept."""
    if output is None or not output.requires_grad:
        yield
        return
    handle = output.register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: totals.output_squares.append(squares_of(gradient.detach()))
    )
    try:
        yield
    finally:
        handle.remove()


def _take_gradients(
    value: Tensor, parameters: Mapping[str, nn.Parameter], leaves: Sequence[Tensor], totals: _Totals
) -> None:
    """Add a batch's gradients to those of the others, large ones as soon as they are there: no two sets are held."""
    squares: list[Number] = []

    def taker(name: str) -> Callable[[Tensor], Tensor]:
        def take(gradient: Tensor) -> Tensor:
            squares.extend(totals.add({name: gradient.detach()}))
            if gradient.layout != torch.strided:
                return gradient
            return gradient.new_zeros(()).expand(gradient.shape)  # in its place, for `grad` to return

        return take

    large = {name for name, p in parameters.items() if p.numel() > _TOGETHER}
    handles = [parameters[name].register_hook(taker(name)) for name in large]  # type: ignore[no-untyped-call]
    try:
        found = torch.autograd.grad(value, [*parameters.values(), *leaves], allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    small = {name: g for name, g in zip(parameters, found, strict=False) if g is not None and name not in large}
    for device in {gradient.device for gradient in small.values()}:  # of a model on several devices
        squares.extend(totals.add({name: g for name, g in small.items() if g.device == device}))
    totals.squares.append(squares)


def _all_records(model: nn.Module, layers: dict[str, _Layer], totals: _Totals, loss: Loss) -> list[Record]:
    layers = _brought(layers)
    whole = floats([squares_of(gradient) for gradient in totals.gradients.values()])
    norms = {name: math.sqrt(square) for name, square in zip(totals.gradients, whole, strict=True)}
    of_batches = iter(floats([square for batch in totals.squares for square in batch]))
    squares = [math.fsum(next(of_batches) for _ in batch) for batch in totals.squares]
    records = [record for name, layer in layers.items() for record in _layer_records(name, layer)]
    of_parameters = parameter_records(model, totals.gradients, norms)
    sizes = {r.layer: r.value for r in of_parameters if r.quantity == "value_rms"}
    sizes = {name: sizes[name] * math.sqrt(p.numel()) for name, p in model.named_parameters() if name in sizes}
    records += _layer_gradients(layers, norms, sizes) + _factors(records) + of_parameters
    agreement = gradient_agreement(squares, math.fsum(value**2 for value in norms.values()))
    at_outputs = math.sqrt(math.fsum(floats(totals.output_squares)))
    behind = [Record("", "output_gradient_norm", at_outputs)] if totals.output_squares else []
    return _in_order(records, layers) + output_records(totals.passes, loss) + behind + agreement


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _forward(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    layers: dict[str, _Layer],
    watched: Inspectors | None,
    handlers: Sequence[Handler],
) -> tuple[Tensor | None, Any]:
    calls: dict[str, int] = {}

    def linear(call: LinearCall) -> None:
        if call.layer not in layers:
            layers[call.layer] = _Layer(call.owner.parameters, described(call), call.first)
        _observe(layers[call.layer], call, batch.size)
        if watched is not None:
            watched.linear(call)

    def before(call: NonlinearityCall) -> None:
        number = calls[call.after.layer] = calls.get(call.after.layer, -1) + 1
        _observe_slope(layers[call.after.layer], number, call)

    with trace_calls(model, linear, before, *handlers) as interpreter:
        if loss is None:
            outputs = checked_forward(model, batch)
            if returned_loss(outputs) is None and batch.targets is None and not isinstance(batch.inputs, StepInputs):
                return None, outputs
            value = applied(None, outputs, batch)
            return (value, outputs) if watched is None else watched.finished(interpreter, value, outputs)
        if watched is None:
            return loss_of(model, batch, loss)
        compared, handler = watched.inspection.compared, watched.comparison

        def marked(outputs: Any, targets: Any) -> Tensor:
            mark_sides(interpreter, handler, compared, outputs, targets)
            return applied(loss, outputs, batch)

        return watched.finished(interpreter, *loss_of(model, batch, marked))


def _observe(layer: _Layer, call: LinearCall, samples: int) -> None:
    output = call.output.detach()
    new = sample_moments(*by_sample(output, call.unit_axis, call.sample_axis, samples))
    shape = tuple(new.mean.shape)
    layer.moments[shape] = merged_samples(layer.moments[shape], new) if shape in layer.moments else new
    layer.entries += output.numel()
    if isinstance(new.squares, Tensor) or not math.isfinite(new.squares):
        layer.nonfinite = layer.nonfinite + bad_entries(output)
    layer.largest = larger(layer.largest, largest_magnitude(output))
    layer.values.append(_sampled(output))
    if call.kind == "recurrent":
        observe_steps(layer.steps, call)
    layer.bias = None if call.bias is None else call.bias.detach().double()
    if call.output.requires_grad:
        made = _made(call.output)
        made.register_hook(lambda gradient: _observe_gradient(layer, gradient))  # type: ignore[no-untyped-call]


def _made(output: Tensor) -> Tensor:
    """The tensor that a function computed, where its result is a view of all of it, as a linear layer's is of rows.

    A change in place, as of `x += shortcut`, takes a view out of the graph, and what waits there for a gradient too.
    """
    base = output._base
    return output if base is None or not base.requires_grad or base.numel() != output.numel() else base


def _observe_gradient(layer: _Layer, gradient: Tensor | None) -> None:
    if gradient is None:  # of a function of several results, none of which arrives by this one
        return
    gradient = gradient.detach()
    layer.gradient_spreads.append((gradient.numel(), *spread_of(gradient)))
    layer.gradients.append(_sampled(gradient))


def _observe_slope(layer: _Layer, number: int, call: NonlinearityCall) -> None:
    z = call.input.detach()
    if not z.is_floating_point() or z.dim() == 0 or not z.numel():
        return
    unit_axis = call.after.unit_axis if z.dim() == call.after.dim else -1
    if z.dim() == 1:  # a value for each sample, as after squeeze or in a hinge loss, is one unit; else one sample
        z, unit_axis = z.unsqueeze(0 if call.after.dim == 1 else 1), -1
    saturates = can_saturate(call.spec, call.arguments, call.options)
    derivative = slope(call.function, z, call.arguments, call.options) if saturates else None
    if call.spec.activation:  # what a clamp holds fast is no unit
        alive = _alive(call, z, unit_axis, derivative)
        known = layer.alive.get(number)
        layer.alive[number] = alive if known is None or known.shape != alive.shape else known | alive
    if derivative is not None:
        share = saturated_share(call.spec, z, derivative, call.arguments, call.options)
        layer.saturated.setdefault(number, []).append(share)


def _alive(call: NonlinearityCall, z: Tensor, unit_axis: int, derivative: Tensor | None) -> Tensor:
    """Which units have a nonzero slope at some sample and position; by their extreme values where these say."""
    others = [axis for axis in range(z.dim()) if axis != z.dim() + unit_axis]
    if call.spec.alive and others and readable(z):
        extreme = z.amax(others) if call.spec.alive == "above" else z.amin(others)
        if not bool(extreme.isnan().any()):
            return slope(call.function, extreme, call.arguments, call.options) != 0
    full = slope(call.function, z, call.arguments, call.options) if derivative is None else derivative
    return (full != 0).movedim(unit_axis, -1).flatten(0, -2).any(0)


def _sampled(values: Tensor) -> Tensor:
    """Entries drawn from a fixed generator; evenly spaced ones would all lie at one unit or position."""
    if values.numel() <= _SAMPLED:
        return values.flatten().clone()  # what comes next may overwrite it
    return values.take(_drawn(values.numel()).to(values.device))


@lru_cache(maxsize=256)
def _drawn(entries: int) -> Tensor:
    return torch.randint(entries, (_SAMPLED,), generator=torch.Generator().manual_seed(entries))


def _brought(layers: Mapping[str, _Layer]) -> dict[str, _Layer]:
    """What was observed on other devices, by one copy, so that no number of a layer is waited for."""
    seen: dict[int, Tensor] = {}

    def noted(value: Any) -> Any:
        if isinstance(value, Tensor):
            seen[id(value)] = value
        return value

    for layer in layers.values():
        _moved(layer, noted)
    if all(readable(tensor) for tensor in seen.values()):
        return dict(layers)
    here = dict(zip(seen, fetched(list(seen.values())), strict=True))
    return {name: _moved(layer, lambda value: here.get(id(value), value)) for name, layer in layers.items()}


def _moved(layer: _Layer, at: Callable[[Any], Any]) -> _Layer:
    """A layer's observations with each tensor replaced."""
    return replace(
        layer,
        moments={shape: replace(m, mean=at(m.mean), squares=at(m.squares)) for shape, m in layer.moments.items()},
        largest=at(layer.largest),
        nonfinite=at(layer.nonfinite),
        values=[at(values) for values in layer.values],
        gradients=[at(values) for values in layer.gradients],
        gradient_spreads=[(count, at(a), at(b), at(c)) for count, a, b, c in layer.gradient_spreads],
        bias=at(layer.bias),
        alive={number: at(alive) for number, alive in layer.alive.items()},
    )


def _layer_records(name: str, layer: _Layer) -> list[Record]:
    by_unit = _by_unit(layer)
    variance = _variance(by_unit)
    means = by_unit.mean.flatten()
    between = float(means.var(correction=0))
    entries = sum(m.entries for m in layer.moments.values())
    values = {
        "preactivation_mean": float(means.mean()),
        "preactivation_variance": variance,
        "between_unit_variance": between,
        "within_unit_variance": variance - between,
        "preactivation_max": float(layer.largest),
        "values_per_unit": entries / max(1, means.numel()),
        "nonfinite_share": float(layer.nonfinite) / max(1, layer.entries),
    }
    if variance > 0 or math.isnan(variance):
        values["shift_share"] = between / variance
        values["weight_shift_share"] = _weight_shift(means, layer.bias) / variance
    if variance > 0 and any(m.count > 1 for m in layer.moments.values()):
        values["sample_share"] = float(sum(m.squares for m in layer.moments.values())) / entries / variance
    values |= _quantiles("preactivation", layer.values) | _backward_values(layer)
    if layer.alive:
        values["dead_share"] = max(float((~alive).double().mean()) for alive in layer.alive.values())
    if layer.steps.length:
        values["steps"], values["step_growth"] = float(layer.steps.length), layer.steps.growth
        if math.isfinite(layer.steps.share):
            values["step_gradient_share"] = layer.steps.share
    if layer.saturated:
        values["saturated_share"] = max(sum(shares) / len(shares) for shares in layer.saturated.values())
    return [Record(name, quantity, value) for quantity, value in values.items()]


def _backward_values(layer: _Layer) -> dict[str, float]:
    """Of the gradients of all passes: spreads are merged like moments, with the deviations of the means."""
    passes = [(count, float(a), float(b), float(c)) for count, a, b, c in layer.gradient_spreads]
    entries = sum(count for count, *_ in passes)
    if not entries:
        return {}
    mean = sum(count * mean for count, mean, _, _ in passes) / entries
    squares = sum(count * (variance + (own - mean) ** 2) for count, own, variance, _ in passes)
    return {
        "gradient_variance": squares / entries,
        "backward_norm": math.sqrt(sum(count * mean_square for count, _, _, mean_square in passes)),
        **_quantiles("gradient", layer.gradients),
    }


def _variance(moments: SampleMoments) -> float:
    """The variance over all entries."""
    means = moments.mean
    between = float((means - means.mean()).square().sum()) * moments.count
    return (float(moments.squares) + between) / moments.entries


def _weight_shift(means: Tensor, bias: Tensor | None) -> float:
    """Variance between units of the mean preactivation that the weights make, without the bias."""
    matches = bias is not None and bias.shape == means.shape
    return float((means - bias if matches and bias is not None else means).var(correction=0))


def _by_unit(layer: _Layer) -> SampleMoments:
    by_unit = [m.units for m in layer.moments.values()]
    result = by_unit[0]
    for other in by_unit[1:]:
        result = merged_samples(result, other)
    return result


def _quantiles(name: str, sampled: list[Tensor]) -> dict[str, float]:
    """As `torch.quantile`, sorted in float32 where the values are; numpy does that in a fifth of the time."""
    joined = torch.cat(sampled)
    values = np.sort(joined.to(torch.promote_types(joined.dtype, torch.float32)).numpy(force=True))
    if not len(values) or np.isnan(values[-1]):  # NaN comes last
        return {f"{name}_{key}": math.nan for key in QUANTILES}
    found = {}
    for key, share in QUANTILES.items():
        whole, part = divmod(share * (len(values) - 1), 1)
        low, high = float(values[int(whole)]), float(values[min(int(whole) + 1, len(values) - 1)])
        found[f"{name}_{key}"] = low + part * (high - low) if part else low
    return found


def _layer_gradients(layers: dict[str, _Layer], norms: Mapping[str, float], sizes: Mapping[str, float]) -> list[Record]:
    found: list[Record] = []
    for name, layer in layers.items():
        known = [p for p in layer.parameters if p in norms]
        if known:
            gradient, size = math.hypot(*(norms[p] for p in known)), math.hypot(*(sizes.get(p, 0.0) for p in known))
            found.append(Record(name, "weight_gradient_norm", gradient))
            found += [Record(name, "relative_gradient", gradient / size)] if size > 0 else []
    return found


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


def _in_order(records: list[Record], layers: dict[str, _Layer]) -> list[Record]:
    order = {layer: number for number, layer in enumerate(layers)}
    return sorted(records, key=lambda record: order.get(record.layer, len(order)))
