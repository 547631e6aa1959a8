"""A learning rate that is proven before it is given."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch, in_single_precision, load_batches, with_shapes
from theta0._errors import TimeEndedError, UserCodeError
from theta0._losses import Loss, backward, checked, constant_loss, loss_of, name_of
from theta0._models import Step, unwrapped
from theta0._progress import ENDED, Progress, countdown, shown, time_limit
from theta0._randomness import Randomness, streams
from theta0._ranks import on_every_rank
from theta0._state import preserve_state
from theta0._training import checked_positive
from theta0.curvature.learning_rate import LearningRate, Outcome, RateRun, cause, rate_and_direction, weight_size
from theta0.curvature.problem import Matrix
from theta0.curvature.stability import largest_rate
from theta0.curvature.top_eigenvalue import TopEigenvalue, top_eigenvalue
from theta0.experiments.estimates import VECTORS, announce_memory, announce_time, lacking
from theta0.experiments.halving import WINDOW, Search, brought, searched
from theta0.experiments.optimizers import Optimizer, OptimizerKind, optimizer_kind, steppable
from theta0.experiments.runs import Experiment, PausedRun, continued, counting, losses_at, prepared, started

FACTOR = 3.0  # between candidates
_MOVED = 0.03  # of a weight's norm by the first step, where there is no curvature to start from
_LEARNT = 0.99  # of the best constant predictor's loss: not lower, and no longer falling, is not training
_TARGETS = 10.0  # times a standardized target's spread, or its mean over its spread
TIE = 0.05  # of the least loss
EDGE = 1.5  # times its bound: training at a fixed rate settles near it (Cohen et al., 2021), well above it breaks
KEPT = 0.5  # of the leader's fall; where the loss falls in proportion to the rate a lower one keeps a third
SHARP = 0.1  # of λ at the start, at the end of the leader's run
APART = 30.0  # times as far from the first step's rate, a curvature's is tried first and need not be right
_COARSE = 0.1  # of λ, which only places the candidates


@on_every_rank
def suggest_learning_rate(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    optimizer: Optimizer = "sgd",
    *,
    step: Step | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    momentum: float = 0.9,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    matrix: Matrix | None = None,
    batch_sizes: Sequence[int] | None = None,
    steps: int = 400,
    seconds: float | None = None,
    warm_up: bool = False,
    tolerance: float = _COARSE,
    certify: tuple[float, float] | None = None,
    max_products: int = 100,
    max_batches: int | None = 4,
    recompute: bool | None = None,
    generator: Randomness = None,
    progress: bool | Progress | None = None,
) -> LearningRate:
    """A learning rate to train with, proven by short runs from the model's own start.

    The curvature at the start places the candidates (`curvature.curvature_rate`); they are a factor 3 apart, train for
    10 steps, and the best and its neighbours go on to 20 and 40, and on a plateau to 80 and 160. The suggestion is the
    rate whose run has the least loss at the end; what became of the others is in `LearningRate.runs`. The model is
    left as it was.

    Args:
        model: the network.
        batches: of the size that will be trained with; the runs read up to 32 of them.
        loss: a name, a callable, or None where the model returns its loss.
        optimizer: "sgd", "momentum", "adam", "adamw" or "rmsprop", a class, a factory, or an optimizer over the model's
            parameters, which is mirrored.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        clip_norm: to which you clip the gradient's norm before each step; None for no clipping.
        accumulate: over how many batches each of your steps accumulates gradients.
        momentum: of "momentum".
        nesterov: whether "momentum" is Nesterov's.
        betas: of Adam.
        eps: of the adaptive ones.
        weight_decay: adds to λ.
        matrix: "hessian" or "ggn"; see `curvature.curvature_rate`.
        batch_sizes: at most as large as the batches; λ is also taken on so many samples of each batch.
        steps: of all runs together, at most; about 100 are taken where the loss falls at once. 0 gives what the
            curvature says alone, unproven.
        seconds: that all may take, the curvature at most half of it where runs follow. What does not fit is left out:
            the suggestion is then the best rate that a run has proven by then, None where there is none, and
            `LearningRate.not_measured` says so. None for no limit.
        warm_up: whether to try the next higher rate with a warm-up too, for 40 to 160 steps more. It helps where λ
            falls in the first steps, not where it grows.
        tolerance: of λ.
        certify: (ε, δ) for λ on the first batch; see `top_eigenvalue`.
        max_products: of each λ; see `LearningRate.converged`.
        max_batches: how many batches λ is taken on at most, until two agree to the tolerance; None takes all.
        recompute: see `top_eigenvalue`.
        generator: seeds the starts of λ and the noise of the runs.
        progress: True for a bar, or a function of what is being done and the share that is done.

    Returns:
        The suggestion, with `value` None where no rate trains.

    Raises:
        ValueError: if an argument is wrong, or with `steps=0` there is no (positive) curvature.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> found = suggest_learning_rate(model, batches, "cross_entropy", "adam", steps=100)
        >>> found.proven, 1e-4 < found.value < 1
        (True, True)
    """
    checked(loss, step)
    left = countdown(checked_positive(seconds, "seconds"))
    inner = unwrapped(model)
    named = {"momentum": momentum, "nesterov": nesterov, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    settings: dict[str, Any] = named if isinstance(optimizer, str) else {}
    kind = steppable(optimizer_kind(optimizer, inner, clip_norm=clip_norm, accumulate=accumulate, **settings))
    options: dict[str, Any] = {
        "matrix": matrix,
        "batch_sizes": batch_sizes,
        "tolerance": tolerance,
        "certify": certify,
        "max_products": max_products,
        "max_batches": max_batches,
        "recompute": recompute,
        "generator": generator,
    }
    data = load_batches(batches, inner, max_batches=None if max_batches is None else max(max_batches, _READ), step=step)
    inner = with_shapes(inner, data[0])
    with shown(progress, "trying learning rates") as tell:
        _announce(tell, inner, kind, steps)
        began = time.monotonic()
        with time_limit(left() / 2 if steps > 0 else left()):
            allowed, direction = _allowed(inner, data, loss, kind, options, needed=steps <= 0 or certify is not None)
        if steps <= 0:
            return allowed
        short = lacking(inner, snapshots=_AT_ONCE + 2, kind=kind, waiting=_AT_ONCE)
        if short:
            return replace(allowed, not_measured=(*allowed.not_measured, f"Short runs: {short}."))
        most = max(1.0, steps - allowed.cost)
        announce_time(tell, most, (time.monotonic() - began) / max(1.0, allowed.cost), left())
        seed = int(torch.randint(2**31, (), generator=streams(generator)("runs")))
        with preserve_state(inner), time_limit(left()):
            experiment = counting(
                prepared(inner, data, loss, kind.make, seed), lambda made: tell("trying learning rates", made / most)
            )
            return _proven(experiment, kind, allowed, direction, steps, warm_up=warm_up)


_READ = 32  # batches that the runs train on
_AT_ONCE = 6  # runs that wait, in most searches


def _announce(tell: Progress, model: nn.Module, kind: OptimizerKind, steps: int) -> None:
    """Say beforehand what the curvature and the runs hold."""
    waiting, vectors = (_AT_ONCE if steps > 0 else 0), (VECTORS if kind.settings is not None else 0)
    snapshots = 1 + (waiting and waiting + 1)
    announce_memory(tell, model, snapshots=snapshots, kind=kind if waiting else None, waiting=waiting, vectors=vectors)


def _allowed(
    model: nn.Module, data: Sequence[Batch], loss: Loss, kind: OptimizerKind, options: dict[str, Any], *, needed: bool
) -> tuple[LearningRate, Tensor | None]:
    """What the curvature allows, and in which direction; without one, a rate of None and the reason."""
    if kind.settings is None:
        missing = f"The largest stable rate: no bound is known for {kind.name}."
        return _without_curvature(kind, missing, options["matrix"]), None
    short = lacking(model, vectors=VECTORS)
    if short:
        return _without_curvature(kind, f"λ at the start: {short}.", options["matrix"], reason=short), None
    try:
        found, direction = rate_and_direction(model, data, loss, kind.settings, **options)
        return replace(found, optimizer=kind.name), direction
    except UserCodeError:
        raise
    except TimeEndedError:
        return _without_curvature(kind, f"λ at the start: {ENDED}.", options["matrix"], reason=ENDED), None
    except (RuntimeError, ValueError) as error:
        if needed or options["batch_sizes"]:
            raise
        return _without_curvature(kind, f"λ at the start: {cause(error)}.", options["matrix"]), None


def _without_curvature(
    kind: OptimizerKind, missing: str, matrix: Matrix | None, *, reason: str | None = None
) -> LearningRate:
    """What is known where there is no curvature, and why there is none."""
    nan, name = math.nan, matrix or "ggn"
    numbers = (None, math.inf, nan, nan, 0, 1.0, None, kind.name, name, (nan, nan))
    return LearningRate(*numbers, reason=reason or missing, not_measured=(missing,))


def _proven(
    experiment: Experiment,
    kind: OptimizerKind,
    allowed: LearningRate,
    direction: Tensor | None,
    steps: int,
    *,
    warm_up: bool,
) -> LearningRate:
    """Search around what the curvature allows, or around a first step that moves weights a little."""
    moved, ceiling = _by_first_step(experiment, kind)
    anchor = moved if allowed.value is None or not allowed.value > 0 else allowed.value
    window = range(min(WINDOW, len(experiment.batches)))
    first = math.fsum(losses_at(experiment, window)) / len(window)
    constant = _constant(experiment)
    reference = first if constant is None else min(first, constant)
    around = Search(experiment, min(anchor, ceiling / FACTOR), FACTOR, ceiling, first, reference, {})
    search, rung = searched(around, steps - allowed.cost)
    allowed, extra = replace(allowed, advice=_advice(experiment)), 1 + len(window) / 3
    apart = max(anchor, moved) > APART * min(anchor, moved)
    if apart and not _succeeds(search, rung):  # a curvature that is that of one point, as at the root of zero
        other = replace(around, anchor=min(moved, ceiling / FACTOR))
        other, its_rung = searched(other, steps - allowed.cost - search.steps)
        if _succeeds(other, its_rung):
            extra, search, rung = extra + search.steps, other, its_rung
    leader = search.leader(rung)
    if leader is None or not _trains(search, leader, rung):
        return _cut_short(_nothing(search, rung, allowed, extra), search)
    leader = _least_of_equals(search, leader, rung)
    search, chosen, tops, allowed = _below_the_edge(search, leader, rung, kind, allowed, direction)
    found = _cut_short(_found(search, chosen, rung, replace(allowed, cost=allowed.cost + extra), tops), search)
    return _warmed(search, chosen, rung, found) if warm_up else _with_sharpness(found, rung)


def _cut_short(found: LearningRate, search: Search) -> LearningRate:
    """What was found, with that the time ended before the search did, where it is so."""
    if not search.stopped:
        return found
    missing = f"More and longer runs: {ENDED} after {search.steps} steps in all."
    reason = found.reason if found.proven else f"{ENDED} after {search.steps} steps, of which none proved a rate"
    return replace(found, reason=reason, not_measured=(*found.not_measured, missing))


def _succeeds(search: Search, rung: int) -> bool:
    leader = search.leader(rung) if rung else None
    return leader is not None and _trains(search, leader, rung)


def _with_sharpness(found: LearningRate, rung: int) -> LearningRate:
    """What a start whose λ falls many times in the first steps would gain by a warm-up."""
    if found.growth is None or found.growth > SHARP:
        return found
    sentence = (
        f"λ fell to {found.growth:.2g} times that of the start in {rung} steps: the start is sharp, and a higher rate "
        "may train better if it is raised step by step (theta0 rate TARGET --warm-up tries it)."
    )
    return replace(found, advice=(*found.advice, sentence))


def _warmed(search: Search, chosen: int, rung: int, found: LearningRate) -> LearningRate:
    """The next higher rate, raised linearly over half of the steps, if that beats the suggestion by more than a tie."""
    rate = search.runs[chosen].rate * search.factor
    if rate > search.ceiling:
        return found
    run = continued(search.experiment, started(search.experiment, rate, rung // 2), rung)
    found = replace(found, cost=found.cost + len(run.losses))
    if len(run.losses) < rung and not run.diverged:
        return replace(found, not_measured=(*found.not_measured, f"A warm-up: {ENDED}."))
    if not run.score(rung, WINDOW) < (1 - TIE) * search.runs[chosen].score(rung, WINDOW):
        return found
    return replace(found, warm_up=(rung // 2, rate))


def _least_of_equals(search: Search, leader: int, rung: int) -> int:
    """The lowest rate that has fallen and is as good: short runs favour high rates, whose noise long ones show."""
    scores = search.scores(rung)
    equal = scores[leader] + TIE * abs(scores[leader])
    return min(k for k, score in scores.items() if k == leader or (score <= equal and search.fallen(k, rung)))


def _below_the_edge(
    search: Search, leader: int, rung: int, kind: OptimizerKind, allowed: LearningRate, direction: Tensor | None
) -> tuple[Search, int, dict[int, float], LearningRate]:
    """The leader, or the next lower rate that trains where λ at the leader's end lies far above its bound.

    A lower rate that falls much more slowly as far as both went is not taken.

    Returns:
        The runs, the chosen one, λ where it was measured, and what the curvature allows, with the cost of measuring.

    Raises:
        UserCodeError: if the model or the loss raises.
    """
    if direction is None or kind.settings is None or kind.adaptive:
        return search, leader, {}, allowed
    try:
        found = _top(search.experiment, search.runs[leader], allowed.matrix, direction)
    except UserCodeError:
        raise
    except (TimeEndedError, RuntimeError, ValueError) as error:
        missing = f"λ where the run ended: {cause(error)}."
        return search, leader, {}, replace(allowed, not_measured=(*allowed.not_measured, missing))
    tops, allowed = {leader: found.value}, replace(allowed, cost=allowed.cost + found.cost)
    above = search.runs[leader].rate > EDGE * largest_rate(kind.settings, found.value)
    if not above or not _keeps_up(search, leader):
        return search, leader, tops, allowed
    lower = brought(search, {leader - 1}, rung)
    if lower.runs[leader - 1].diverged or not _trains(lower, leader - 1, rung):
        return lower, leader, tops, allowed
    return lower, leader - 1, tops, allowed


def _keeps_up(search: Search, leader: int) -> bool:
    """Whether the next lower rate lost at least a share of what the leader did, in as many steps."""
    run = search.runs.get(leader - 1)
    if run is None:
        return False
    fell, beside = (search.first - r.score(len(run.losses), WINDOW) for r in (run, search.runs[leader]))
    return fell >= KEPT * beside


def _top(experiment: Experiment, run: PausedRun, matrix: Matrix, direction: Tensor) -> TopEigenvalue:
    """λ on the first batch where a run stands, from the eigenvector at the start."""
    run.resume()
    inner, data = in_single_precision(experiment.model, experiment.batches[:1])
    limits: dict[str, Any] = {"tolerance": _COARSE, "max_products": 4, "generator": 0}
    return top_eigenvalue(inner, data, experiment.loss, matrix=matrix, start=direction, **limits)


def _trains(search: Search, k: int, rung: int) -> bool:
    """Whether a run's loss is below what a constant predictor reaches, or has fallen and still falls."""
    score, before = search.runs[k].score(rung, WINDOW), search.runs[k].score(rung // 2, WINDOW)
    return score < _LEARNT * search.reference or (score < search.first and score < _LEARNT * before)


def _nothing(search: Search, rung: int, allowed: LearningRate, extra: float) -> LearningRate:
    diverged = search.leader(rung) is None
    reason = "every rate diverged" if diverged else f"{rung} steps at no rate lowered the loss of {search.first:.3g}"
    cost = allowed.cost + search.steps + extra
    return replace(allowed, value=None, cost=cost, runs=_evidence(search, rung, None, {}), proven=False, reason=reason)


def _found(search: Search, k: int, rung: int, allowed: LearningRate, tops: dict[int, float]) -> LearningRate:
    run = search.runs[k]
    reason = f"the least loss after {rung} steps, {run.score(rung, WINDOW):.3g} from {search.first:.3g}"
    if k not in tops and tops:
        reason = f"{reason}, of the rates below the bound at the end"
    return replace(
        allowed,
        value=run.rate,
        cost=allowed.cost + search.steps,
        runs=_evidence(search, rung, k, tops),
        proven=True,
        growth=tops[k] / allowed.top_eigenvalue if k in tops else None,
        reason=reason,
    )


def _evidence(search: Search, rung: int, chosen: int | None, tops: dict[int, float]) -> tuple[RateRun, ...]:
    return tuple(
        RateRun(run.rate, run.losses, _outcome(search, k, rung, chosen, tops), tops.get(k))
        for k, run in sorted(search.runs.items())
        if run.losses
    )


def _outcome(search: Search, k: int, rung: int, chosen: int | None, tops: dict[int, float]) -> Outcome:
    run = search.runs[k]
    if run.diverged:
        return "diverges"
    if chosen is not None and k in tops and k != chosen:
        return "unstable"
    if len(run.losses) < rung:
        return "waits"
    return "rises" if run.score(rung, WINDOW) > search.first else "trains" if _trains(search, k, rung) else "stalls"


def _constant(experiment: Experiment) -> float | None:
    """The best constant predictor's loss, where it is known."""
    batch = experiment.batches[0]
    with torch.enable_grad():
        _, outputs = loss_of(experiment.model, batch, experiment.loss)
    found = [constant_loss(experiment.loss, outputs, b) for b in experiment.batches[:WINDOW]]
    return None if any(f is None for f in found) else math.fsum(f for f in found if f is not None) / len(found)


def _advice(experiment: Experiment) -> tuple[str, ...]:
    """Regression targets whose size or distance from zero the outputs must first be brought to."""
    if name_of(experiment.loss) not in ("mse", "l1"):
        return ()
    targets = [b.targets.detach().double() for b in experiment.batches if isinstance(b.targets, Tensor)]
    if not targets:
        return ()
    together = torch.cat([t.flatten() for t in targets])
    mean, spread = float(together.mean()), float(together.std(correction=0))
    if 1 / _TARGETS < spread < _TARGETS and abs(mean) < _TARGETS * spread:
        return ()
    return (
        f"The targets have mean {mean:.3g} and standard deviation {spread:.3g}: standardize the targets "
        "((targets - mean) / deviation); most of the training goes into reaching their size.",
    )


def _by_first_step(experiment: Experiment, kind: OptimizerKind) -> tuple[float, float]:
    """The rate whose first step moves a weight by 3 % of its norm, and the rate above which none is tried."""
    experiment.restore()
    model = experiment.model
    if kind.adaptive:
        size = weight_size(model)
        return _MOVED * size, size
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        value, _ = loss_of(model, experiment.batches[0], experiment.loss)
        backward(value)
    trained = [p for p in model.parameters() if p.grad is not None]
    norms = [(float(p.detach().norm()), float(p.grad.norm())) for p in trained if p.grad is not None and p.dim() > 1]
    ratios = [size / gradient for size, gradient in norms if size > 0 and gradient > 0]
    return _MOVED * min(ratios, default=1.0), math.inf
