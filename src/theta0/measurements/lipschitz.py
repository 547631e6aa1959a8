"""Upper bounds of a network's Lipschitz constant, composed along its forward pass from the norms of its pieces."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from theta0._records import Record
from theta0._trace.owners import ROOT
from theta0._trace.slopes import largest_slope
from theta0.measurements.path_sums import absolute, batch_norm_scale, operand_free
from theta0.measurements.signal_flow import SignalStep, flow, ones_for

_LARGEST_SYMBOL = 2**24  # entries of a convolution's symbol beyond which a looser bound is taken

Gains = Float[Tensor, " 3"]  # by spectral, Frobenius and L1 norms; float64


@dataclass(frozen=True)
class LipschitzBounds:
    """Four upper bounds of ‖f‖_Lip between Euclidean norms (furusho2020thesis, Theorems 4 and 5).

    Attributes:
        spectral: from the spectral norms of the pieces.
        frobenius: from their Frobenius norms, the thesis's ‖W‖₂; never below `spectral`.
        l1: from their entrywise L1 norms; never below `frobenius`.
        path: the path norm.
        layers: `spectral_norm`, `frobenius_norm` and `l1_norm` of every linear map, in execution order.
    """

    spectral: float
    frobenius: float
    l1: float
    path: float
    layers: tuple[Record, ...]


def lipschitz_bounds(model: nn.Module, example: Any = None) -> LipschitzBounds:
    r"""Bounds of the Lipschitz constant of a model in evaluation mode, biases being of no account.

    Along a chain the norms of the linear maps multiply, $\|f\|_{Lip} \le \prod_l \|W^l\|$; where branches are summed
    their bounds add, where they are joined the squares add, so that residual networks are bounded too. A convolution
    counts as the matrix that it is on inputs of the example's size: its Frobenius and L1 norms are exact; its spectral
    norm is bounded by the largest singular value of its symbol at $n + d(k-1)$ frequencies an axis (the operator is a
    block of the circulant one of that size; exact up to the borders at stride 1), or for very large ones by
    $\sqrt{\prod k}\,\|K\|_2$ of the unrolled kernel. Elementwise factors, batch normalisation and pooling enter all
    three products by a bound of their spectral norm.

        >>> chain = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
        >>> _ = nn.init.constant_(chain[0].weight, 2.0), nn.init.constant_(chain[2].weight, -3.0)
        >>> bounds = lipschitz_bounds(chain)
        >>> bounds.spectral, bounds.l1, bounds.path
        (6.0, 6.0, 6.0)

    A function whose gain is not known raises a ValueError that names it and the module.

    Args:
        model: any module made of linear maps, convolutions, sums, joins, pooling and elementwise nonlinearities.
        example: a batch of inputs that gives the sizes; needed unless the model begins with `nn.Linear` on vectors.

    Returns:
        The bounds.
    """
    records: list[Record] = []

    def rule(step: SignalStep) -> tuple[Any, Gains]:
        result, _ = absolute(step)
        return result, _gains(step, result, records)

    with torch.no_grad():
        outputs, gains = flow(model, ones_for(model, example), rule, torch.ones(3, dtype=torch.float64))
    spectral, frobenius, l1 = gains.tolist()
    return LipschitzBounds(spectral, frobenius, l1, float(outputs.sum(dtype=torch.float64)), tuple(records))


def _gains(step: SignalStep, result: Any, records: list[Record]) -> Gains:
    entering: list[Gains] = [note for _, note in step.signals]
    if step.role in ("add", "subtract"):
        return _sum_of(step, result)
    if step.role == "join":
        parts = [part for part in tree_flatten((step.arguments, step.options))[0] if step.carries(part)]
        return torch.stack([_note(step, part).square() for part in parts]).sum(0).sqrt()
    if step.role == "multilinear":
        norms = _matrix_norms(step)
        names = ("spectral_norm", "frobenius_norm", "l1_norm")
        records.extend(Record(step.path or ROOT, n, v) for n, v in zip(names, norms.tolist(), strict=True))
        return entering[0] * norms
    return entering[0] * _factor(step)


def _sum_of(step: SignalStep, result: Tensor) -> Gains:
    alpha = abs(float(step.options.get("alpha", 1)))
    total = torch.zeros(3, dtype=torch.float64)
    operands = [*step.arguments[:2], *([step.options["other"]] if "other" in step.options else [])]
    for place, operand in enumerate(operands):
        if step.carries(operand):
            copies = math.sqrt(result.numel() / operand.numel())
            total = total + _note(step, operand).cpu() * copies * (alpha if place else 1.0)
    return total


def _factor(step: SignalStep) -> float:
    """A bound of the spectral norm of a piece that is no weight."""
    if step.role == "nonlinearity":
        return float(largest_slope(step.spec, step.arguments, step.options))
    if step.role == "batch_norm":
        return float(batch_norm_scale(step).max())
    if step.role in ("dropout", "negate"):
        return 1.0
    if step.role in ("multiply", "divide"):
        (factor,) = (abs(a) for a in step.arguments[:2] if not step.carries(a))
        size = float(factor.min() if step.role == "divide" else factor.max()) if isinstance(factor, Tensor) else factor
        return 1 / size if step.role == "divide" else float(size)
    rows, columns = _largest_sums(lambda x: absolute(_with(step, x))[0], step.signals[0][0])
    # The largest of a window moves by no more than the root of the window's squared moves: no row sum enters.
    return math.sqrt(columns) if "max_pool" in step.role else math.sqrt(rows * columns)


def _largest_sums(function: Callable[[Tensor], Any], like: Tensor) -> tuple[float, float]:
    """Largest row and column sum of a linear function with nonnegative coefficients."""
    with torch.enable_grad():
        x = torch.ones_like(like, dtype=torch.float64).requires_grad_()
        parts = [part for part in tree_flatten(function(x))[0] if isinstance(part, Tensor)]
        (columns,) = torch.autograd.grad(torch.stack([part.sum() for part in parts]).sum(), x)
    return max(float(part.max()) for part in parts if part.numel()), float(columns.max())


def _with(step: SignalStep, signal: Tensor) -> SignalStep:
    old = step.signals[0][0]

    def swapped(value: Any) -> Any:
        if value is old:
            return signal
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    arguments, options = tree_map(swapped, step.arguments), tree_map(swapped, step.options)
    return replace(step, arguments=arguments, options=options, signals=((signal, None),))


def _matrix_norms(step: SignalStep) -> Gains:
    ones = torch.ones_like(step.signals[0][0], dtype=torch.float64)
    probed = _with(step, ones)

    def total(change: Callable[[Tensor], Tensor]) -> float:
        arguments, options = operand_free(probed, change)
        return float(step.function(*arguments, **options).sum())

    frobenius, l1 = math.sqrt(total(lambda w: w * w)), total(abs)
    spectral = min(_spectral_norm(probed, ones), frobenius)
    return torch.tensor([spectral, frobenius, max(l1, frobenius)], dtype=torch.float64)


def _spectral_norm(step: SignalStep, ones: Tensor) -> float:
    operands = [*step.arguments, *step.options.values()]
    weight = next(a for a in operands if isinstance(a, Tensor) and a is not ones)
    if step.spec.kind.startswith("conv"):
        return _convolution_norm(step, weight, ones)
    name = getattr(step.function, "__name__", "")
    if weight.dim() == 2 and name != "einsum":
        return float(torch.linalg.matrix_norm(weight, 2))
    rows, columns = _largest_sums(lambda x: absolute(_with(step, x))[0], ones)
    return math.sqrt(rows * columns)


def _convolution_norm(step: SignalStep, kernel: Tensor, ones: Tensor) -> float:
    transposed = step.spec.kind == "conv_transpose"
    names = ("stride", "padding", *(("output_padding", "groups", "dilation") if transposed else ("dilation", "groups")))
    given = {**dict(zip(names, step.arguments[3:], strict=False)), **step.options}
    groups, axes = int(given.get("groups", 1)), kernel.dim() - 2
    dilation = given.get("dilation", 1)
    dilations = [dilation] * axes if isinstance(dilation, int) else list(dilation) * (axes if len(dilation) == 1 else 1)
    image = absolute(step)[0] if transposed else ones  # the larger side of a transposed convolution is its output
    reach = [d * (k - 1) for d, k in zip(dilations, kernel.shape[2:], strict=True)]
    sizes = [n + r for n, r in zip(image.shape[-axes:], reach, strict=True)]
    grouped = kernel.reshape(groups, -1, *kernel.shape[1:])
    loose = float(torch.linalg.matrix_norm(grouped.flatten(2), 2).max()) * math.sqrt(math.prod(kernel.shape[2:]))
    if kernel.shape[0] * kernel.shape[1] * math.prod(sizes) > _LARGEST_SYMBOL:
        return loose
    spread = grouped.new_zeros(*grouped.shape[:3], *(r + 1 for r in reach))
    apart: tuple[Any, ...] = (..., *(slice(None, None, d) for d in dilations))
    spread[apart] = grouped
    symbol = torch.fft.rfftn(spread, s=sizes, dim=tuple(range(-axes, 0))).flatten(3)
    exact = float(torch.linalg.matrix_norm(symbol.permute(0, 3, 1, 2), 2).max())
    return min(exact, loose) if not transposed else exact


def _note(step: SignalStep, signal: Tensor) -> Gains:
    note: Gains = next(note for tensor, note in step.signals if tensor is signal)
    return note
