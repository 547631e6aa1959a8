"""Pairs within a batch, as contrastive losses have: does each row find its partner among the others?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state, seed_draws
from theta0._trace.interpreter import Handler, Step, trace

_HIDDEN = -1e4  # a score below is masked
_FEWEST = 4  # rows


@dataclass(frozen=True)
class PairRanks:
    """Where the partners of some rows stand among all that are compared with each.

    Attributes:
        total: the sum over the rows of the share of others that score lower than the partner, less 1/2.
        rows: how many there are.
    """

    total: float
    rows: int

    def __add__(self, other: "PairRanks") -> "PairRanks":
        return PairRanks(self.total + other.total, self.rows + other.rows)

    @property
    def separation(self) -> float:
        """The mean share above 1/2 in standard deviations of partners that are drawn: a uniform share's is 1/√12."""
        return self.total * math.sqrt(12 / self.rows) if self.rows else 0.0


def pair_ranks(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> PairRanks | None:
    """The ranks of the partners in the first cross-entropy whose classes are the samples of the batch.

    It is known by its targets: each row has another one. The model runs in the mode in which it is, and is left as it
    was. Cost: a forward pass a batch.

    Returns:
        The ranks over all batches; None where a batch has no such loss.
    """
    total, rows = 0.0, 0
    for batch in batches:
        found: list[PairRanks] = []
        with preserve_state(model), torch.enable_grad(), trace(model, _ranks_handler(found)):
            seed_draws(0)
            loss_of(model, batch, loss)
        if not found:
            return None
        total, rows = total + found[0].total, rows + found[0].rows
    return PairRanks(total, rows)


def pairing_handler(seen: Callable[[], None]) -> Handler:
    """A handler that calls a function where a loss tells the samples of a batch apart; it notes nothing."""

    def before(step: Step) -> None:
        if _paired(step) is not None:
            seen()

    return Handler(before=before)


def _ranks_handler(found: list[PairRanks]) -> Handler:
    def before(step: Step) -> None:
        pair = _paired(step) if not found else None
        if pair is not None:
            found.append(_ranks(pair[0].detach().double(), pair[1]))

    return Handler(before=before)


def _paired(step: Step) -> tuple[Tensor, Tensor] | None:
    """The scores and the partners of a cross-entropy between the samples of a batch."""
    if step.spec is None or step.spec.role != "loss" or step.spec.kind not in ("cross_entropy", "nll"):
        return None
    scores, targets = step.argument((0, "input")), step.argument((1, "target"))
    both = isinstance(scores, Tensor) and isinstance(targets, Tensor)
    return (scores, targets) if both and is_pairing(scores, targets) else None


def is_pairing(scores: Tensor, targets: Tensor) -> bool:
    """Whether a cross-entropy tells the samples of a batch apart: as many classes as rows, another one for each row."""
    if scores.dim() != 2 or targets.dim() != 1 or targets.is_floating_point() or len(scores) < _FEWEST:
        return False
    square = len(scores) <= scores.shape[1] <= len(scores) + 1
    return square and len(torch.unique(targets)) == len(targets) == len(scores)


def _ranks(scores: Tensor, targets: Tensor) -> PairRanks:
    """Ties count half; what is masked does not count."""
    own = scores.gather(1, targets[:, None])
    others = (scores > _HIDDEN).scatter(1, targets[:, None], False)
    below = ((scores < own) & others).sum(1) + ((scores == own) & others).sum(1) / 2
    shares = below / others.sum(1).clamp(min=1)
    return PairRanks(float((shares - 0.5).sum()), len(scores))
