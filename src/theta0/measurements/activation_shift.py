"""Activation shift: a neuron's mean preactivation depends on the angle between its weights and the mean activation."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.nn import functional as F

from theta0._batches import checked_forward, prepared
from theta0._records import Record
from theta0._state import preserve_state
from theta0._trace.calls import LinearCall, trace_calls
from theta0._trace.layers import geometry


@dataclass(frozen=True, eq=False)
class NeuronShift:
    r"""The two sides of $E[w·a + b] = ‖w‖ ‖μ‖ \cos∠(w, μ) + b$ for every neuron of one layer, μ = E[a].

    For convolutions a neuron is an output channel and a the unfolded patch; for transposed ones, which are convolutions
    of an input spread out by zeros, the patch with these zeros. All in float64.

    Attributes:
        observed: mean preactivation over samples and positions.
        predicted: the right-hand side.
        weight_norm: ‖w‖.
        input_mean_norm: ‖μ‖ (of the neuron's group).
        cosine: of the angle between w and μ; 0 where one of them is zero.
        bias: b.
        variance: of the preactivation over samples, positions and neurons.
    """

    observed: Float64[Tensor, " units"]
    predicted: Float64[Tensor, " units"]
    weight_norm: Float64[Tensor, " units"]
    input_mean_norm: Float64[Tensor, " units"]
    cosine: Float64[Tensor, " units"]
    bias: Float64[Tensor, " units"]
    variance: float


def neuron_shifts(model: nn.Module, batches: Iterable[Any], *, max_batches: int | None = 4) -> dict[str, NeuronShift]:
    """Measure the activation shift of every neuron (kutsuna2019lcw, Proposition 2).

    Linear, Conv1d-3d and ConvTranspose1d-3d layers and matrix products by a parameter are measured; embeddings and
    recurrent layers are not, since their units have no one input vector.

    Args:
        model: any module; left bit-identical.
        batches: batches with or without targets.
        max_batches: how many are read; None reads all.

    Returns:
        Layers in execution order.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> list(neuron_shifts(model, batches))
        ['0', '2']
    """
    model, found = prepared(model, batches, max_batches)
    sums: dict[str, _Sums] = {}

    def seen(call: LinearCall) -> None:
        if call.kind in _INPUTS:
            new = _sums(call)
            sums[call.layer] = new if call.layer not in sums else sums[call.layer].plus(new)

    with preserve_state(model), torch.no_grad():
        for batch in found:
            with trace_calls(model, seen):  # one for each pass: it counts the calls
                checked_forward(model, batch)
    return {layer: _shift(total) for layer, total in sums.items()}


def activation_shift(model: nn.Module, batches: Iterable[Any], *, max_batches: int | None = 4) -> list[Record]:
    """Summaries of `neuron_shifts` per layer.

    Quantities: `shift_mean` and `shift_spread` (mean and standard deviation over neurons of the mean preactivation),
    `shift_share` (variance between neurons' means over the total preactivation variance), `shift_cosine` (root mean
    square cosine between weights and mean input) and `input_mean_norm` (‖μ‖).

    Args:
        model: any module; left bit-identical.
        batches: batches with or without targets.
        max_batches: how many are read; None reads all.

    Returns:
        The records, layers in execution order.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 3))
        >>> shares = {r.layer: r.value for r in activation_shift(model, batches) if r.quantity == "shift_share"}
        >>> shares["0"] < shares["2"]  # inputs have mean 0, sigmoids have not
        True
    """
    records: list[Record] = []
    for layer, shift in neuron_shifts(model, batches, max_batches=max_batches).items():
        between = float(shift.observed.var(correction=0))
        values = {
            "shift_mean": float(shift.observed.mean()),
            "shift_spread": between**0.5,
            "shift_cosine": float(shift.cosine.square().mean().sqrt()),
            "input_mean_norm": float(shift.input_mean_norm.mean()),
        }
        if shift.variance > 0:
            values["shift_share"] = between / shift.variance
        records += [Record(layer, quantity, value) for quantity, value in values.items()]
    return records


@dataclass(frozen=True, eq=False)
class _Sums:
    """Totals over rows (samples and positions) of one layer's calls."""

    rows: int
    inputs: Float64[Tensor, "groups fan_in"]
    weight: Float64[Tensor, "units fan_in"]
    bias: Float64[Tensor, " units"]
    outputs: Float64[Tensor, " units"]
    mean: float
    variance: float

    def plus(self, other: "_Sums") -> "_Sums":
        rows = self.rows + other.rows
        step = other.mean - self.mean
        variance = (self.variance * self.rows + other.variance * other.rows) / rows
        variance += step**2 * self.rows * other.rows / rows**2
        mean = self.mean + step * other.rows / rows
        inputs, outputs = self.inputs + other.inputs, self.outputs + other.outputs
        return _Sums(rows, inputs, self.weight, self.bias, outputs, mean, variance)


