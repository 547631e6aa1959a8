"""Findings about outputs and loss, judged together: constant outputs, first loss, reach of the loss, its shapes."""

import math

from theta0._records import Table
from theta0.diagnosis.chain import SPREAD_ERROR, Link, zero_weight
from theta0.diagnosis.results import Finding
from theta0.measurements.attainable_loss import AttainableLoss
from theta0.measurements.inspection import Inspection

LOSS_ERROR, LOSS_WARNING = 10.0, 3.0  # of cross-entropies
ERROR_ERROR, ERROR_WARNING = 1e3, 1e2  # of squared and absolute errors: the best constant may be nearly right already
STARVED = 0.5  # of the classes
GAP = 0.1  # of the loss that a guess makes
_MEASURED = "measured, docs/findings.md"


def constant_output(links: list[Link], table: Table) -> Finding | None:
    """All samples get the same output although the last layer's weights are not zero.

    Returns:
        The finding, or None.
    """
    whole = table.get("", {})
    spread, rms = whole.get("output_sample_std"), whole.get("output_rms", 0.0)
    if spread is None or not links or links[-1].rms == 0 or not rms > 0 or not spread / rms < SPREAD_ERROR:
        return None
    if zero_weight(links[-1], table):
        return None
    return Finding(
        code="constant-output",
        severity="error",
        layer=links[-1].layer,
        value=spread / rms,
        threshold=SPREAD_ERROR,
        message=(
            f"The output is the same for every sample: it varies by {spread:.1e} between samples and is {rms:.1e} in "
            "size. "
            "Mend the first layer named above; if none is, look at what the last layer does to its input."
        ),
        remedy="theta0 treat TARGET",
        source=_MEASURED,
        layers=(links[-1].layer,),
    )


def initial_loss(table: Table, *, regression: bool = False) -> Finding | None:
    """The first loss is far above that of the best predictor that ignores its input.

    Returns:
        The finding, or None.
    """
    whole = table.get("", {})
    loss, constant = whole.get("loss", math.nan), whole.get("loss_constant", math.nan)
    error, warning = (ERROR_ERROR, ERROR_WARNING) if regression else (LOSS_ERROR, LOSS_WARNING)
    if not (math.isfinite(loss) and constant > 0 and loss > warning * constant):
        return None
    # Where one class is rare the constant's loss goes to zero, while a fair start gives every class its chance.
    constant = max(constant, whole.get("loss_uniform", 0.0))
    ratio = loss / constant
    if ratio <= warning:
        return None
    severe = ratio > error
    return Finding(
        code="initial-loss",
        severity="error" if severe else "warning",
        layer="",
        value=ratio,
        threshold=error if severe else warning,
        message=(
            f"The first loss is {loss:.3g}, {ratio:.3g} times that of a guess that ignores the input ({constant:.3g}): "
            "training starts by unlearning. Make the outputs smaller, or for regression standardise the targets or "
            "start the last bias at their mean."
        ),
        remedy="theta0 treat TARGET --with unit-variance",
        source=_MEASURED,
    )


def degenerate_softmax(table: Table) -> Finding | None:
    """Most classes get next to no probability from any sample.

    Returns:
        The finding, or None.
    """
    share = table.get("", {}).get("starved_class_share", 0.0)
    if not share >= STARVED:
        return None
    return Finding(
        code="degenerate-softmax",
        severity="warning",
        layer="",
        value=share,
        threshold=STARVED,
        message=(
            f"The softmax leaves {share:.0%} of the classes without a thousandth of their fair share on any sample: "
            "their logits' gradients are next to nothing until it has unlearnt that. "
            "Make the outputs smaller, by the last layer's weight or by what feeds it."
        ),
        remedy="theta0 treat TARGET --with head-scale",
        source="lee2023mmd, section 3.2; threshold: judgement",
    )


def broadcast_loss(seen: Inspection) -> Finding | None:
    """Outputs and targets of unlike shapes are stretched against each other inside the loss.

    Returns:
        The finding, or None.
    """
    if not seen.broadcasts:
        return None
    found = seen.broadcasts[0]
    fewest = max(math.prod(found.output), math.prod(found.target))
    return Finding(
        code="broadcast-loss",
        severity="error",
        layer="",
        value=found.terms / fewest,
        threshold=1.0,
        message=(
            f"The loss compares outputs of shape {found.output} with targets of shape {found.target}: broadcasting "
            f"makes {found.terms:,} terms of {fewest:,}, each sample held against every other's target, and only a "
            "constant is best. Give both the same shape, for example by outputs.squeeze(-1) or targets.unsqueeze(-1)."
        ),
        remedy="loss = lambda outputs, targets: torch.nn.functional.mse_loss(outputs, targets.reshape(outputs.shape))",
        source="torch's broadcasting semantics",
    )


def squashed_output(seen: Inspection) -> Finding | None:
    """The last operation confines the outputs to where the loss cannot become small.

    Returns:
        The finding, or None; of several loss terms the one that is farthest from its minimum.
    """
    ill = [found for found in seen.reaches if found.gap > GAP or _one_sided(found) or _probabilities(found)]
    if not ill:
        return None
    worst = max(ill, key=lambda found: found.gap if math.isfinite(found.gap) else 0.0)
    severe = worst.gap > GAP and not (worst.interval.cosine or worst.interval.length) and worst.kind != "nll"
    return Finding(
        code="squashed-output",
        severity="error" if severe else "warning",
        layer="",
        value=worst.gap if math.isfinite(worst.gap) else worst.interval.high,
        threshold=GAP,
        message=_confined(worst),
        remedy=_unconfined(worst),
        source="the least loss within the interval, in closed form; threshold: judgement",
    )


def _one_sided(found: AttainableLoss) -> bool:
    """Rectified logits: the loss could be reached, but a logit that is off has no gradient."""
    return found.kind == "cross_entropy" and found.interval.by == "relu" and found.interval.low == 0


def _probabilities(found: AttainableLoss) -> bool:
    return found.kind == "nll" and found.interval.low >= 0


_LOSS_NAMES = {
    "cross_entropy": "cross-entropy, which takes logits",
    "bce": "binary cross-entropy with logits",
    "nll": "nll_loss, which takes log-probabilities",
    "difference": "the error against these targets",
}


def _confined(found: AttainableLoss) -> str:
    interval = found.interval
    where = f"between {interval.low:.3g} and {interval.high:.3g}"
    where = f"at {interval.low:.3g} or more" if interval.high == math.inf else where
    where = f"at {interval.high:.3g} or less" if interval.low == -math.inf else where
    start = f"What the loss is given lies {where}, whatever is learnt (last operation: {interval.by}): "
    if _probabilities(found):
        return start + "nll_loss takes log-probabilities. Put log_softmax in its place."
    if found.gap <= GAP:
        return start + "a logit that is off has no gradient. Leave out that operation before the cross-entropy."
    start += f"{_LOSS_NAMES[found.kind]} cannot fall below {found.best:.3g}, and a guess makes {found.scale:.3g}. "
    if interval.cosine or interval.length:
        return start + "Multiply the inner products by a larger scale (1/0.07 is usual)."
    if found.kind == "difference":
        return start + f"Leave out {interval.by}, or scale the targets into its range."
    return start + f"Leave out {interval.by}: the loss applies its own."


def _unconfined(found: AttainableLoss) -> str:
    if found.interval.cosine or found.interval.length:
        return "logits = logits / 0.07"
    if found.kind == "difference":
        return f"# remove {found.interval.by} after the last layer, or rescale the targets into its range"
    return f"# remove {found.interval.by} after the last layer"
