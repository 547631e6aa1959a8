"""One optimiser of scales for several objectives: search on some batches, verify on others, keep what is better."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from theta0._batches import Batch, held_out, in_single_precision, initialised, materialised, outputs_or_told
from theta0._losses import Loss, checked
from theta0._randomness import Randomness, streams
from theta0._state import functorch_safe
from theta0._user_code import UserCodeError
from theta0.initializers.scale_results import (
    NothingBetterError,
    Objective,
    Quality,
    Report,
    ScaleSearch,
    Settings,
    Slope,
)
from theta0.initializers.scale_steps import Steps, stepped
from theta0.initializers.scaled_network import ScaledNetwork, scaled_network
from theta0.measurements.outputs import Pass, output_records

_JUDGED = 4  # most training batches on which starting norm and candidates are measured
_MARGIN = 0.95  # of the cap, within which the search stays: the norm on held-out batches differs a little
_TRAVELS = (1.0, 0.5, 0.25)  # shares of the way in the scales' logarithms that are compared at the end


@dataclass(frozen=True, eq=False)
class _Search:
    objective: Objective
    settings: Settings
    stream: Callable[[str], torch.Generator]


def search_scales_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    objective: Objective,
    settings: Settings,
    *,
    max_batches: int | None,
    generator: Randomness = None,
    report: Report | None = None,
) -> nn.Module:
    """Search for the scales of a start on some batches, and keep them if they are better on the held-out ones.

    Args:
        model: changed in place; bit for bit as it was if nothing better is found, or anything fails.
        batches: `(inputs, targets)` batches; the last quarter is held out.
        loss: a name, a callable, or None where the model returns its own.
        objective: what for.
        settings: how.
        max_batches: how many are read; None reads all.
        generator: a seed, a generator or None; orders the samples after the first pass over the batches.
        report: receives what was done, also where the start was not changed.

    Returns:
        The model.

    Raises:
        NothingBetterError: a `ValueError`, if nothing better was found; it says why, and the start is unchanged, as
            where a setting is out of range or the network cannot be differentiated twice.
    """
    _require(settings)
    checked(loss)
    inner = initialised(model)
    searched, found = in_single_precision(inner, materialised(batches, inner, max_batches=max_batches))
    train, verify = held_out(found)
    stream = streams(generator)
    seed = int(torch.randint(2**31, (), generator=stream(f"{objective.method} search")))
    with functorch_safe(searched):  # puts the model back, also when interrupted
        network = scaled_network(searched, loss, train[0], seed)
        result = _searched(network, train, verify, _Search(objective, settings, stream))
    if report is not None:
        report(result)
    if not result.kept:
        raise NothingBetterError(f"{objective.method}: {result.reason}; the start is unchanged")
    scale_(inner, result.scales)
    return model


def scale_(model: nn.Module, scales: dict[str, float]) -> nn.Module:
    """Multiply parameters by factors, in place.

    Args:
        model: changed in place, all of it or nothing.
        scales: factors by parameter name.

    Returns:
        The model.
    """
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in scales}
    try:
        for name, scale in scales.items():
            parameters[name].data.copy_(before[name] * scale)
    except BaseException:
        for name, value in before.items():
            parameters[name].data.copy_(value)
        raise
    return model


def _require(settings: Settings) -> None:
    wanted: list[tuple[str, float, bool, str]] = [
        ("gradient_norm_cap", settings.gradient_norm_cap, settings.gradient_norm_cap > 0, "a positive number"),
        ("learning_rate", settings.learning_rate, 0 < settings.learning_rate < 1, "a number between 0 and 1"),
        ("steps", settings.steps, hasattr(settings.steps, "__index__") and settings.steps >= 1, "at least 1, whole"),
        ("lower_bound", settings.lower_bound, 0 < settings.lower_bound < 1, "a number between 0 and 1"),
    ]
    for name, value, holds, expected in wanted:
        if not holds:
            raise ValueError(f"{name}: expected {expected}, got {value}")
    if settings.cap_unit not in ("start", "absolute"):
        raise ValueError(f"cap_unit: expected 'start' or 'absolute', got {settings.cap_unit!r}")


def _searched(network: ScaledNetwork, train: Sequence[Batch], verify: Sequence[Batch], search: _Search) -> ScaleSearch:
    objective, settings, judged = search.objective, search.settings, train[:_JUDGED]
    begin, before, spread = _start(network, train, verify, objective)
    relative = settings.cap_unit == "start"
    cap, held_cap = (settings.gradient_norm_cap * (q.gradient_norm if relative else 1.0) for q in (begin, before))
    steps, slopes = _walk(network, train, search, cap * _MARGIN)
    travel, reason = _travel(network, judged, search, steps, begin, cap)
    network.write(steps.scales**travel)
    after, spread_after = _seen(network, verify, objective) if travel else (before, spread)
    if not reason:
        reason = _fault(before, after, held_cap, objective)
    kept = not reason
    scales = steps.scales ** (travel if kept else 0.0)
    measured = (len(_TRAVELS) + 1) * len(judged) + 2 * len(verify)
    return ScaleSearch(
        method=objective.method,
        objective=objective.quantity,
        scales=dict(zip(network.start, scales.tolist(), strict=True)),
        before=before,
        after=after,
        cap=held_cap,
        kept=kept,
        reason=reason or f"{objective.quantity} {_change(before, after)} on held-out batches, the norm within its cap",
        steps=len(slopes),
        constrained_share=sum(s.constrained for s in slopes) / len(slopes),
        stalls=steps.stalls,
        travel=travel,
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


def _walk(network: ScaledNetwork, train: Sequence[Batch], search: _Search, cap: float) -> tuple[Steps, list[Slope]]:
    """The steps, each on one batch in turn; from the second pass on the samples of a batch are in another order."""
    settings = search.settings
    scales = torch.ones(len(network.start), dtype=torch.float64)
    steps = Steps(scales, settings.learning_rate, settings.lower_bound, settings.raw)
    slopes: list[Slope] = []
    for number in range(settings.steps):
        batch, turn = train[number % len(train)], number // len(train)
        if turn:
            batch = _shuffled(batch, search.stream(f"pass {turn}, batch {batch.number}"))
        network.write(steps.scales)
        try:
            slope = search.objective.slope(network, batch, cap)
            along = network.slopes(slope.derivative).cpu()
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
        steps = stepped(steps, along, slope.constrained)
    return steps, slopes


def _travel(
    network: ScaledNetwork, judged: Sequence[Batch], search: _Search, steps: Steps, begin: Quality, cap: float
) -> tuple[float, str]:
    """The best share of the way on the search's own batches; or 0, and why none is better than the start."""
    reached: dict[float, Quality] = {}
    fault = ""
    for share in _TRAVELS:
        network.write(steps.scales**share)
        try:
            reached[share] = _quality(network, judged, search.objective)
        except UserCodeError:
            raise
        except ValueError as error:  # not finite so far out; a shorter way may be
            fault = str(error)
    if not reached:
        return 0.0, f"the scaled start breaks: {fault}; lower learning_rate"
    sign = 1 if search.objective.higher else -1
    allowed = {share: q for share, q in reached.items() if not _fault(begin, q, cap * _MARGIN, search.objective)}
    if allowed:
        return max(allowed, key=lambda share: sign * allowed[share].objective), ""
    lowest = min(q.gradient_norm for q in reached.values())
    if lowest > cap * _MARGIN:
        return 0.0, (
            f"expected a gradient norm of at most {cap:.4g} (gradient_norm_cap), got {begin.gradient_norm:.4g} at the "
            f"start and {lowest:.4g} after the search; raise the cap, or give it more steps"
        )
    best = max(reached.values(), key=lambda q: sign * q.objective)
    return 0.0, (
        f"expected a better {search.objective.quantity}, got one that {_change(begin, best)} at norm "
        f"{best.gradient_norm:.4g} (at most {cap:.4g}) on the very batches it was searched on"
    )


def _fault(before: Quality, after: Quality, cap: float, objective: Objective) -> str:
    """What is wrong with a scaled start; the empty string where it is better and within the cap."""
    if after.gradient_norm > cap:
        return (
            f"expected a gradient norm of at most {cap:.4g}, got {after.gradient_norm:.4g} on held-out batches; "
            "raise gradient_norm_cap, or pass more batches"
        )
    gain = (after.objective - before.objective) * (1 if objective.higher else -1)
    if not gain > 1e-6 * abs(before.objective):
        return f"expected a better {objective.quantity}, got one that {_change(before, after)} on held-out batches"
    return ""


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
        passes = [Pass(batch, outputs_or_told(network.model, batch), None) for batch in batches]
    spread = [r.value for r in output_records(passes, None) if r.quantity == "output_sample_std"]
    return _quality(network, batches, objective), (spread[0] if spread else math.nan)


def _shuffled(batch: Batch, generator: torch.Generator) -> Batch:
    order = torch.randperm(batch.size, generator=generator)

    def taken(leaf: Any) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch.size
        return leaf[order.to(leaf.device)] if whole else leaf

    return replace(batch, inputs=tree_map(taken, batch.inputs), targets=tree_map(taken, batch.targets))
