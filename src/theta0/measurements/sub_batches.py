"""A batch cut into equal parts that may overlap."""

import math

from theta0._batches import Batch, sliced


def overlapping(batch: Batch, parts: int, overlap: float) -> list[Batch]:
    r"""D parts of equal size $b = B / (1 + (D - 1)(1 - r))$, in order, neighbours sharing the fraction r of each.

    yang2022nio's relaxation of sample gradients (section B.1). Disjoint parts leave out the remainder. Those that
    overlap cover the batch: b is rounded down, but to no less than B / D, so that there is no gap, and the parts begin
    at equal steps but for rounding. The numbers of samples that neighbours share then differ by one at most, and from
    r b by less than three, which is much where b is small.

    Example:
        >>> import torch
        >>> [part.inputs.tolist() for part in overlapping(Batch(torch.arange(6), None, 6), 2, 0.5)]
        [[0, 1, 2, 3], [2, 3, 4, 5]]
    """
    return [sliced(batch, cut) for cut in overlapping_cuts(batch.size, parts, overlap, number=batch.number)]


def overlapping_cuts(samples: int, parts: int, overlap: float, *, number: int = 0) -> list[slice]:
    """Which samples are in which part, as in `overlapping`; parts that would be the same are refused."""
    require_parts(parts, overlap)
    if samples < parts:
        raise ValueError(
            f"sub_batches: expected from 2 parts to as many as there are samples ({samples} in batch "
            f"{number}), got {parts}; pass larger batches or fewer parts"
        )
    size = int(samples / (1 + (parts - 1) * (1 - overlap)) + 1e-9)
    if overlap:
        size = max(size, math.ceil(samples / parts))
    last = samples - size if overlap else size * (parts - 1)
    if last < parts - 1:  # the place of the last part: so many further ones can begin elsewhere than the first
        raise ValueError(
            f"sub_batches: expected parts that differ, got {parts} of {size} samples in {last + 1} places of the "
            f"{samples} samples in batch {number}, so that some are the same; pass larger batches, a smaller overlap "
            f"(now {overlap:g}) or fewer parts"
        )
    starts = [place * last // (parts - 1) for place in range(parts)]
    return [slice(start, start + size) for start in starts]


def require_parts(parts: int, overlap: float) -> None:
    """Refuse what suits no batch: D that is no whole number from 2, r that is no share below 1."""
    if not hasattr(parts, "__index__") or parts < 2:
        raise ValueError(f"sub_batches: expected at least 2 parts to compare, a whole number, got {parts}")
    if not 0 <= overlap < 1:
        raise ValueError(
            f"overlap: expected a fraction from 0 to below 1 (1 would make all parts the same), got {overlap}"
        )
