"""Short training runs from one start that can be paused, continued and dropped."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from theta0._batches import Batch
from theta0._losses import Loss, backward, loss_of
from theta0._progress import time_ended
from theta0._state import seed_draws, snapshot
from theta0._state.tensor_files import set_aside
from theta0._training import Maker

_EXPLODED = 1e3  # times the first loss


@dataclass(frozen=True, eq=False)
class Experiment:
    """What every run shares; the caller wraps it in `preserve_state`.

    Attributes:
        model: trained in place, in the mode in which it is.
        batches: used in turn, one a step.
        loss: a name, a callable, or None where the model returns its loss.
        make: from the trained parameters and a rate to a new optimizer.
        restore: puts the model into the start.
        seed: of the global generators, so that all runs see the same noise at the same step.
        stepped: called after each step of any run.
    """

    model: nn.Module
    batches: Sequence[Batch]
    loss: Loss
    make: Maker
    restore: Callable[[], None]
    seed: int = 0
    stepped: Callable[[], None] = lambda: None


@dataclass(frozen=True, eq=False)
class PausedRun:
    """A run that can be continued; it holds one copy of the parameters and buffers, and the optimizer's state.

    Where these are large they are files while the run waits.

    Attributes:
        rate: the learning rate.
        losses: of every step, before it.
        optimizer: with its state.
        resume: puts the model into the state that the run has reached.
        diverged: whether the loss became non-finite, or a thousand times the first one.
        warm_up: steps over which the rate rises linearly to its value.
        awaken: gives the optimizer its state again.
    """

    rate: float
    losses: tuple[float, ...]
    optimizer: torch.optim.Optimizer
    resume: Callable[[], None]
    diverged: bool = False
    warm_up: int = 0
    awaken: Callable[[], None] = lambda: None

    def score(self, step: int, window: int) -> float:
        """The mean loss of the last steps up to one.

        Returns:
            The mean; infinite where the run diverged before.
        """
        part = self.losses[max(0, step - window) : step]
        if len(self.losses) < step or not all(map(math.isfinite, part)):
            return math.inf
        return math.fsum(part) / len(part)


def prepared(model: nn.Module, batches: Sequence[Batch], loss: Loss, make: Maker, seed: int = 0) -> Experiment:
    """An experiment from where the model stands.

    Returns:
        The experiment.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0._batches import load_batches
        >>> from theta0.experiments import continued, optimizer_kind, started
        >>> kind = optimizer_kind("sgd", model)
        >>> experiment = prepared(model, load_batches(batches, model), "cross_entropy", kind.make)
        >>> run = continued(experiment, started(experiment, 0.1), until=8)
        >>> len(run.losses)
        8
    """
    return Experiment(model, batches, loss, make, snapshot(model), seed)


def counting(experiment: Experiment, stepped: Callable[[int], None]) -> Experiment:
    """An experiment that reports how many steps all of its runs have made.

    Returns:
        The experiment.
    """
    count = itertools.count(1)
    return replace(experiment, stepped=lambda: stepped(next(count)))


def started(experiment: Experiment, rate: float, warm_up: int = 0) -> PausedRun:
    """A run that has not taken a step.

    Returns:
        The run.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0._batches import load_batches
        >>> from theta0.experiments import optimizer_kind, prepared
        >>> kind = optimizer_kind("sgd", model)
        >>> started(prepared(model, load_batches(batches, model), "cross_entropy", kind.make), 0.1).losses
        ()
    """
    experiment.restore()
    first = rate / max(1, warm_up)
    trained = [p for p in experiment.model.parameters() if p.requires_grad]
    return PausedRun(rate, (), experiment.make(trained, first), experiment.restore, warm_up=warm_up)


def continued(experiment: Experiment, run: PausedRun, until: int) -> PausedRun:
    """Train on, up to a number of steps in all. The run as given cannot be continued again.

    Returns:
        The run where it is then; it stops early where it diverges, and where the verb's time ends.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0._batches import load_batches
        >>> from theta0.experiments import optimizer_kind, prepared, started
        >>> kind = optimizer_kind("sgd", model)
        >>> experiment = prepared(model, load_batches(batches, model), "cross_entropy", kind.make)
        >>> run = continued(experiment, started(experiment, 0.1), until=4)
        >>> run = continued(experiment, run, until=8)  # goes on where it was
        >>> len(run.losses)
        8
    """
    if run.diverged or len(run.losses) >= until:
        return run
    run.resume()
    run.awaken()
    losses, diverged = list(run.losses), False
    while len(losses) < until and not diverged and not time_ended():
        seed_draws(experiment.seed + len(losses))
        if len(losses) < run.warm_up:
            _raised(run.optimizer, len(losses) + 1)
        value = _stepped(experiment, run.optimizer, len(losses))
        losses.append(value)
        experiment.stepped()
        diverged = not abs(value) <= _EXPLODED * max(1e-12, abs(losses[0]))
    run.optimizer.zero_grad(set_to_none=True)
    if diverged:
        run.optimizer.state.clear()
        return replace(run, losses=tuple(losses), resume=experiment.restore, diverged=True)
    awaken = set_aside(tree_leaves([list(state.values()) for state in run.optimizer.state.values()]))
    return replace(run, losses=tuple(losses), resume=snapshot(experiment.model), awaken=awaken)


def _raised(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Rates of a warm-up at its first step are a step's share; at later ones they grow by as much."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * step / (step - 1) if step > 1 else group["lr"]


def _stepped(experiment: Experiment, optimizer: torch.optim.Optimizer, step: int) -> float:
    with torch.enable_grad():
        optimizer.zero_grad(set_to_none=True)
        value, _ = loss_of(experiment.model, experiment.batches[step % len(experiment.batches)], experiment.loss)
        found = float(value.detach())
        if math.isfinite(found):
            backward(value)
            optimizer.step()
    return found


def losses_at(experiment: Experiment, steps: Sequence[int]) -> list[float]:
    """The losses of the model as it stands on the batches of some steps, without training; a third of a gradient each.

    Returns:
        One for each step; infinite where it is no number.
    """
    found = []
    for step in steps:
        seed_draws(experiment.seed + step)
        with torch.enable_grad():  # a model may take gradients inside its forward pass
            value, _ = loss_of(experiment.model, experiment.batches[step % len(experiment.batches)], experiment.loss)
        found.append(float(value.detach()) if bool(torch.isfinite(value.detach())) else math.inf)
    return found
