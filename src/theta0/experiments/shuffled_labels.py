"""Shuffled labels: are the real ones learnt faster than permuted ones?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._state import preserve_state
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.runs import continued, prepared, started

PERMUTATIONS = 2
LEAST_SAMPLES = 64
_PER_CLASS = 4  # samples, at least: permuting labels that all differ changes nothing


@dataclass(frozen=True)
class ShuffledLabels:
    """Training on real and on permuted labels, everything else the same.

    Attributes:
        real: the mean of the last losses with the real ones.
        permuted: the same with permuted ones, one a permutation.
        constant: what outputs that ignore the input reach.
        losses: of the permuted runs.
        cost: in gradients.
    """

    real: float
    permuted: tuple[float, ...]
    constant: float
    losses: tuple[tuple[float, ...], ...]
    cost: float

    @property
    def advantage(self) -> float:
        """How much more of the constant's loss is lost with the real labels, as a share of what they lose."""
        gained = self.constant - self.real
        others = [self.constant - reached for reached in self.permuted]
        return 1 - max(others) / gained if gained > 0 and others else math.inf


def permutable(batches: Sequence[Batch]) -> bool:
    """Whether the labels can be exchanged between samples, and whether that says anything."""
    targets = [batch.targets for batch in batches]
    whole = all(
        isinstance(t, Tensor) and t.dim() > 0 and len(t) == b.size for t, b in zip(targets, batches, strict=True)
    )
    if not whole or len({t.shape[1:] for t in targets}) > 1 or sum(map(len, targets)) < LEAST_SAMPLES:
        return False
    joined = torch.cat(targets)
    if joined.is_floating_point():
        return bool((joined != joined[:1]).any())
    different = len(torch.unique(joined, dim=0))
    return 1 < different <= len(joined) / _PER_CLASS


def shuffled_labels(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    kind: OptimizerKind,
    rate: float,
    *,
    real: Sequence[float],
    constant: float,
    most: float,
) -> ShuffledLabels | None:
    """Repeat a run with labels that are permuted over all batches; a second time where the first is as good.

    Args:
        model: the network; it is left as it was.
        batches: with targets for which `permutable` holds.
        loss: a name or callable.
        kind: the optimizer.
        rate: its rate, at which training on the real labels came below a constant.
        real: the losses of that run.
        constant: what outputs that ignore the input reach.
        most: gradients.

    Returns:
        The comparison; None where training on permuted labels raises, or there are not enough gradients.
    """
    steps, cycle = len(real), len(batches)
    reached = _mean_of_last(real, cycle)
    losses: list[tuple[float, ...]] = []
    with preserve_state(model):
        for seed in range(PERMUTATIONS):
            if most < steps * (len(losses) + 1):
                return None
            experiment = prepared(model, _permuted(batches, seed), loss, kind.make)
            try:
                run = continued(experiment, started(experiment, rate), steps)
            except (UserCodeError, RuntimeError):
                return None
            finally:
                experiment.restore()
            losses.append(run.losses)
            if constant - _mean_of_last(run.losses, cycle) < (constant - reached) / 2:
                break  # the real ones are learnt much faster
    scores = tuple(_mean_of_last(found, cycle) for found in losses)
    return ShuffledLabels(reached, scores, constant, tuple(losses), float(steps * len(losses)))


def _permuted(batches: Sequence[Batch], seed: int) -> list[Batch]:
    joined = torch.cat([batch.targets for batch in batches])
    order = torch.randperm(len(joined), generator=torch.Generator().manual_seed(seed)).to(joined.device)
    parts = torch.split(joined[order], [batch.size for batch in batches])
    return [replace(batch, targets=part) for batch, part in zip(batches, parts, strict=True)]


def _mean_of_last(losses: Sequence[float], cycle: int) -> float:
    part = losses[-max(cycle if cycle <= max(4, len(losses) // 2) else len(losses) // 3, 1) :]
    return math.fsum(part) / len(part) if all(map(math.isfinite, part)) else math.inf
