"""Do the inputs say anything of the targets? Distance covariance, held against permuted targets."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from theta0._batches import Batch
from theta0._models import without_labels

MOST = 256  # samples
_PERMUTATIONS = 200
_DISTINCT = 0.25  # of the samples: whole numbers with more values than that are amounts, not classes


def distances(rows: Tensor) -> Tensor:
    """Distances (n, n) between samples.

    Of classes, tokens and truth values: the share of places at which two samples differ. Of amounts: Euclidean, each
    feature divided by its standard deviation; features that do not vary are left out.

    Args:
        rows: one sample a row, (n, ...).
    """
    flat = rows.detach().reshape(len(rows), -1)
    if not flat.is_floating_point() and (flat.shape[1] > 1 or len(torch.unique(flat)) <= _DISTINCT * len(flat)):
        return torch.stack([(flat != row).double().mean(1) for row in flat])
    deviation, mean = torch.std_mean(flat.double(), 0, correction=0)
    varies = deviation > 1e-9 * (mean.abs() + deviation)
    scaled = ((flat.double() - mean) / deviation)[:, varies].float()
    return torch.cdist(scaled, scaled).double()


def separation(one: Tensor, other: Tensor, *, permutations: int = _PERMUTATIONS) -> float:
    """How far the distance covariance of two samples lies above that of permuted ones, in standard deviations.

    dCov² = mean(A ∘ B), where A and B are the matrices of distances with the means of rows and columns taken out
    (Székely, Rizzo & Bakirov, 2007); it is zero if and only if the two are independent.

    Args:
        one: distances between samples, (n, n).
        other: distances between the same samples by something else, (n, n).
        permutations: how many of them make the null distribution.

    Returns:
        About 0 where the two are independent; NaN where all distances of one are equal.
    """
    a, b = _centred(one), _centred(other)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(a), generator=generator) for _ in range(permutations)]
    null = torch.stack([(a * b[order][:, order]).mean() for order in orders])
    spread = float(null.std())
    return float((a * b).mean() - null.mean()) / spread if spread > 0 else math.nan


def dependence(batches: Sequence[Batch], outputs: Sequence[Tensor | None]) -> float | None:
    """How clearly the targets depend on the inputs, or on what the network makes of these before it is trained.

    Args:
        batches: with inputs and targets that have a row for each sample.
        outputs: the network's, one a batch; None where it has none that has a row for each sample.

    Returns:
        The larger of the two separations, in standard deviations; None where there are no such rows.
    """
    targets = _rows([[batch.targets] for batch in batches], batches)
    inputs = _rows([tree_leaves(without_labels(batch.inputs)) for batch in batches], batches)
    made = _rows([[output] for output in outputs], batches)
    if len(targets) != 1 or not inputs or _number_places(batches):
        return None
    known = distances(targets[0])
    of_inputs = [distances(leaf) for leaf in inputs]
    seen = [sum((d / d.mean().clamp_min(1e-12) for d in of_inputs), torch.zeros_like(known))]
    seen += [distances(rows) for rows in made]
    found = [value for value in (separation(d, known) for d in seen) if not math.isnan(value)]
    return max(found) if found else None


def _number_places(batches: Sequence[Batch]) -> bool:
    """Whether the targets count the samples of a batch, as those of pairs, and say nothing of the inputs on purpose."""
    targets = [batch.targets for batch in batches if isinstance(batch.targets, Tensor)]
    whole = [t for t in targets if not t.is_floating_point() and t.dtype != torch.bool and len(t) > 1]
    return any(len(torch.unique(t)) == t.numel() for t in whole) or (
        len(targets) > 1 and all(torch.equal(t, targets[0]) for t in targets[1:])
    )


def _rows(leaves: Sequence[Sequence[object]], batches: Sequence[Batch]) -> list[Tensor]:
    """Each leaf of all batches together, where it has a row for each sample in all of them; the first samples."""
    found = []
    for parts in zip(*leaves, strict=False):
        rows = [
            p for p, b in zip(parts, batches, strict=True) if isinstance(p, Tensor) and p.dim() and len(p) == b.size
        ]
        if len(rows) == len(batches) and len({p.shape[1:] for p in rows}) == 1 and rows[0].numel():
            joined = torch.cat([p.detach() for p in rows])[:MOST]
            finite = not joined.is_floating_point() or bool(torch.isfinite(joined).all())
            found += [joined.abs() if joined.is_complex() else joined] if finite else []
    return found


def _centred(d: Tensor) -> Tensor:
    return d - d.mean(0, keepdim=True) - d.mean(1, keepdim=True) + d.mean()
