"""One optimiser of scales for several objectives: search on some batches, verify on others, keep what is better."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from theta0._batches import (
    Batch,
    checked_forward,
    held_out,
    in_single_precision,
    initialised,
    load_batches,
    require_separable,
    sliced,
)
from theta0._errors import UserCodeError
from theta0._losses import Loss, checked
from theta0._progress import require_time
from theta0._randomness import Randomness, streams
from theta0._state import functorch_safe, transaction
from theta0.initializers.scaled_network import Objective, Quality, ScaledNetwork, Slope, scaled_network
from theta0.measurements.outputs import Pass, output_records

_JUDGED = 4  # most training batches on which starting norm and candidates are measured
_MARGIN = 0.95  # of the cap, within which steps stay: the norm on held-out batches, judged by the cap itself, differs
_SHARES = (1.0, 0.5, 0.25)  # of the way in the scales' logarithms, which are compared at the end
_BETAS = (0.9, 0.999)
_TINY = 1e-8
_WINDOW = 16  # steps over which a stall is looked for
_BALANCE = (0.25, 0.75)  # share of constraint steps, within which the two kinds of steps work against each other
_PROGRESS = 0.25  # of the path's length; a random walk of 16 steps gets as far


@dataclass(frozen=True)
class ScaleSearch:
    """What a search for scales did.

    Attributes:
        method: "nio", "gradinit" or "metainit".
        objective: what `before` and `after` hold.
        scales: one factor for each trained tensor that is not zero, by name; tied tensors share one. All one where
            the start was not changed.
        before: the start on held-out batches.
        after: the scaled start on the same; the best found, even where it was not kept.
        cap: the largest gradient norm allowed there.
        kept: whether the model now has the scaled start; otherwise it is bit for bit as given.
        reason: one sentence saying why.
        steps: how many were made.
        constrained_share: the share of them that descended the gradient norm.
        stalls: how often the rate was halved because steps of the two kinds cancelled.
        interpolation: the share of the way, in the scales' logarithms, that was best.
        objectives: on the search's batches, at each step.
        gradient_norms: likewise.
        spreads: the deviation between samples of the network's main output on held-out batches, before and after:
            samples that come out alike pull the same way, so that a high GradCosine is then no good sign.
        seed: of the order of samples.
        cost: in gradients of the mean batch.
    """

    method: str
    objective: str
    scales: dict[str, float]
    before: Quality
    after: Quality
    cap: float
    kept: bool
    reason: str
    steps: int
    constrained_share: float
    stalls: int
    interpolation: float
    objectives: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    spreads: tuple[float, float]
    seed: int
    cost: float

    @property
    def refusal(self) -> str:
        """Why the start was not changed, as an error says it."""
        return f"{self.method}: {self.reason}; the start is unchanged"


@dataclass(frozen=True)
class SearchSettings:
    """How a search is made.

    Attributes:
        gradient_norm_cap: a multiple of the starting norm or absolute, infinite for none.
        cap_unit: which of the two.
        learning_rate: the largest relative change of a scale in one step; Adam's rate where `verified` is False.
        steps: how many; None for one pass over the batches.
        lower_bound: of a scale.
        verified: search on some batches and keep the start that held-out ones prove better, with steps that are
            bounded and halved where they cancel. Where False, the published procedure: Adam's steps on the scales
            themselves over all batches, the last scales kept.
        scaled: the parameters that get a scale, by name; None for all that are trained and not zero.
        free_biases: whether the scales of biases may fall to 0 instead of `lower_bound`.
    """

    gradient_norm_cap: float
    cap_unit: Literal["start", "absolute"]
    learning_rate: float
    steps: int | None
    lower_bound: float
    verified: bool = True
    scaled: frozenset[str] | None = None
    free_biases: bool = False


@dataclass(frozen=True, eq=False)
class _Walk:
    """Where a search stands.

    Attributes:
        scales: the present scales.
        rate: the largest relative change of a scale in one step.
        lower: the least scale; its inverse is the largest.
        stalls: how often the rate was halved because steps cancelled.
        path: the last steps in the scales' logarithms, with their kinds.
        moments: Adam's moments with the number of steps behind them, by order and kind of step.
    """

    scales: Float64[Tensor, " scales"]
    rate: float
    lower: float
    stalls: int = 0
    path: tuple[tuple[bool, Float64[Tensor, " scales"]], ...] = ()
    moments: Mapping[tuple[int, bool], tuple[Tensor, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Search:
    objective: Objective
    settings: SearchSettings
    stream: Callable[[str], torch.Generator]


def search_scales(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    objective: Objective,
    settings: SearchSettings,
    *,
    max_batches: int | None,
    generator: Randomness = None,
) -> ScaleSearch:
    """Search for the scales of a start on some batches, and keep them if they are better on the held-out ones.

    The last quarter of the batches is held out. The model is bit for bit as it was if nothing better is found, or
    anything fails. Where the settings are not `verified`, all batches are searched on and the last scales are kept.

    Raises:
        ValueError: if a setting is out of range or the network cannot be differentiated twice.
    """
    _require(settings)
    checked(loss)
    inner = initialised(model)
    searched, found = in_single_precision(inner, load_batches(batches, inner, max_batches=max_batches))
    require_separable(found)
    train, verify = held_out(found) if settings.verified else (found, found[:_JUDGED])
    stream = streams(generator)
    seed = int(torch.randint(2**31, (), generator=stream(f"{objective.method} search")))
    with functorch_safe(searched):  # puts the model back, also when interrupted
        network = scaled_network(searched, loss, train[0], seed, scaled=settings.scaled)
        result = _searched(network, train, verify, _Search(objective, settings, stream))
    if result.kept:
        scale_parameters(inner, result.scales)
    return result


def scale_parameters(model: nn.Module, scales: dict[str, float]) -> None:
    """Multiply parameters by factors, in place, all of them or none."""
    parameters = dict(model.named_parameters())
    with transaction(model):
        for name, scale in scales.items():
            parameters[name].data.mul_(scale)


def _require(settings: SearchSettings) -> None:
    wanted: list[tuple[str, float | None, bool, str]] = [
        ("gradient_norm_cap", settings.gradient_norm_cap, settings.gradient_norm_cap > 0, "a positive number"),
        ("learning_rate", settings.learning_rate, 0 < settings.learning_rate < 1, "a number between 0 and 1"),
        ("steps", settings.steps, _counts(settings.steps), "at least 1, whole"),
        ("lower_bound", settings.lower_bound, 0 < settings.lower_bound < 1, "a number between 0 and 1"),
    ]
    for name, value, holds, expected in wanted:
        if not holds:
            raise ValueError(f"{name}: expected {expected}, got {value}")
    if settings.steps is None and settings.verified:
        raise ValueError("steps: expected a number, got None, which is one pass of a published algorithm")
    if settings.cap_unit not in ("start", "absolute"):
        raise ValueError(f"cap_unit: expected 'start' or 'absolute', got {settings.cap_unit!r}")


def _counts(steps: Any) -> bool:
    return steps is None or (hasattr(steps, "__index__") and steps >= 1)


def _searched(network: ScaledNetwork, train: Sequence[Batch], verify: Sequence[Batch], search: _Search) -> ScaleSearch:
    objective, settings, judged = search.objective, search.settings, train[:_JUDGED]
    begin, before, spread = _start(network, train, verify, objective)
    relative = settings.cap_unit == "start"
    cap, held_cap = (settings.gradient_norm_cap * (q.gradient_norm if relative else 1.0) for q in (begin, before))
    walk, slopes = _walked(network, train, search, cap * (_MARGIN if settings.verified else 1.0))
    if settings.verified:
        interpolation, reason = _interpolation(network, judged, search, walk, begin, cap)
    else:
        interpolation, reason = 1.0, ""
    network.write(walk.scales**interpolation)
    after, spread_after = _seen(network, verify, objective) if interpolation else (before, spread)
    if settings.verified and not reason:
        reason = _fault(before, after, held_cap, objective)
    kept = not reason
    scales = walk.scales ** (interpolation if kept else 0.0)
    measured = (len(_SHARES) * settings.verified + 1) * len(judged) + 2 * len(verify)
    return ScaleSearch(
        method=objective.method,
        objective=objective.quantity,
        scales=dict(zip(network.start, scales.tolist(), strict=True)),
        before=before,
        after=after,
        cap=held_cap,
        kept=kept,
        reason=reason or (_success if settings.verified else _as_published)(before, after, held_cap, objective),
        steps=len(slopes),
        constrained_share=sum(s.constrained for s in slopes) / len(slopes),
        stalls=walk.stalls,
        interpolation=interpolation,
        objectives=tuple(s.quality.objective for s in slopes),
        gradient_norms=tuple(s.quality.gradient_norm for s in slopes),
        spreads=(spread, spread_after),
        seed=network.seed,
        cost=sum(s.cost for s in slopes) + measured * objective.quality_cost + 1,
    )


def _start(
    network: ScaledNetwork, train: Sequence[Batch], verify: Sequence[Batch], objective: Objective
) -> tuple[Quality, Quality, float]:
    """The start's quality on the search's own batches, and quality and spread on those held out."""
    try:
        return _quality(network, train[:_JUDGED], objective), *_seen(network, verify, objective)
    except UserCodeError:
        raise
    except ValueError as error:
        if train[0].number != verify[0].number:
            raise
        searched, judged = train[0].size, verify[0].size
        raise ValueError(
            f"batches: expected several, or one that is large enough, got a single batch of {searched + judged} "
            f"samples, of which {searched} are searched on and {judged} held out: {error}"
        ) from error


def _walked(network: ScaledNetwork, train: Sequence[Batch], search: _Search, cap: float) -> tuple[_Walk, list[Slope]]:
    """The steps, each on one batch in turn; from the second pass on the samples of a batch are in another order."""
    settings = search.settings
    scales = torch.ones(len(network.start), dtype=torch.float64)
    walk = _Walk(scales, settings.learning_rate, settings.lower_bound)
    least = _least(network, settings)
    slopes: list[Slope] = []
    for number in range(len(train) if settings.steps is None else settings.steps):
        require_time()
        batch, turn = train[number % len(train)], number // len(train)
        if turn:
            stream = search.stream(f"pass {turn}, batch {batch.number}")
            batch = sliced(batch, torch.randperm(batch.size, generator=stream))
        network.write(walk.scales)
        try:
            slope = search.objective.slope(network, batch, cap)
            along = network.slopes(slope.derivative, by_logarithm=settings.verified).cpu()
        except ValueError as error:
            if number == 0:
                raise
            raise ValueError(
                f"{search.objective.method}: step {number}: {error}; the scales went too far: lower learning_rate; "
                "the start is unchanged"
            ) from error
        if not bool(torch.isfinite(along).all()):
            raise ValueError(
                f"{search.objective.method}: step {number}: expected finite derivatives of the scales, got NaN or "
                "infinite ones; lower learning_rate, or run diagnose; the start is unchanged"
            )
        slopes.append(slope)
        step = _stepped if settings.verified else partial(_published, least=least)
        walk = step(walk, along, slope.constrained)
    return walk, slopes


def _least(network: ScaledNetwork, settings: SearchSettings) -> Float64[Tensor, " scales"]:
    """The least scale of each tensor."""
    free = [settings.free_biases and name.rpartition(".")[2] == "bias" for name in network.start]
    return torch.tensor([0.0 if may else settings.lower_bound for may in free], dtype=torch.float64)


def _interpolation(
    network: ScaledNetwork, judged: Sequence[Batch], search: _Search, walk: _Walk, begin: Quality, cap: float
) -> tuple[float, str]:
    """The best share of the way on the search's own batches; or 0, and why none is better than the start."""
    reached: dict[float, Quality] = {}
    fault = ""
    for share in _SHARES:
        network.write(walk.scales**share)
        try:
            reached[share] = _quality(network, judged, search.objective)
        except UserCodeError:
            raise
        except ValueError as error:  # not finite so far out; a shorter way may be
            fault = str(error)
    if not reached:
        return 0.0, f"the scaled start breaks: {fault}; lower learning_rate"
    better = {share: q for share, q in reached.items() if not _fault(begin, q, cap, search.objective)}
    sign = 1 if search.objective.higher else -1
    if better:
        return max(better, key=lambda share: sign * better[share].objective), ""
    within = [q for q in reached.values() if q.gradient_norm <= cap]
    if not within:
        lowest = min(q.gradient_norm for q in reached.values())
        return 0.0, (
            f"expected a gradient norm of at most {cap:.4g} (gradient_norm_cap), got {begin.gradient_norm:.4g} at the "
            f"start and {lowest:.4g} after the search; raise the cap, or give it more steps"
        )
    best = max(within, key=lambda q: sign * q.objective)
    return 0.0, (
        f"expected a better {search.objective.quantity}, got one that {_change(begin, best)} at norm "
        f"{best.gradient_norm:.4g} (at most {cap:.4g}) on the very batches it was searched on"
    )


