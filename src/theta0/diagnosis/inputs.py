"""Findings about what a network is given: the scale of its inputs, and the statistics of its batches."""

from theta0._records import Table
from theta0.diagnosis.results import Finding
from theta0.measurements.inspection import BatchNormCall, Inspection

INPUT_LARGE, PREACTIVATION_LARGE = 30.0, 10.0
STALE_FRESH, STALE = 10.0, 100.0  # of variances, either way
SMALL = 4  # values per channel: the variance of so few is off by 80 %
_MEASURED = "measured, docs/findings.md"


def input_findings(seen: Inspection, table: Table) -> list[Finding]:
    """Judge what is given.

    Returns:
        Findings, the causes first.
    """
    found = [input_scale(seen, table), frozen_batch_norm(seen.norms), small_batch(seen.norms)]
    return [finding for finding in found if finding is not None]


def input_scale(seen: Inspection, table: Table) -> Finding | None:
    """Data that are far from unit scale meet weights that are made for unit scale, and nothing normalises them.

    Returns:
        The finding, a warning; whether others follow from it is for `ordering` to say.
    """
    large = [
        found
        for found in seen.inputs
        if found.rms > INPUT_LARGE and not found.normalised and _size(table.get(found.layer, {})) > PREACTIVATION_LARGE
    ]
    if not large:
        return None
    first = large[0]
    return Finding(
        code="input-scale",
        severity="warning",
        layer=first.layer,
        value=first.rms,
        threshold=INPUT_LARGE,
        message=(
            f"The data reach layer {first.layer!r} with root mean square {first.rms:.3g} and mean {first.mean:.3g}, "
            "where weights are drawn for about 1; the layer's output is as far off. "
            "Standardise the inputs to mean 0 and standard deviation 1, then diagnose again."
        ),
        remedy="inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-8)",
        source=f"LeCun et al. (1998), Efficient BackProp, section 4.3; threshold {_MEASURED}",
        layers=tuple(found.layer for found in large),
    )


def _size(numbers: dict[str, float]) -> float:
    variance, mean = numbers.get("preactivation_variance", 0.0), numbers.get("preactivation_mean", 0.0)
    size = (variance + mean**2) ** 0.5
    return size if size == size else float("inf")  # a layer that has overflowed is large


def frozen_batch_norm(norms: list[BatchNormCall]) -> Finding | None:
    """Batch normalisation out of training mode whose running statistics are not those of its input.

    Returns:
        The finding, or None; a note where statistics that were never taken happen to fit.
    """
    frozen = [norm for norm in norms if not norm.training and norm.ratio == norm.ratio]
    fresh = [norm for norm in frozen if norm.fresh]
    severe = [norm for norm in fresh if _off(norm.ratio) > STALE_FRESH]
    stale = severe or [norm for norm in frozen if not norm.fresh and _off(norm.ratio) > STALE]
    concerned = stale or fresh
    if not concerned:
        return None
    worst = max(concerned, key=lambda norm: _off(norm.ratio))
    state = "still 0 and 1, as at the start" if worst.fresh else "of other data"
    return Finding(
        code="frozen-batch-norm",
        severity="error" if severe else "warning" if stale else "note",
        layer=concerned[0].layer,
        value=worst.ratio,
        threshold=STALE_FRESH if worst.fresh else STALE,
        message=(
            f"Batch normalisation {concerned[0].layer!r} ({len(concerned)} such layers) is not in training mode and "
            f"its running statistics are {state}: at {worst.layer!r} its input's variance is {worst.ratio:.1e} times "
            "what it divides by, so it normalises nothing. Call model.train(), or take the statistics first by forward "
            "passes in training mode."
        ),
        remedy="model.train()",
        source=f"Ioffe & Szegedy (2015), algorithm 2; threshold {_MEASURED}",
        layers=tuple(norm.layer for norm in concerned),
    )


def _off(ratio: float) -> float:
    return max(ratio, 1 / ratio) if ratio > 0 else float("inf")


def small_batch(norms: list[BatchNormCall]) -> Finding | None:
    """Batch normalisation in training mode that sees a handful of values per channel.

    Returns:
        The finding, or None.
    """
    small = [norm for norm in norms if norm.training and norm.values <= SMALL]
    if not small:
        return None
    least = min(small, key=lambda norm: norm.values)
    return Finding(
        code="small-batch",
        severity="warning",
        layer=small[0].layer,
        value=float(least.values),
        threshold=float(SMALL),
        message=(
            f"Batch normalisation {least.layer!r} takes its statistics from {least.values} values a channel, so they "
            f"are off by about {(2 / (least.values - 1)) ** 0.5:.0%} from batch to batch. "
            "Use larger batches, or GroupNorm, which does not look at other samples."
        ),
        remedy=f"torch.nn.GroupNorm(1, channels)  # in the place of {least.layer!r}",
        source="standard deviation of a variance of n values, √(2/(n-1)); Wu & He (2018), Group Normalization",
        layers=tuple(norm.layer for norm in small),
    )
