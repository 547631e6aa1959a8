"""Move a start to where its neighbours solve as many different classification tasks as possible, without labels."""

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from contextlib import closing
from dataclasses import asdict, astuple, dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from theta0._batches import Batch, checked_forward, endless, initialised, load_batches, searched_in_single_precision
from theta0._models import in_place, main_output
from theta0._progress import require_time
from theta0._randomness import Randomness, streams
from theta0._ranks import from_first, gathered, ranks, share, summed
from theta0._state import steady, twice_differentiable
from theta0._training import count_gradients, make_optimizer
from theta0._weights import put_values, trained_parameters
from theta0.initializers.classifiers import require_classes
from theta0.initializers.mmd_checkpoint import (
    WINDOW,
    Progress,
    close_window,
    long_enough,
    read_progress,
    write_progress,
)
from theta0.measurements.degeneracy import degenerate_loss
from theta0.measurements.output_jacobian import detachment_loss
from theta0.measurements.perturbation_noise import perturbation_seeds
from theta0.measurements.perturbed_outputs import (
    MEMORY,
    Neighbourhood,
    PerturbedOutputs,
    neighbourhood,
    sampled,
    samples_of,
)
from theta0.measurements.simplex_discrepancy import discrepancy, uniform_simplex

EPOCHS = 5
NOT_TRAINABLE = (
    "model: expected outputs that depend on a parameter that requires a gradient, got ones cut off from all of them; "
    "look for detach(), torch.no_grad() or .data in its forward pass, or unfreeze a parameter that it uses"
)
_JUDGED = 4  # batches on which the terms are compared before and after


@dataclass(frozen=True)
class MmdTerms:
    """The loss and its terms.

    Attributes:
        loss: lee2023mmd, equation 23.
        uniformity: L_uni, the unbiased MMD² to uniform outputs.
        degenerate: L_sd.
        detachment: L_iod; zero where its weight is.
    """

    loss: float
    uniformity: float
    degenerate: float
    detachment: float


@dataclass(frozen=True)
class MmdStep:
    """One step, for a progress display.

    Attributes:
        step: its number, from 1.
        steps: how many there will be.
        terms: on this step's batch, before its update.
    """

    step: int
    steps: int
    terms: MmdTerms


@dataclass(frozen=True)
class Mmd:
    """What `mmd_` did.

    Attributes:
        before: the terms at the start, a mean over at most four batches.
        after: the same batches and perturbations at the parameters kept.
        steps: how many were made, a resumed run's earlier ones too.
        best_step: the step whose parameters were kept; 0 for the start.
        losses: the mean loss of each window of steps.
        interrupted: whether the run was stopped early.
        routes: by parameter, how its noise entered (see `PerturbedOutputs`).
        obstacle: why perturbations did not share a pass; None where they did.
        chunks: into how many parts memory split the perturbations.
        cost: in gradients of the unperturbed model on a batch, counted as forward and backward passes over rows.
    """

    before: MmdTerms
    after: MmdTerms
    steps: int
    best_step: int
    losses: tuple[float, ...]
    interrupted: bool
    routes: dict[str, str]
    obstacle: str | None
    chunks: int
    cost: float


@dataclass(frozen=True)
class Weights:
    """How the terms add up: the weight of L_uni, λ of L_sd and ξ of L_iod (lee2023mmd, equation 23)."""

    uniformity: float
    degenerate: float
    detachment: float


@dataclass(frozen=True, eq=False)
class Terms:
    """The loss on one batch: L_uni (lee2023mmd, equations 9 and 10), L_sd (14) and L_iod (22).

    `loss` is their weighted sum; on several ranks the derivatives of all of them sum to the whole one. `outputs` are
    those of this rank's share.
    """

    loss: Tensor
    uniformity: Tensor
    degenerate: Tensor
    detachment: Tensor
    outputs: PerturbedOutputs


@dataclass(frozen=True, eq=False)
class _Task:
    model: nn.Module
    batches: Iterable[Any]
    judged: list[Batch]
    around: Neighbourhood
    scale: float
    weights: Weights
    perturbations: int
    steps: int
    learning_rate: float
    seed: int
    memory: int
    progress: Callable[[MmdStep], None] | None
    checkpoint: Path | None

    def terms(self, batch: Batch, seed: int, weights: Weights | None = None) -> Terms:
        """The loss on a batch."""
        weights, count = weights or self.weights, self.perturbations
        return mmd_terms(self.around, batch.inputs, weights, seed, perturbations=count, memory=self.memory)