def _fault(before: Quality, after: Quality, cap: float, objective: Objective) -> str:
    """What is wrong with a scaled start; the empty string where it is better.

    A start within the cap is better than one that exceeds it, whatever their objectives; of two within the cap the one
    with the better objective is (the order of Deb, An efficient constraint handling method, 2000).
    """
    if after.gradient_norm > cap:
        return (
            f"expected a gradient norm of at most {cap:.4g}, got {after.gradient_norm:.4g} on held-out batches; "
            "raise gradient_norm_cap, or pass more batches"
        )
    if before.gradient_norm > cap:
        return ""
    gain = (after.objective - before.objective) * (1 if objective.higher else -1)
    if not gain > 1e-6 * abs(before.objective):
        return f"expected a better {objective.quantity}, got one that {_change(before, after)} on held-out batches"
    return ""


def _success(before: Quality, after: Quality, cap: float, objective: Objective) -> str:
    """What a scaled start that is kept is better in."""
    change = f"{objective.quantity} {_change(before, after)}"
    if before.gradient_norm > cap:
        return (
            f"gradient norm went from {before.gradient_norm:.4g} to {after.gradient_norm:.4g}, within its cap of "
            f"{cap:.4g}, on held-out batches ({change})"
        )
    return f"{change} on held-out batches, the norm within its cap"