def _sums(call: LinearCall) -> _Sums:
    z = call.output.detach().double().movedim(call.unit_axis, -1)
    z = z.reshape(-1, z.shape[-1])
    inputs, weight = _INPUTS[call.kind](call, call.input.detach(), call.weight.detach().double())
    bias = torch.zeros_like(z[0]) if call.bias is None else call.bias.detach().double()
    variance, mean = torch.var_mean(z, correction=0)
    return _Sums(len(z), inputs, weight, bias, z.sum(0), float(mean), float(variance))


_Summed = tuple[Float64[Tensor, "groups fan_in"], Float64[Tensor, "units fan_in"]]  # inputs, and weights alike


def _row_sums(call: LinearCall, a: Tensor, weight: Tensor) -> _Summed:
    return a.double().reshape(-1, a.shape[-1]).sum(0)[None], weight.T if call.kind == "matmul" else weight


def _patch_sums(call: LinearCall, a: Tensor, weight: Tensor) -> _Summed:
    """Sums of unfolded patches, one kernel offset at a time, so that no patch is stored."""
    kernel, axes = weight.shape[2:], weight.dim() - 2
    a = a if a.dim() == axes + 2 else a[None]
    positions = call.output.shape[-axes:]
    stride, padding, dilation, groups = geometry(call, axes, kernel)
    a = F.pad(a, [p for pair in reversed(padding) for p in pair])
    sums = []
    for offset in _offsets(kernel):
        window: tuple[slice, ...] = (slice(None), slice(None))
        for o, s, d, p in zip(offset, stride, dilation, positions, strict=True):
            window += (slice(o * d, o * d + s * (p - 1) + 1, s),)
        sums.append(a[window].double().transpose(0, 1).flatten(1).sum(1))
    return torch.stack(sums, 1).reshape(groups, -1), weight.flatten(1)


def _spread_sums(call: LinearCall, a: Tensor, weight: Tensor) -> _Summed:
    """Of a transposed convolution: for each kernel offset, the sum of inputs that land inside the output by it."""
    kernel, axes = weight.shape[2:], weight.dim() - 2
    a = a if a.dim() == axes + 2 else a[None]
    sizes = zip(a.shape[2:], call.output.shape[-axes:], strict=True)
    stride, padding, dilation, groups = geometry(call, axes, kernel)
    limits = list(zip(sizes, stride, padding, dilation, strict=True))
    sums = []
    for offset in _offsets(kernel):
        window: tuple[slice, ...] = (slice(None), slice(None))
        for o, ((inputs, outputs), s, (p, _), d) in zip(offset, limits, strict=True):
            first, behind = -((o * d - p) // s), -((o * d - p - outputs) // s)  # 0 ≤ input · s + o · d - p < outputs
            window += (slice(max(first, 0), max(min(behind, inputs), 0)),)
        sums.append(a[window].double().transpose(0, 1).flatten(1).sum(1))
    by_group = torch.unflatten(weight, 0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return torch.stack(sums, 1).reshape(groups, -1), by_group.flatten(1)


def _offsets(kernel: torch.Size) -> list[list[int]]:
    offsets: list[list[int]] = (
        torch.cartesian_prod(*(torch.arange(k) for k in kernel)).reshape(-1, len(kernel)).tolist()
    )
    return offsets


_INPUTS = {"linear": _row_sums, "matmul": _row_sums, "conv": _patch_sums, "conv_transpose": _spread_sums}


def _shift(total: _Sums) -> NeuronShift:
    groups = len(total.inputs)
    mu = (total.inputs / total.rows).repeat_interleave(len(total.weight) // groups, 0)
    norms, mean_norms = total.weight.norm(dim=1), mu.norm(dim=1)
    products = norms * mean_norms
    cosine = torch.where(products > 0, (total.weight * mu).sum(1) / products.clamp_min(1e-300), 0.0)
    predicted = products * cosine + total.bias
    observed = total.outputs / total.rows
    return NeuronShift(observed, predicted, norms, mean_norms, cosine, total.bias, total.variance)