@searched_in_single_precision
def mmd(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    perturbations: int = 256,
    scale: float = math.sqrt(0.5),
    uniformity: float = 1.0,
    degenerate: float = 0.4,
    detachment: float = 1.0,
    steps: int | None = None,
    learning_rate: float = 2e-4,
    generator: Randomness = None,
    progress: Callable[[MmdStep], None] | None = None,
    checkpoint: str | Path | None = None,
    memory: int = MEMORY,
) -> Mmd:
    r"""Train a classifier's start, without labels, so that small perturbations of it solve all kinds of tasks.

    Adam lowers L_uni + λ L_sd + ξ L_iod (lee2023mmd, equation 23): for each input the outputs of models perturbed by
    Gaussian noise (section 3.3) should be spread uniformly over the simplex; no perturbed model should leave a class
    out; and the logits should depend on the input and on every layer. The parameters whose mean loss over a hundred
    steps is lowest are kept (section 4); the steps after the last whole hundred count as a window if they are more
    than fifty, or more than half of all steps where these are below a hundred, and are lost otherwise. Frozen
    parameters are neither perturbed nor moved; buffers, modes and random states are as before. On several ranks of a
    process group the perturbations are split. A model of half precision is trained in float32 and rounded at the end.

    An error while it trains leaves the model as it was; an interrupt (Ctrl-C) leaves the best parameters so far, as if
    the run had ended there, and the result says so. Once trained, the best parameters stay, whatever happens later.

    Args:
        model: a classifier that returns samples × at least two logits; changed in place.
        batches: re-iterable; bare inputs or with targets, which are not used. All of it is read.
        loss: the training's, which must be a classifier's where it is given; it is not used.
        perturbations: perturbed models a step, and uniform points a sample.
        scale: s; weights get s / √fan-in, biases s / √fan-out.
        uniformity: the weight of L_uni.
        degenerate: λ. The source's 0.4 is for two classes; with more L_sd prefers answers that are alike for all inputs
            to a balanced classifier's (`measurements.degeneracy`), and only L_uni and L_iod stand against that.
        detachment: ξ.
        steps: how many; None for five passes over the batches.
        learning_rate: of Adam.
        generator: a seed, a generator or None.
        progress: called after every step.
        checkpoint: a safetensors file, written after each window and at the end; a run that finds it goes on
            from there, also to more steps. It must be given the same start (not what an interrupt left), and the same
            settings but for `steps` and `memory`; that the batches are the same is not checked.
        memory: bytes that perturbed outputs may keep for the backward pass, about.

    Returns:
        What was done.

    Raises:
        ValueError: if an argument is out of range, the model is no classifier or cannot be trained, a batch has fewer
            than two samples, the loss is not finite, or the checkpoint is of another model, start or setting.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0.initializers import mmd_
        >>> inputs = [x for x, _ in batches]  # no labels are needed
        >>> mmd_(model, inputs, perturbations=8, steps=2) is model
        True
    """
    check_options(
        {"perturbations": (perturbations, 2), "steps": (0 if steps is None else steps, 0), "memory": (memory, 1)},
        {"scale": scale, "learning_rate": learning_rate},
        {"uniformity": uniformity, "degenerate": degenerate, "detachment": detachment},
    )
    inner = initialised(model)
    trained = trained_parameters(inner)
    judged = load_batches(batches, inner, max_batches=_JUDGED)
    require_classes(judged[0], loss)
    for batch in judged:
        _require_several(batch)
    seed = from_first(streams(generator)("mmd").initial_seed())
    with twice_differentiable(inner):
        _require_attached(inner, judged[0])
        around = neighbourhood(inner, judged[0].inputs, scale)
    task = _Task(
        inner, batches, judged, around, scale, Weights(uniformity, degenerate, detachment), perturbations,
        steps if steps is not None else EPOCHS * _length(batches), learning_rate, seed, memory, progress,
        None if checkpoint is None else Path(checkpoint),
    )  # fmt: skip
    return _result(task, *_run(task, trained))


