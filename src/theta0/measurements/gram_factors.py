"""One use of a parameter → the factors of its per-sample gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from theta0._trace.calls import LinearCall
from theta0._trace.layers import geometry
from theta0._trace.layouts import Layout
from theta0.measurements.parameter_uses import Use


@dataclass(frozen=True, eq=False)
class Outer:
    """Per-sample gradients of a matrix, each a sum of outer products over positions t: Σ_t left_t right_tᵀ.

    The matrix may be block-diagonal, one block per group of a convolution; its gradients are never formed here.

    Attributes:
        start: the first sample's number in the Gram matrix.
        left: the factor that runs over the matrix's rows, `(sample, position, group, row)`; for look-ups the row
            numbers themselves, `(sample, position)`, -1 where nothing is looked up.
        right: for samples from a to b, the factor that runs over columns, `(sample, position, group, column)`.
        columns: how many columns a block has.
        offset: which row of the parameter the first row is.
        scale: what the outer products are to be multiplied by; the factors themselves are near 1, since products of
            two vanishing gradients would underflow.
    """

    start: int
    left: Float[Tensor, "n t g rows"] | Int[Tensor, "n t"]
    right: Callable[[int, int], Float[Tensor, "n t g columns"]]
    columns: int
    offset: int
    scale: float

    @property
    def looked_up(self) -> bool:
        """Whether the left factors are row numbers."""
        return self.left.dim() == 2

    @property
    def samples(self) -> int:
        """How many samples."""
        return len(self.left)

    @property
    def positions(self) -> int:
        """How many outer products a sample has."""
        return self.left.shape[1]

    @property
    def groups(self) -> int:
        """How many blocks the matrix has."""
        return 1 if self.looked_up else self.left.shape[2]

    @property
    def rows(self) -> int:
        """How many rows a block has; of look-ups 1, for they touch one at a time."""
        return 1 if self.looked_up else self.left.shape[3]


@dataclass(frozen=True, eq=False)
class Explicit:
    """Per-sample gradients of a part of a parameter, written out.

    `values` are near 1 and to be multiplied by `scale`; `entries` are those of the flat parameter, None for all in
    order. `start` is the first sample's number in the Gram matrix.
    """

    start: int
    values: Float[Tensor, "n entries"]
    entries: Int[Tensor, " entries"] | None
    scale: float


Factors = Outer | Explicit


def factors_of(
    use: Use, gradient: Tensor, scale: float, parameter: Tensor, places: Layout, start: int
) -> Factors | None:
    """The per-sample gradients of one use, as factors; None where this kind of use has no short form.

    `gradient` is that of the sum of the sample losses at the use's output, to be multiplied by `scale`; `start` is the
    first sample's number in the Gram matrix.
    """
    if use.call is None:
        return _elementwise(use, gradient, parameter, places, start, scale)
    if use.call.kind == "conv":
        return _convolution(use.call, gradient, parameter, places, start, scale)
    place = _placement(use.view, parameter)
    if place is None or use.call.kind not in ("linear", "matmul", "embedding"):
        return None
    offset, transposed = place
    if places.axis == gradient.dim() - 1:
        return None
    if use.call.kind == "embedding":
        return None if transposed else _lookup(use.call, gradient, places, start, scale, offset)
    inputs = use.call.input.detach()
    if inputs.shape[:-1] != gradient.shape[:-1] or any(use.call.options):
        return None
    size = _largest(inputs)
    units, features = (_rows(values, places)[:, :, None] for values in (gradient, inputs))
    if (use.call.kind == "linear") != transposed:  # inputs are scaled when they are used, so that no copy is kept
        return Outer(start, units, lambda a, b: _over(features[a:b], size), features.shape[3], offset, scale * size)
    return Outer(start, _over(features, size), lambda a, b: units[a:b], units.shape[3], offset, scale * size)


def normalised(values: Tensor) -> tuple[Tensor, float]:
    """Values divided by the largest magnitude among them, in single precision at least."""
    largest = _largest(values)
    return _over(values, largest), largest


def _largest(values: Tensor) -> float:
    """The largest magnitude; 1 where all are zero."""
    if not values.numel():
        return 1.0
    low, high = torch.aminmax(values)
    return max(-float(low), float(high)) or 1.0


def _over(values: Tensor, size: float) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32)) / size


def _rows(values: Tensor, places: Layout) -> Float[Tensor, "n t units"]:
    values = places.by_sample(values)
    return values.reshape(len(values), -1, values.shape[-1])


def _elementwise(
    use: Use, gradient: Tensor, parameter: Tensor, places: Layout, start: int, scale: float
) -> Explicit | None:
    aligned = list(use.aligned)
    if places.axis is not None:
        if aligned[places.axis] != 1:
            return None
        if places.inner is None:
            del aligned[places.axis]
    if use.factor is not None:
        with torch.no_grad():
            factor, size = normalised(use.factor())
        gradient, scale = gradient * factor, scale * size
    values = places.by_sample(gradient)
    summed = [axis for axis, length in enumerate(aligned, start=1) if length == 1]
    if summed:
        values = values.sum(summed)
    entries = None if use.view is parameter else _entries(use.view, parameter)
    return Explicit(start, values.reshape(len(values), -1), entries, scale * use.sign)


def _entries(view: Tensor, parameter: Tensor) -> Int[Tensor, " entries"]:
    """Which entries of the flat parameter a view shows."""
    numbers = torch.arange(parameter.numel(), device=parameter.device)
    strided = torch.empty_strided(parameter.shape, parameter.stride(), dtype=torch.long, device=parameter.device)
    strided.copy_(numbers.view(parameter.shape))
    offset = view.storage_offset() - parameter.storage_offset()
    return strided.as_strided(view.shape, view.stride(), offset).reshape(-1)


def _placement(view: Tensor, parameter: Tensor) -> tuple[int, bool] | None:
    """Which row of a matrix a view starts at and whether it is transposed; None unless it shows whole rows."""
    if parameter.dim() != 2:
        return None
    if view is parameter:
        return 0, False
    if view.dim() != 2 or not parameter.is_contiguous():
        return None
    width = parameter.shape[1]
    row, rest = divmod(int(view.storage_offset()) - int(parameter.storage_offset()), width)
    if rest == 0 and view.stride() == (width, 1) and view.shape[1] == width:
        return row, False
    if rest == 0 and view.stride() == (1, width) and view.shape[0] == width:
        return row, True
    return None


def _lookup(call: LinearCall, gradient: Tensor, places: Layout, start: int, scale: float, offset: int) -> Outer | None:
    indices = call.input.detach()
    positional, named = call.options
    padding = positional[0] if positional else named.get("padding_idx")
    by_frequency = positional[3] if len(positional) > 3 else named.get("scale_grad_by_freq", False)
    if by_frequency or (places.axis is not None and places.axis >= indices.dim()):
        return None
    if padding is not None and padding >= 0:
        indices = torch.where(indices == padding, -1, indices)
    elif padding is not None:
        indices = torch.where(indices == len(call.weight) + padding, -1, indices)
    rows = places.by_sample(indices)
    looked_up = _rows(gradient, places)[:, :, None]
    numbers = rows.reshape(len(rows), -1)
    numbers = torch.where(numbers >= 0, numbers + offset, -1)
    return Outer(start, numbers, lambda a, b: looked_up[a:b], looked_up.shape[3], 0, scale)


def _convolution(
    call: LinearCall, gradient: Tensor, parameter: Tensor, places: Layout, start: int, scale: float
) -> Outer | None:
    kernel = tuple(parameter.shape[2:])
    if call.weight is not parameter or gradient.dim() != len(kernel) + 2 or places.axis not in (0, None):
        return None
    if places.axis is None and len(gradient) == 1:
        places = Layout(0, 1)
    elif places.axis is None:
        places = Layout(0, 1, inner=True)
    stride, padding, dilation, groups = geometry(call, len(kernel), parameter.shape[2:])
    inputs = call.input.detach()
    size, margins = _largest(inputs), [p for pair in reversed(padding) for p in pair]
    inputs = places.by_sample(inputs)
    inputs = inputs if places.inner is not None else inputs[:, None]  # (sample, position of the same sample, …)
    units = _rows(gradient.movedim(1, -1), places)
    units = units.reshape(*units.shape[:2], groups, -1)

    def patches(a: int, b: int) -> Float[Tensor, "n t g columns"]:
        part = inputs[a:b]
        count, outer = part.shape[:2]
        part = F.pad(_over(part.flatten(0, 1), size), margins)
        for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
            part = part.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
        places_, axes = part.shape[2 : 2 + len(kernel)], len(kernel)
        # (image, channel, positions…, kernel…) → (image, positions…, channel, kernel…)
        part = part.movedim(1, 1 + axes)
        return part.reshape(count, outer * places_.numel(), groups, -1)

    columns = parameter[0].numel()
    return Outer(start, units, patches, columns, 0, scale * size)


def flattened_shape(parameter: Tensor, factors: list[Factors]) -> tuple[int, int, int]:
    """The parameter as (groups, rows, columns) of its blocks."""
    groups = max((f.groups for f in factors if isinstance(f, Outer)), default=1)
    return groups, len(parameter) // groups, parameter[0].numel()


def alike(factors: list[Any]) -> bool:
    """Whether the factors of one parameter can be multiplied: all or none written out, and grouped alike."""
    outer = [f for f in factors if isinstance(f, Outer)]
    return not outer or (len(outer) == len(factors) and len({f.groups for f in outer}) == 1)
