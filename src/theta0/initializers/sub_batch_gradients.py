"""The gradients of overlapping sub-batches, each sample differentiated once where the loss allows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from theta0._batches import Batch, sliced
from theta0._losses import applied, loss_of
from theta0._models import main_output
from theta0._ranks import averaged, summed
from theta0._state import deterministic
from theta0._training import count_gradients
from theta0.curvature.problem import differentiated
from theta0.initializers.scaled_network import Gradients, ScaledNetwork, norm_of

_SAVING = 1.2  # samples in all parts over samples covered, below which more and smaller passes would not pay
_TOLERANCE = 1e-3  # in single precision; batch normalisation and losses that are no means differ by far more
_LOSS_TOLERANCE = 1e-4  # of the loss's derivatives by its outputs, row by row the same but for rounding


@dataclass(frozen=True, eq=False)
class SubBatchGradients:
    """Gradients of D parts of a batch, g_d = Σ_s W_ds h_s, h_s those that were taken, with their graphs.

    Attributes:
        rows: g_d, averaged over ranks.
        local: h_s of this rank.
        weights: W.
        samples: how many were differentiated for each h_s.
        joint: whether the h_s are those of pieces.
        lost: samples whose forward pass found out that pieces do not do, in gradients of a sample.
    """

    rows: list[Gradients]
    local: list[Gradients]
    weights: Float64[Tensor, "d s"]
    samples: Sequence[float]
    joint: bool
    lost: float = 0.0


def sub_batch_gradients(
    network: ScaledNetwork, batch: Batch, cuts: Sequence[slice], *, joint: bool, graph: bool = True, whole: bool = False
) -> SubBatchGradients:
    """Take the gradients of the parts: each on its own, or where `joint` from those of the pieces that make them up.

    Where `whole`, the network sees the whole batch once, with its batch statistics, and each part is a share of the
    losses.

    A mean over the samples of a part is the mean of its pieces', weighted by their lengths: at D = 2 and r = 0.6 every
    sample is then differentiated once instead of 1.43 times. Where it does not hold for this batch's targets (a mean
    weighted by class, or over the labels that are not ignored), each part is differentiated on its own.
    """
    pieces, lost = (_pieces(cuts) if joint else []), 0.0
    if joint:
        weights = _shares(cuts, pieces)
        losses = _piece_losses(network, batch, cuts, pieces, weights)
        if losses:
            local = [network.gradients(value, graph=graph) for value in losses]
            means = [averaged(gradients) for gradients in local]
            rows = [combined(row, means) for row in weights.tolist()]
            return SubBatchGradients(rows, local, weights, _lengths(pieces), joint=True)
        lost = count_gradients(forward=sum(_lengths(pieces)))
    losses = _shared_pass(network, batch, cuts) if whole else [network.loss_of(sliced(batch, cut)) for cut in cuts]
    local = [network.gradients(value, graph=graph, again=whole) for value in losses]
    rows = [averaged(gradients) for gradients in local]
    samples = [shared_pass_cost(len(cuts)) / len(cuts) * batch.size] * len(cuts) if whole else _lengths(cuts)
    return SubBatchGradients(rows, local, torch.eye(len(cuts)).double(), samples, joint=False, lost=lost)


def shared_pass_cost(parts: int) -> float:
    """The gradients of the parts of one pass, in gradients of the batch: each goes back through all of it."""
    return count_gradients(forward=1, backward=parts)


def _shared_pass(network: ScaledNetwork, batch: Batch, cuts: Sequence[slice]) -> list[Tensor]:
    """The parts' losses, all from one pass of the whole batch."""
    with deterministic(network.model, network.seed + batch.number):
        _, outputs = loss_of(network.model, batch, network.loss)
    leaves, form = tree_flatten(_for_loss(network, outputs, batch))
    if network.loss is None or not all(
        isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == batch.size for leaf in leaves
    ):
        raise ValueError(
            "whole_batch: expected a loss of outputs that have the batch's samples in their first axis, got another; "
            "whole_batch=False runs each sub-batch on its own"
        )
    parts = [tree_unflatten([leaf[cut] for leaf in leaves], form) for cut in cuts]
    return [applied(network.loss, part, sliced(batch, cut)) for part, cut in zip(parts, cuts, strict=True)]


def pieces_suffice(network: ScaledNetwork, batch: Batch, cuts: Sequence[slice]) -> tuple[bool, float]:
    """Whether the parts' gradients may be put together from their pieces', and what finding that out cost.

    They may not where samples meet (batch normalisation, losses that are no mean over samples), little would be saved,
    or the model returns its own loss, which cannot be looked into. The cost is in gradients of a batch.
    """
    pieces = _pieces(cuts)
    parts, covered = sum(_lengths(cuts)), sum(_lengths(pieces))
    if network.loss is None or parts < _SAVING * covered:
        return False, 0.0
    joined = sub_batch_gradients(network, batch, cuts, joint=True, graph=False)
    if not joined.joint:
        return False, (joined.lost + parts) / batch.size
    wholes = sub_batch_gradients(network, batch, cuts, joint=False, graph=False)
    off = [norm_of([a - b for a, b in zip(*pair, strict=True)]) for pair in zip(wholes.rows, joined.rows, strict=True)]
    close = all(o <= _TOLERANCE * norm_of(whole) for o, whole in zip(off, wholes.rows, strict=True))
    return close, (covered + parts) / batch.size