mmd_ = in_place(mmd)


def _run(task: _Task, trained: list[nn.Parameter]) -> tuple[MmdTerms, MmdTerms, Progress, bool]:
    """Train, leave the best parameters in the model, and judge it; also whether an interrupt ended the training."""
    state: Progress | None = None
    interrupted = False
    done = False
    try:
        with twice_differentiable(task.model):
            before = _judge(task)
            optimizer = make_optimizer("adam", trained, task.learning_rate)
            state = read_progress(task.checkpoint, task.model, optimizer, _settings(task))
            try:
                _train(task, trained, optimizer, state)
            except KeyboardInterrupt:
                interrupted = True
            done = True
            put_values(trained, state.best)
            after = _judge(task)
        put_values(trained, state.best)
    except BaseException as error:  # the block above has put the start back
        if state is not None and (done or isinstance(error, KeyboardInterrupt)):
            put_values(trained, state.best)
        raise
    return before, after, state, interrupted


def _train(task: _Task, trained: list[nn.Parameter], optimizer: torch.optim.Optimizer, state: Progress) -> None:
    """Steps, with the best window's parameters kept."""
    stream = streams(task.seed)
    source = endless(task.batches, task.model, lambda number: stream(f"pass {number}").initial_seed(), skip=state.step)
    try:
        with closing(source):  # at once, not when a traceback lets go of it: a loader's own generator is put back
            while state.step < task.steps:
                require_time()
                batch = next(source)
                _require_several(batch)
                terms = _step(task, trained, optimizer, batch, stream(f"step {state.step}").initial_seed())
                state.add(terms.loss)
                if task.progress is not None:
                    task.progress(MmdStep(state.step, task.steps, terms))
                if state.open >= WINDOW:
                    close_window(state, trained)
                    write_progress(task.checkpoint, task.model, optimizer, state)
        if state.open:  # stays open in the file, so that a run of more steps goes on as one never ended
            write_progress(task.checkpoint, task.model, optimizer, state)
    finally:  # also where an interrupt ends the run
        if long_enough(state.open, task.steps):
            close_window(state, trained)


def _settings(task: _Task) -> dict[str, int | float]:
    """What decides the steps besides the model and the data: a run goes on only under the same."""
    numbers = {"scale": task.scale, **asdict(task.weights), "learning_rate": task.learning_rate}
    counts = {"perturbations": task.perturbations, "generator": task.seed}
    return {name: int(value) for name, value in counts.items()} | {k: float(value) for k, value in numbers.items()}


def _step(
    task: _Task, trained: list[nn.Parameter], optimizer: torch.optim.Optimizer, batch: Batch, seed: int
) -> MmdTerms:
    same_everywhere(batch.inputs, batch.number)
    optimizer.zero_grad(set_to_none=True)
    terms = task.terms(batch, seed)
    numbers = _numbers(terms)
    if not math.isfinite(numbers.loss):
        raise ValueError(f"mmd_: expected a finite loss, got {numbers.loss} on batch {batch.number}; lower the rate")
    terms.loss.backward(inputs=trained)  # type: ignore[no-untyped-call]
    if ranks() > 1:
        for parameter in trained:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = summed(gradient)
    optimizer.step()
    return numbers


def _judge(task: _Task) -> MmdTerms:
    """The terms on the judged batches, with the same perturbations each time."""
    seed_of = streams(task.seed)
    with torch.no_grad():
        found = [
            astuple(_numbers(task.terms(batch, seed_of(f"judge {batch.number}").initial_seed())))
            for batch in task.judged
        ]
    return MmdTerms(*(sum(values) / len(found) for values in zip(*found, strict=True)))


def _result(task: _Task, before: MmdTerms, after: MmdTerms, state: Progress, interrupted: bool) -> Mmd:
    with twice_differentiable(task.model), torch.no_grad():
        outputs = task.terms(task.judged[0], task.seed, Weights(1.0, 0.0, 0.0)).outputs
    classes = min(10, outputs.logits.shape[-1]) if task.weights.detachment else 0
    again = count_gradients(1, forward=outputs.chunks > 1)  # a chunk's forward pass is repeated in its backward pass
    each = task.perturbations * again + 2 * classes
    judging = 2 * len(task.judged) * count_gradients(classes, forward=task.perturbations)
    return Mmd(
        before, after, state.step, state.kept, tuple(state.losses), interrupted, dict(outputs.routes),
        task.around.obstacle, outputs.chunks, state.step * each + judging,
    )  # fmt: skip