def _as_published(before: Quality, after: Quality, cap: float, objective: Objective) -> str:
    """What the last scales of a published procedure come to, for better or worse."""
    return (
        f"the last scales are kept as published: {objective.quantity} {_change(before, after)}, gradient norm from "
        f"{before.gradient_norm:.4g} to {after.gradient_norm:.4g} (cap {cap:.4g}), on the first batches searched on"
    )


def _change(before: Quality, after: Quality) -> str:
    return f"went from {before.objective:.4g} to {after.objective:.4g}"


def _quality(network: ScaledNetwork, batches: Sequence[Batch], objective: Objective) -> Quality:
    """The mean over batches."""
    found = [objective.quality(network, batch) for batch in batches]
    return Quality(
        sum(q.objective for q in found) / len(found),
        sum(q.gradient_norm for q in found) / len(found),
    )


def _seen(network: ScaledNetwork, batches: Sequence[Batch], objective: Objective) -> tuple[Quality, float]:
    """The quality, and the deviation between samples of the main output."""
    with torch.no_grad():
        passes = [Pass(batch, checked_forward(network.model, batch), None) for batch in batches]
    spread = [r.value for r in output_records(passes, None) if r.quantity == "output_sample_std"]
    return _quality(network, batches, objective), (spread[0] if spread else math.nan)