def combined(weights: Sequence[float], rows: Sequence[Gradients]) -> Gradients:
    """Σ_e w_e g_e."""
    used = [(weight, row) for weight, row in zip(weights, rows, strict=True) if weight]
    total = [g * used[0][0] for g in used[0][1]]
    for weight, row in used[1:]:
        total = [t.add_(g, alpha=weight) for t, g in zip(total, row, strict=True)]
    return total


def _pieces(cuts: Sequence[slice]) -> list[slice]:
    """The stretches between all beginnings and ends that lie in some part."""
    edges = sorted({edge for cut in cuts for edge in (cut.start, cut.stop)})
    between = [slice(start, stop) for start, stop in pairwise(edges)]
    return [piece for piece in between if any(c.start <= piece.start and piece.stop <= c.stop for c in cuts)]


def _lengths(slices: Sequence[slice]) -> list[int]:
    return [some.stop - some.start for some in slices]


def _inside(pieces: Sequence[slice], cut: slice) -> list[int]:
    """The numbers of the pieces that make up a part."""
    return [s for s, piece in enumerate(pieces) if cut.start <= piece.start and piece.stop <= cut.stop]


def _shares(cuts: Sequence[slice], pieces: Sequence[slice]) -> Float64[Tensor, "d s"]:
    """The share of each part's samples that each piece has."""
    shares = torch.zeros(len(cuts), len(pieces), dtype=torch.float64)
    for row, cut in zip(shares, cuts, strict=True):
        for s in _inside(pieces, cut):
            row[s] = (pieces[s].stop - pieces[s].start) / (cut.stop - cut.start)
    return shares


def _piece_losses(
    network: ScaledNetwork,
    batch: Batch,
    cuts: Sequence[slice],
    pieces: Sequence[slice],
    weights: Float64[Tensor, "d s"],
) -> list[Tensor]:
    """The pieces' losses, with graphs, if on every rank the parts' are their means; otherwise none."""
    try:
        losses = _local_piece_losses(network, batch, cuts, pieces, weights)
    except ValueError:  # a piece may be too small, or all padding; what is wrong with the parts too is reported by them
        losses = []
    failed = summed(torch.tensor(float(not losses), device=next(iter(network.parameters.values())).device))
    return [] if float(failed) else losses


def _local_piece_losses(
    network: ScaledNetwork,
    batch: Batch,
    cuts: Sequence[slice],
    pieces: Sequence[slice],
    weights: Float64[Tensor, "d s"],
) -> list[Tensor]:
    """The same on this rank: each part's loss, given its pieces' outputs, has the derivatives of their weighted mean.

    Derivatives by outputs tell what the loss's values would not: where all samples have nearly the same loss, as at
    many starts, any weights give the same mean. The network is not run again for it. None are returned where it does
    not hold.
    """
    losses: list[Tensor] = []
    seen: list[tuple[list[Tensor], Any]] = []
    for piece in pieces:
        part = sliced(batch, piece)
        with deterministic(network.model, network.seed + batch.number):
            value, outputs = loss_of(network.model, part, network.loss)
        leaves, form = tree_flatten(_for_loss(network, outputs, batch))
        if not all(isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == part.size for leaf in leaves):
            return []  # outputs that cannot be joined
        losses.append(value)
        seen.append(([leaf.detach() for leaf in leaves], form))
    form = seen[0][1]
    slopes = [_by_outputs(network, sliced(batch, p), s[0], form) for p, s in zip(pieces, seen, strict=True)]
    for cut, shares in zip(cuts, weights.tolist(), strict=True):
        inside = _inside(pieces, cut)
        joined = [torch.cat(column) for column in zip(*(seen[s][0] for s in inside), strict=True)]
        whole = _by_outputs(network, sliced(batch, cut), joined, form)
        means = [torch.cat([shares[s] * slopes[s][k] for s in inside]) for k in range(len(whole))]
        off = norm_of([a - b for a, b in zip(whole, means, strict=True)])
        if not off <= _LOSS_TOLERANCE * norm_of(whole):  # nor where either is not finite
            return []
    return losses


def _for_loss(network: ScaledNetwork, outputs: Any, batch: Batch) -> Any:
    """What the loss takes of a model's outputs."""
    named = isinstance(network.loss, str)
    logits = isinstance(batch.inputs, Mapping) and isinstance(getattr(outputs, "logits", None), Tensor)
    return main_output(outputs) if named or logits else outputs


def _by_outputs(network: ScaledNetwork, batch: Batch, leaves: Sequence[Tensor], form: Any) -> list[Tensor]:
    """The derivative of the loss by the outputs that it takes; zeros for what it does not use."""
    fresh = [leaf.clone().requires_grad_(leaf.is_floating_point()) for leaf in leaves]
    value = applied(network.loss, tree_unflatten(fresh, form), batch)
    wanted = [leaf for leaf in fresh if leaf.requires_grad]
    if not (wanted and value.requires_grad):
        raise ValueError("loss: expected one that depends on the outputs, got a constant")
    return list(differentiated(lambda: torch.autograd.grad(value, wanted, materialize_grads=True)))
