"""Where a tensor of a forward pass keeps its samples, its positions and its units."""

from collections.abc import Sequence

from jaxtyping import Shaped
from torch import Tensor


def by_sample(
    values: Shaped[Tensor, "..."], unit_axis: int, sample_axis: int | None, samples: int
) -> tuple[Shaped[Tensor, "..."], int, int]:
    """Find the axes over samples and over units of a layer's output; all others run over positions.

    The axis over samples is the one that the function fixes, or the first of two that has the batch's length. Where
    there is none, rows are divided among the samples if that is possible, else every row counts as a sample.
    `unit_axis` counts from the end, `sample_axis` among the other axes. Returned are the values, a view where possible,
    and the axes over samples and over units.
    """
    units = values.dim() + unit_axis
    if sample_axis == 1 and values.dim() == 2 and len(values) % samples == 0:  # attention flattens (length, batch)
        return values.reshape(-1, samples, values.shape[-1]), 1, 2
    axis = _sample_axis(values.shape, [a for a in range(values.dim()) if a != units], sample_axis, samples)
    if axis is not None:
        return values, axis, units
    rows = values.movedim(units, -1).reshape(-1, values.shape[units])
    divides = len(rows) > 0 and len(rows) % samples == 0
    return (rows.reshape(samples, len(rows) // samples, -1), 0, 2) if divides else (rows, 0, 1)


def _sample_axis(shape: Sequence[int], axes: list[int], fixed: int | None, samples: int) -> int | None:
    if fixed is not None and fixed < len(axes) and shape[axes[fixed]] == samples:
        return axes[fixed]
    return next((axis for axis in axes[:2] if shape[axis] == samples), None)
