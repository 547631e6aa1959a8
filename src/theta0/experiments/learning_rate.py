"""A learning rate that is proven before it is given."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from theta0._batches import Batch, materialised, ready
from theta0._losses import Loss, checked, constant_loss, loss_of
from theta0._models import unwrapped
from theta0._randomness import Randomness, streams
from theta0._untouched import untouched
from theta0._user_code import UserCodeError
from theta0.curvature.learning_rate import LearningRate, Outcome, RateRun, curvature_rate
from theta0.curvature.problem import Matrix
from theta0.experiments.halving import FALL, WINDOW, Search, searched
from theta0.experiments.optimizers import Optimizer, OptimizerKind, optimizer_kind
from theta0.experiments.runs import Experiment, losses_at, prepared

FACTOR = 3.0  # between candidates
_MOVED = 0.03  # of a weight's norm by the first step, where there is no curvature to start from
_REPLACED = 1.0  # of the weights' own size: a step of an adaptive optimizer that long draws another network
_LEARNT = 0.99  # of the best constant predictor's loss: not lower, and no longer falling, is not training
_COARSE = 0.1  # of λ, which only places the candidates


def suggest_learning_rate(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    optimizer: Optimizer = "sgd",
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    matrix: Matrix | None = None,
    batch_sizes: Sequence[int] | None = None,
    steps: int = 400,
    tolerance: float = _COARSE,
    certify: tuple[float, float] | None = None,
    max_products: int = 100,
    max_batches: int | None = 4,
    recompute: bool | None = None,
    generator: Randomness = None,
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
        momentum: of "momentum".
        nesterov: whether "momentum" is Nesterov's.
        betas: of Adam.
        eps: of the adaptive ones.
        weight_decay: adds to λ.
        matrix: "hessian" or "ggn"; see `curvature.curvature_rate`.
        batch_sizes: at most as large as the batches; λ is also taken on so many samples of each batch.
        steps: of all runs together, at most; about 100 are taken where the loss falls at once. 0 gives what the
            curvature says alone, unproven.
        tolerance: of λ.
        certify: (ε, δ) for λ on the first batch; see `top_eigenvalue`.
        max_products: of each λ; see `LearningRate.converged`.
        max_batches: how many batches λ is taken on; None takes all.
        recompute: see `top_eigenvalue`.
        generator: seeds the starts of λ and the noise of the runs.

    Returns:
        The suggestion, with `value` None where no rate trains.

    Raises:
        ValueError: if an argument is wrong, or with `steps=0` there is no (positive) curvature.
    """
    inner = unwrapped(model)
    named = {"momentum": momentum, "nesterov": nesterov, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    kind = optimizer_kind(optimizer, inner, **(named if isinstance(optimizer, str) else {}))
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
    data = materialised(batches, inner, max_batches=None if max_batches is None else max(max_batches, _READ))
    inner = ready(inner, data[0])
    allowed = _allowed(inner, data, loss, kind, options, needed=steps <= 0 or certify is not None)
    if steps <= 0:
        return allowed
    seed = int(torch.randint(2**31, (), generator=streams(generator)("runs")))
    with untouched(inner):
        return _proven(prepared(inner, data, checked(loss), kind.make, seed), kind, allowed, steps)


_READ = 32  # batches that the runs train on


def _allowed(
    model: nn.Module, data: Sequence[Batch], loss: Loss, kind: OptimizerKind, options: dict[str, Any], *, needed: bool
) -> LearningRate:
    """What the curvature allows; without one, a rate of None and the reason."""
    if kind.settings is None:
        return _without_curvature(kind, f"{kind.name}: no bound is known for it", options["matrix"])
    try:
        return replace(curvature_rate(model, data, loss, kind.settings, **options), optimizer=kind.name)
    except UserCodeError:
        raise
    except (RuntimeError, ValueError) as error:
        if needed or options["batch_sizes"]:
            raise
        return _without_curvature(kind, str(error).strip().splitlines()[0], options["matrix"])


def _without_curvature(kind: OptimizerKind, reason: str, matrix: Matrix | None) -> LearningRate:
    nan = math.nan
    return LearningRate(None, math.inf, nan, nan, 0, 1.0, None, kind.name, matrix or "ggn", (nan, nan), reason=reason)


def _proven(experiment: Experiment, kind: OptimizerKind, allowed: LearningRate, steps: int) -> LearningRate:
    """Search around what the curvature allows, or around a first step that moves weights a little."""
    moved, ceiling = _by_first_step(experiment, kind)
    anchor = moved if allowed.value is None or not allowed.value > 0 else allowed.value
    anchor = min(anchor, ceiling / FACTOR)
    count = len(experiment.batches)
    window = range(min(WINDOW, count))
    first = math.fsum(losses_at(experiment, window)) / len(window)
    search = Search(experiment, anchor, FACTOR, ceiling, first, {})
    search = replace(search, runs={k: _fresh(search, k) for k in (-1, 0, 1)})
    floor = _constant(experiment)
    reference = min(first, floor) if floor is not None else first
    search, rung = searched(search, steps, lambda s, r: _fallen(s, r, reference))
    return _result(search, rung, allowed, reference, 1 + len(window) / 3)


def _fresh(search: Search, k: int) -> Any:
    from theta0.experiments.runs import started

    return started(search.experiment, search.anchor * search.factor**k)


def _fallen(search: Search, rung: int, reference: float) -> bool:
    leader = search.leader(rung)
    return leader is not None and search.scores(rung)[leader] <= reference - FALL * abs(reference)


def _result(search: Search, rung: int, allowed: LearningRate, reference: float, extra: float) -> LearningRate:
    leader = search.leader(rung)
    scores = search.scores(rung)
    trains = leader is not None and scores[leader] < _LEARNT * reference
    runs = tuple(
        RateRun(run.rate, run.losses, _outcome(search, k, rung, leader if trains else None))
        for k, run in sorted(search.runs.items())
    )
    cost = allowed.cost + search.steps + extra
    if leader is None or not trains:
        reason = "every rate diverged" if leader is None else f"no rate lowered the loss below {reference:.3g}"
        return replace(allowed, value=None, cost=cost, runs=runs, proven=False, reason=reason)
    chosen = search.runs[leader]
    reason = f"the least loss after {rung} steps, {scores[leader]:.3g} from {search.first:.3g}"
    return replace(allowed, value=chosen.rate, cost=cost, runs=runs, proven=True, reason=reason)


def _outcome(search: Search, k: int, rung: int, leader: int | None) -> Outcome:
    run = search.runs[k]
    if run.diverged:
        return "diverges"
    if k == leader:
        return "trains"
    if len(run.losses) < rung:
        return "waits"
    score = run.score(rung, WINDOW)
    return "rises" if score > search.first else "trains" if score < _LEARNT * search.first else "stalls"


def _constant(experiment: Experiment) -> float | None:
    """The best constant predictor's loss, where it is known."""
    batch = experiment.batches[0]
    with torch.enable_grad():
        _, outputs = loss_of(experiment.model, batch, experiment.loss)
    found = [constant_loss(experiment.loss, outputs, b) for b in experiment.batches[:WINDOW]]
    return None if any(f is None for f in found) else math.fsum(f for f in found if f is not None) / len(found)


def _by_first_step(experiment: Experiment, kind: OptimizerKind) -> tuple[float, float]:
    """The rate whose first step moves a weight by 3 % of its norm, and the rate above which none is tried."""
    experiment.restore()
    model = experiment.model
    model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        value, _ = loss_of(model, experiment.batches[0], experiment.loss)
        value.backward()  # type: ignore[no-untyped-call]
    weights = [p for p in model.parameters() if p.requires_grad and p.dim() > 1] or [
        p for p in model.parameters() if p.requires_grad
    ]
    sizes = [(float(p.detach().norm()), p) for p in weights]
    if kind.adaptive:
        typical = sorted(size / p.numel() ** 0.5 for size, p in sizes if size > 0)
        middle = typical[len(typical) // 2] if typical else 1.0
        return _MOVED * middle, _REPLACED * middle
    ratios = [size / float(p.grad.norm()) for size, p in sizes if p.grad is not None and float(p.grad.norm()) > 0]
    ratios = [ratio for ratio in ratios if ratio > 0]
    return _MOVED * min(ratios, default=1.0), math.inf
