"""Where a tensor of a forward pass keeps its samples, its positions and its units."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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


@dataclass(frozen=True)
class Layout:
    """Where a tensor keeps its samples.

    `axis` runs over them, None where the whole tensor is one sample; `inner` is None if that axis holds nothing else,
    else whether positions (True) or samples (False) vary fastest.
    """

    axis: int | None
    samples: int
    inner: bool | None = None

    def by_sample(self, values: Tensor) -> Tensor:
        """The tensor with its samples along a first axis, the other axes in their order; a view where possible."""
        if self.axis is None:
            return values[None]
        if self.inner is None:
            return values.movedim(self.axis, 0)
        if self.inner:
            return torch.unflatten(values, self.axis, (self.samples, -1)).movedim(self.axis, 0)
        return torch.unflatten(values, self.axis, (-1, self.samples)).movedim(self.axis + 1, 0)


def growing_axis(one: Sequence[int], other: Sequence[int], counts: tuple[int, int]) -> int | None:
    """The axis over samples, distinguished by its growth with their number, not by its length.

    `one` and `other` are the shapes of a tensor made from so many samples as `counts` says. None unless exactly one
    axis grows, and in proportion.
    """
    if len(one) != len(other):
        return None
    grown = [axis for axis, lengths in enumerate(zip(one, other, strict=True)) if lengths[0] != lengths[1]]
    if len(grown) == 1 and one[grown[0]] * counts[1] == other[grown[0]] * counts[0]:
        return grown[0]
    return None


def layout(whole: Tensor, alone: Tensor, samples: int, number: int) -> Layout | None:
    """The layout of a tensor of all samples, from the one that sample `number` makes alone, if it shows."""
    if samples == 1:
        return Layout(None, 1) if whole.shape == alone.shape else None
    axis = growing_axis(whole.shape, alone.shape, (samples, 1))
    if axis is None or alone.shape[axis] == 1:
        return None if axis is None else Layout(axis, samples)
    candidates = [Layout(axis, samples, inner) for inner in (True, False)]
    return min(candidates, key=lambda c: float((c.by_sample(whole)[number] - alone).abs().max()))
