"""The learning rates that a script's schedule sets: those of the steps seen, and those to come."""

import copy
import warnings
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import torch
from torch.optim.lr_scheduler import LRScheduler

_AHEAD, _FARTHEST = 2000, 20000  # steps; more where the rate still rises


def scheduled_rates(
    optimizer: torch.optim.Optimizer, seen: Sequence[float], schedulers: Iterable[LRScheduler]
) -> tuple[float, ...]:
    """The rates of an optimizer's first group at the steps seen, continued where a scheduler makes a step with each.

    The scheduler is copied, with a stand-in for the optimizer, and stepped on; the script's own is left alone. One that
    steps once an epoch is continued only where every rate seen is zero, to see whether it ever rises; one that is
    driven by a metric is not.

    Args:
        optimizer: the script's, as its last step left it.
        seen: its rates, one a step.
        schedulers: of the script.

    Returns:
        The rates, step by step.
    """
    own = [s for s in schedulers if _of(s) is optimizer]
    inner = {id(part) for s in own for part in _parts(s)}
    outer = [s for s in own if id(s) not in inner]
    counts = [round(_stepped(s) / len(seen)) if seen else 0 for s in outer]
    if len(outer) != 1 or not (counts[0] or not any(seen)):
        return tuple(seen)
    return (*seen, *_continued(outer[0], optimizer, max(1, counts[0]), max(seen), len(seen)))


def _parts(scheduler: LRScheduler) -> Sequence[LRScheduler]:
    """The schedulers that one is made of."""
    return list(getattr(scheduler, "_schedulers", ()))


def _of(scheduler: LRScheduler) -> torch.optim.Optimizer | None:
    return getattr(scheduler, "optimizer", None) or next((_of(part) for part in _parts(scheduler)), None)


def _stepped(scheduler: LRScheduler) -> int:
    """How often it was stepped."""
    return max([int(getattr(scheduler, "last_epoch", 0)), *(_stepped(part) for part in _parts(scheduler))])


def _continued(
    scheduler: LRScheduler, optimizer: torch.optim.Optimizer, times: int, peak: float, seen: int
) -> list[float]:
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    stand_in = SimpleNamespace(param_groups=copy.deepcopy(groups), step=None, _opt_called=True)
    rates = (
        [float(groups[0]["lr"])] if _stepped(scheduler) >= times * seen else []
    )  # it has set the next step's already
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a scheduler misses the steps between its own
        try:
            ahead = copy.deepcopy(scheduler, {id(optimizer): stand_in})
            highest = max([peak, *rates])
            while len(rates) < _AHEAD or (len(rates) < _FARTHEST and rates[-1] >= highest):
                for _ in range(times):
                    ahead.step()
                rates.append(float(stand_in.param_groups[0]["lr"]))
                highest = max(highest, rates[-1])
        except Exception:
            return rates
    return rates