def _stepped(walk: _Walk, slopes: Float64[Tensor, " scales"], constrained: bool) -> _Walk:
    """One Adam step down along slopes over the logarithms of the scales, clipped to ±1 each.

    The objective and the constraint have moments of their own: a norm's slopes are far larger than a mean cosine's, and
    with shared ones a few steps on the constraint would leave the objective none. The rate is halved if the last steps
    alternated between the two kinds and cancelled.
    """
    direction, moments = _adam(walk, slopes.clamp(-1, 1), constrained, constrained)
    new = replace(walk, moments=moments)
    before, edge = walk.scales.log(), -math.log(walk.lower)
    after = (before - walk.rate * direction.clamp(-1, 1)).clamp(-edge, edge)
    path = (*walk.path[1 - _WINDOW :], (constrained, after - before))
    if _stalled(path):
        return replace(new, scales=after.exp(), rate=walk.rate / 2, stalls=walk.stalls + 1, path=())
    return replace(new, scales=after.exp(), path=path)


def _published(
    walk: _Walk, slopes: Float64[Tensor, " scales"], constrained: bool, *, least: Float64[Tensor, " scales"]
) -> _Walk:
    """One Adam step down along slopes over the scales themselves, clipped to ±1 each, as the research code makes it.

    The constraint has a first moment of its own; the second one is shared.
    """
    direction, moments = _adam(walk, slopes.clamp(-1, 1), constrained, False)
    return replace(walk, scales=torch.maximum(walk.scales - walk.rate * direction, least), moments=moments)


def _adam(
    walk: _Walk, slopes: Float64[Tensor, " scales"], first_kind: bool, second_kind: bool
) -> tuple[Float64[Tensor, " scales"], dict[tuple[int, bool], tuple[Tensor, int]]]:
    """Adam's direction, each moment corrected for the number of its own steps, and the moments after it."""
    moments, means = dict(walk.moments), []
    for order, kind, value in ((1, first_kind, slopes), (2, second_kind, slopes.square())):
        beta = _BETAS[order - 1]
        mean, count = moments.get((order, kind), (torch.zeros_like(slopes), 0))
        moments[order, kind] = mean.lerp(value, 1 - beta), count + 1
        means.append(moments[order, kind][0] / (1 - beta ** (count + 1)))
    return means[0] / (means[1].sqrt() + _TINY), moments


def _stalled(path: tuple[tuple[bool, Tensor], ...]) -> bool:
    """Whether the last steps alternated between objective and constraint and came back to where they began."""
    if len(path) < _WINDOW:
        return False
    share = sum(constrained for constrained, _ in path) / len(path)
    moves = torch.stack([move for _, move in path])
    away, length = float(moves.sum(0).norm()), float(moves.norm(dim=1).sum())
    return _BALANCE[0] <= share <= _BALANCE[1] and away < _PROGRESS * length
