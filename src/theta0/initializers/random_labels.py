"""Pre-train a classifier on labels drawn by chance: the baseline that the label-free initialization has to beat."""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from theta0._batches import Batch, checked_forward, endless, initialised, load_batches, searched_in_single_precision
from theta0._models import class_rows, in_place
from theta0._progress import require_time
from theta0._randomness import Randomness, streams
from theta0._state import preserve_state
from theta0._trace.interpreter import without_checkpoints
from theta0._training import make_optimizer
from theta0._weights import put_values, trained_parameters
from theta0.initializers.classifiers import require_classes
from theta0.initializers.mmd import NOT_TRAINABLE, check_options
from theta0.initializers.mmd_checkpoint import WINDOW, Progress, close_window, long_enough


@dataclass(frozen=True)
class RandomLabelStep:
    """One step, for a progress display.

    Attributes:
        step: its number, from 1.
        steps: how many there will be.
        loss: the cross-entropy before its update; log d is chance.
    """

    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class RandomLabels:
    """What `random_labels_` did.

    Attributes:
        steps: how many were made.
        best_step: the step whose parameters were kept; 0 for the start.
        losses: the mean loss of each window of steps.
        interrupted: whether the run was stopped early.
        cost: in gradients.
    """

    steps: int
    best_step: int
    losses: tuple[float, ...]
    interrupted: bool
    cost: float


@searched_in_single_precision
def random_labels(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    steps: int,
    learning_rate: float = 2e-4,
    generator: Randomness = None,
    progress: Callable[[RandomLabelStep], None] | None = None,
) -> RandomLabels:
    """Adam on cross-entropy with fresh, uniformly drawn labels in every mini-batch (lee2023mmd, §4 and appendix D.2).

    The labels of the batches are never used. The parameters whose mean loss over a hundred steps is lowest are kept,
    and with them the running statistics of normalisations, which belong to them; all else is as it was. The steps after
    the last whole hundred count as a window if they are more than fifty, or more than half of all steps where these are
    below a hundred, and are lost otherwise. An error leaves the model as it was; an interrupt (Ctrl-C) leaves the best
    parameters so far, as if the run had ended there, and the result says so. A model of half precision is trained in
    float32 and rounded at the end.

    Args:
        model: a classifier that returns samples × at least two logits; changed in place, trained in the mode found.
        batches: re-iterable; bare inputs or with targets. All of it is read, over and over.
        loss: the training's, which must be a classifier's where it is given; it is not used.
        steps: how many.
        learning_rate: of Adam.
        generator: a seed, a generator or None.
        progress: called after every step.

    Returns:
        What was done.

    Raises:
        ValueError: if an argument is out of range, the model is no classifier or cannot be trained, or the loss is
            not finite.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> done = random_labels_(net, [torch.randn(8, 3)], steps=2, generator=0)
    """
    check_options({"steps": (steps, 0)}, {"learning_rate": learning_rate})
    inner = initialised(model)
    require_classes(load_batches(batches, inner, max_batches=1)[0], loss)
    tensors = [*trained_parameters(inner), *inner.buffers()]
    state = Progress([tensor.detach().clone() for tensor in tensors])
    interrupted = False
    try:
        with preserve_state(inner), without_checkpoints():
            _train(inner, batches, state, tensors, steps, learning_rate, streams(generator), progress)
    except KeyboardInterrupt:
        interrupted = True
    put_values(tensors, state.best)
    return RandomLabels(state.step, state.kept, tuple(state.losses), interrupted, float(state.step))


random_labels_ = in_place(random_labels)


def _train(
    model: nn.Module,
    batches: Iterable[Any],
    state: Progress,
    tensors: list[Tensor],
    steps: int,
    learning_rate: float,
    stream: Callable[[str], Generator],
    progress: Callable[[RandomLabelStep], None] | None,
) -> None:
    trained = trained_parameters(model)
    optimizer = make_optimizer("adam", trained, learning_rate)
    labels = stream("labels")
    try:
        with closing(endless(batches, model, lambda number: stream(f"pass {number}").initial_seed())) as source:
            while state.step < steps:
                require_time()
                value = _loss(model, next(source), labels)
                gradients = torch.autograd.grad(value, trained, allow_unused=True)
                for parameter, gradient in zip(trained, gradients, strict=True):
                    parameter.grad = gradient
                optimizer.step()
                number = float(value.detach())
                state.add(number)
                if progress is not None:
                    progress(RandomLabelStep(state.step, steps, number))
                if state.open == WINDOW:
                    close_window(state, tensors)
    finally:  # also where an interrupt ends the run
        if long_enough(state.open, steps):
            close_window(state, tensors)


def _loss(model: nn.Module, batch: Batch, labels: Generator) -> Float[Tensor, ""]:
    with torch.enable_grad():
        logits = class_rows(checked_forward(model, batch))
        if not logits.requires_grad:
            raise ValueError(NOT_TRAINABLE)
        drawn = torch.randint(logits.shape[1], (len(logits),), generator=labels).to(logits.device)
        value = F.cross_entropy(logits, drawn)
    if not bool(torch.isfinite(value)):
        raise ValueError(
            f"random_labels_: expected a finite loss, got {float(value.detach())} on batch {batch.number}; look for "
            "exploding activations with theta0.diagnose, or lower the rate"
        )
    return value
