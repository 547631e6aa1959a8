"""Pairs that do not belong together: what is learnt of some of them says nothing of others."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._state import preserve_state
from theta0._training import count_gradients
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.runs import continued, prepared, started
from theta0.measurements.pair_ranks import PairRanks, pair_ranks

STEPS = 40
CLEAR, CHANCE = 4.0, 1.5  # standard deviations: partners are found; they are not
_FEWEST = 20


@dataclass(frozen=True)
class Pairing:
    """How clearly rows find their partners, in standard deviations of partners that are drawn.

    Attributes:
        before: before training, in all batches.
        learnt: after training, in the batches trained on; None where partners were found before.
        held_out: after training, in others, of both halves where the first leaves it open.
        steps: of training, on each half.
        rows: of the others.
        cost: in gradients.
    """

    before: float
    learnt: float | None
    held_out: float | None
    steps: int
    rows: int
    cost: float


def pairing(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, kind: OptimizerKind, rate: float, *, most: float
) -> Pairing | None:
    """Train on half of the batches, and see whether the rows of the others find their partners.

    Then on the other half, unless they clearly do; not at all where they do before. The model is left as it was.

    Args:
        model: the network, in the mode in which it is trained.
        batches: two at least.
        loss: a name, a callable or None.
        kind: the optimizer.
        rate: its rate.
        most: gradients.

    Returns:
        What was seen; None where the loss has no pairs, or training raises or diverges.
    """
    half = len(batches) // 2
    try:
        before = pair_ranks(model, batches, loss)
        spent = count_gradients(forward=len(batches))
        if before is None:
            return None
        if before.separation >= CLEAR or half < 1:
            return Pairing(before.separation, None, None, 0, before.rows, spent)
        learnt, other, steps = PairRanks(0.0, 0), PairRanks(0.0, 0), int(min(STEPS, (most - spent) / 2 - half))
        for part, rest in ((batches[:half], batches[half:]), (batches[half:], batches[:half])):
            if steps < _FEWEST:
                return None
            own, unseen = _trained(model, part, rest, loss, kind, rate, steps)
            learnt, other, spent = learnt + own, other + unseen, spent + steps + count_gradients(forward=len(batches))
            if other.separation >= CLEAR:
                break
    except (UserCodeError, RuntimeError, ValueError):
        return None
    return Pairing(before.separation, learnt.separation, other.separation, steps, other.rows, spent)


def _trained(
    model: nn.Module,
    part: Sequence[Batch],
    rest: Sequence[Batch],
    loss: Loss,
    kind: OptimizerKind,
    rate: float,
    steps: int,
) -> tuple[PairRanks, PairRanks]:
    """The ranks in batches trained on, and in others.

    Raises:
        ValueError: if training diverges, or leaves no pairs.
    """
    with preserve_state(model):
        experiment = prepared(model, part, loss, kind.make)
        run = continued(experiment, started(experiment, rate), steps)
        ranks = [None if run.diverged else pair_ranks(model, batches, loss) for batches in (part, rest)]
    own, unseen = ranks
    if own is None or unseen is None:
        raise ValueError("pairs: expected a run that does not diverge")
    return own, unseen