def _numbers(terms: Terms) -> MmdTerms:
    return MmdTerms(float(terms.loss.detach()), float(terms.uniformity), float(terms.degenerate),
                    float(terms.detachment))  # fmt: skip


def _require_several(batch: Batch) -> None:
    if samples_of(batch.inputs) < 2:
        raise ValueError(
            f"batch {batch.number}: expected at least two samples, got {samples_of(batch.inputs)}; whether a perturbed "
            "model uses all classes shows only over several: use larger batches (a DataLoader's drop_last=True leaves "
            "a short last one out)"
        )


def _length(batches: Iterable[Any]) -> int:
    if not isinstance(batches, Sized):
        raise ValueError(
            f"steps: expected a number, since batches of type {type(batches).__name__} have no length; pass steps=…"
        )
    return len(batches)


def _require_attached(model: nn.Module, batch: Batch) -> None:
    with steady(model):
        outputs = main_output(checked_forward(model, batch))
    if outputs is not None and not outputs.requires_grad:
        raise ValueError(NOT_TRAINABLE)


def check_options(
    counts: Mapping[str, tuple[Any, int]], positive: Mapping[str, Any], weights: Mapping[str, Any] | None = None
) -> None:
    """Refuse counts below the least, numbers that are not positive, and weights that are negative."""
    weights = weights or {}
    for name, (value, least) in counts.items():
        if not isinstance(value, Integral) or value < least:
            raise ValueError(f"{name}: expected a whole number of at least {least}, got {value}")
    for name, value in {**positive, **weights}.items():
        number = float(value) if isinstance(value, Real) else math.nan
        if not (math.isfinite(number) and (number > 0 or (name in weights and number == 0))):
            wanted = "number of at least 0, and finite" if name in weights else "positive number"
            raise ValueError(f"{name}: expected a {wanted}, got {value}")


def mmd_terms(
    around: Neighbourhood, inputs: Any, weights: Weights, seed: int, *, perturbations: int, memory: int
) -> Terms:
    """The loss of lee2023mmd, equation 23, on one batch.

    Perturbations are split over the ranks of a process group, which must be given the same inputs. The seed, equal on
    all ranks, is that of perturbations, uniform points (as many a sample) and, beyond ten, classes.
    """
    stream = streams(seed)
    seeds = share(perturbation_seeds(perturbations, stream("perturbations")))
    outputs = sampled(around, inputs, seeds, memory=memory)
    logits = gathered(outputs.logits, perturbations)
    probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    samples, classes = probabilities.shape[1:]
    uniform = uniform_simplex(samples, perturbations, classes, stream("simplex"), probabilities.dtype)
    uniformity = discrepancy(probabilities.transpose(0, 1), uniform).mean()
    degenerate = degenerate_loss(probabilities)
    if weights.detachment:
        detachment = detachment_loss(around.model, inputs, generator=stream("classes"))
    else:
        detachment = torch.zeros_like(uniformity)
    once = detachment / ranks()  # every rank computes it, and derivatives are summed
    once = once + (detachment - once).detach()
    loss = weights.uniformity * uniformity + weights.degenerate * degenerate + weights.detachment * once
    return Terms(loss, uniformity.detach(), degenerate.detach(), detachment.detach(), outputs)


def same_everywhere(inputs: Any, number: int) -> None:
    """Refuse a batch that is not the same on all ranks."""
    if ranks() == 1:
        return
    leaves = [leaf.detach().double().flatten() for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    total = float(sum((leaf * torch.linspace(1, 2, len(leaf)).to(leaf)).sum() for leaf in leaves))
    if float(summed(torch.tensor(float(total != from_first(total))))) > 0:  # so that no rank goes on alone
        raise ValueError(
            f"batch {number}: expected the same batch on every rank, since perturbations are split and not samples, "
            "got different ones; pass the same data everywhere (no DistributedSampler)"
        )
