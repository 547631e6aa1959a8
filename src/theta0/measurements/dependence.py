"""Do the inputs say anything of the targets? Distance covariance, held against permuted targets."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from theta0._batches import Batch
from theta0._models import without_labels

MOST = 256  # samples
CLEAR = 4.0  # standard deviations above permuted targets: they depend on the inputs
_PERMUTATIONS = 200
_AT_A_TIME = 32  # rows of a matrix, or permutations, at a time
_FEATURES = 64  # that are asked one by one, evenly spaced
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
        found = torch.empty(len(flat), len(flat), device=flat.device)
        for number, row in enumerate(flat):
            found[number] = (flat != row).float().mean(1)
        return found
    deviation, mean = torch.std_mean(flat.double(), 0, correction=0)
    varies = deviation > 1e-9 * (mean.abs() + deviation)
    scaled = flat[:, varies].float().sub_(mean[varies].float()).div_(deviation[varies].float())
    return torch.cdist(scaled, scaled)


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
    return _separation(_centred(one.clone()), _centred(other.clone()), permutations)


def dependence(batches: Sequence[Batch], outputs: Sequence[Tensor | None], *, of_inputs: bool = True) -> float | None:
    """How clearly the targets depend on the inputs, or on what the network makes of these before it is trained.

    Half of the samples that count are asked first, which takes a quarter of the memory.

    Args:
        batches: with inputs and targets that have a row for each sample.
        outputs: the network's, one a batch; None where it has none that has a row for each sample.
        of_inputs: whether to ask the inputs too, and not the outputs alone.

    Returns:
        The largest of the separations, of the inputs together, of their single features and of the outputs, in standard
        deviations; None where there are no such rows.
    """
    targets = _rows([[batch.targets] for batch in batches], batches)
    inputs = _rows([tree_leaves(without_labels(batch.inputs)) for batch in batches], batches)
    made = _rows([[output] for output in outputs], batches)
    if len(targets) != 1 or not inputs or _number_places(batches):
        return None
    inputs = inputs if of_inputs else []
    found = _larger(inputs, targets[0], made, MOST // 2)
    unclear = found is None or found < CLEAR
    return _larger(inputs, targets[0], made, MOST) if unclear and len(targets[0]) > MOST // 2 else found


def _larger(inputs: Sequence[Tensor], targets: Tensor, made: Sequence[Tensor], most: int) -> float | None:
    known = _centred(distances(targets[:most]))
    together = torch.zeros_like(known)
    for leaf in inputs:
        apart = distances(leaf[:most])
        together += apart.div_(apart.mean().clamp_min(1e-12))
    found = [_separation(_centred(together), known, _PERMUTATIONS)] if inputs else []
    found += [_separation(_centred(distances(rows[:most])), known, _PERMUTATIONS) for rows in made]
    found += [_marginal(leaf[:most], known, _PERMUTATIONS) for leaf in inputs]
    found = [value for value in found if not math.isnan(value)]
    return max(found) if found else None


def _marginal(rows: Tensor, known: Tensor, permutations: int) -> float:
    """How far the largest distance covariance of single features lies above the largest with permuted targets.

    Where targets depend on few of many places, as of a sequence, distances over all of them hardly show it.
    """
    flat = rows.reshape(len(rows), -1)
    flat = flat[:, (flat != flat[:1]).any(0)]
    places = torch.linspace(0, flat.shape[1] - 1, min(_FEATURES, flat.shape[1])).round().long()
    if len(places) < 2:
        return math.nan
    apart = torch.stack([_centred(distances(flat[:, place : place + 1])).flatten() for place in places.tolist()])
    apart /= apart.norm(dim=1, keepdim=True).clamp_min(1e-12)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(known), generator=generator).to(known.device) for _ in range(permutations)]
    null = torch.cat(
        [
            (apart @ torch.stack([known[order][:, order].flatten() for order in orders[at : at + _AT_A_TIME]]).T).amax(
                0
            )
            for at in range(0, permutations, _AT_A_TIME)
        ]
    )
    spread = float(null.std())
    return float((apart @ known.flatten()).max() - null.mean()) / spread if spread > 0 else math.nan


def _separation(a: Tensor, b: Tensor, permutations: int) -> float:
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(a), generator=generator) for _ in range(permutations))
    null = torch.stack([_covariance(a, b, order) for order in orders])
    spread = float(null.std())
    found = _covariance(a, b, torch.arange(len(a)))
    return float(found - null.mean()) / spread if spread > 0 else math.nan


def _covariance(a: Tensor, b: Tensor, order: Tensor) -> Tensor:
    """mean(A ∘ B) with B permuted, a few rows at a time: there is no third matrix."""
    order = order.to(a.device)
    parts = [
        (a[start : start + _AT_A_TIME] * b[order[start : start + _AT_A_TIME]][:, order]).sum(dtype=torch.float64)
        for start in range(0, len(a), _AT_A_TIME)
    ]
    return torch.stack(parts).sum() / a.numel()


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
        dense = [p if isinstance(p, Tensor) and p.layout is torch.strided else None for p in parts]
        rows = [p for p, b in zip(dense, batches, strict=True) if p is not None and p.dim() and len(p) == b.size]
        if len(rows) == len(batches) and len({p.shape[1:] for p in rows}) == 1 and rows[0].numel():
            joined = torch.cat([p.detach() for p in rows])[:MOST]
            finite = not joined.is_floating_point() or bool(torch.isfinite(joined).all())
            found += [joined.abs() if joined.is_complex() else joined] if finite else []
    return found


def _centred(d: Tensor) -> Tensor:
    """In place."""
    rows, columns, whole = d.mean(1, keepdim=True), d.mean(0, keepdim=True), d.mean()
    return d.sub_(rows).sub_(columns).add_(whole)
