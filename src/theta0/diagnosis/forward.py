"""Findings about what flows forward: shift, vanishing, exploding, saturation, dead units, outputs."""

import math

from theta0._records import Table
from theta0.diagnosis.chain import Link, chain, final_run
from theta0.diagnosis.results import Finding

# Thresholds. Those called measured are derived in docs/findings.md, on networks that train and networks that do not.
SHIFT_ERROR, SHIFT_WARNING = 0.9999, 0.99
SPREAD_ERROR = 1e-3
SILENT = 1e-4
GROWTH_ERROR, GROWTH_WARNING = 1e3, 1e2
SATURATED_ERROR, SATURATED_WARNING = 0.9, 0.5
DEAD_ERROR, DEAD_WARNING = 0.95, 0.5
LOSS_ERROR, LOSS_WARNING = 10.0, 3.0  # of cross-entropies
ERROR_ERROR, ERROR_WARNING = 1e3, 1e2  # of squared and absolute errors: the best constant may be nearly right already
_MEASURED = "measured, docs/findings.md"


def forward_findings(table: Table, *, regression: bool = False) -> list[Finding]:
    """Judge the forward pass.

    Args:
        table: what was measured.
        regression: whether the loss is a squared or absolute error.

    Returns:
        Findings, the causes first.
    """
    links = [link for link in chain(table) if math.isfinite(link.rms)]
    speaking = [link for link in links if not _zero_weight(link, table)]
    found = [
        activation_shift(speaking),
        vanishing_activations(speaking, table),
        exploding_activations(links),
        saturated_units(links),
        dead_units(links),
        constant_output(links, table),
        initial_loss(table, regression=regression),
    ]
    order = {link.layer: number for number, link in enumerate(links)}
    # What begins earlier in the network causes what begins later; the whole network comes last.
    return sorted((f for f in found if f is not None), key=lambda f: order.get(f.layer, len(order)))


def activation_shift(links: list[Link]) -> Finding | None:
    """Shift made by the weights (not by biases) carries nearly all of the preactivations' variance, to the end.

    Returns:
        The finding, or None.
    """

    def shifted(link: Link) -> bool:
        shares = (link.numbers.get("shift_share", 0.0), link.numbers.get("weight_shift_share", 0.0))
        return shares[0] >= SHIFT_WARNING and shares[1] >= 0.5

    run = final_run(links, shifted)
    if not run:
        return None
    worst = max(link.numbers["shift_share"] for link in run)
    severe = worst >= SHIFT_ERROR
    first = run[0]
    return Finding(
        code="activation-shift",
        severity="error" if severe else "warning",
        layer=first.layer,
        value=worst,
        threshold=SHIFT_ERROR if severe else SHIFT_WARNING,
        message=(
            f"From layer {first.layer!r} on ({len(run)} layers), up to {worst:.1%} of the preactivations' variance "
            "lies between the units' means: every sample gets nearly the same vector, because the activations' mean "
            "is not zero. "
            "Constrain the weights to zero sums (LCW) and rescale them to unit variance."
        ),
        remedy="theta0 treat TARGET --with lcw",
        source=f"kutsuna2019lcw, Definition 2; threshold {_MEASURED}",
        layers=tuple(link.layer for link in run),
    )


def vanishing_activations(links: list[Link], table: Table) -> Finding | None:
    """What differs between samples dies out on the way to the output, and no later layer restores it.

    Returns:
        The finding, or None.
    """
    silent = _dying_out(links, table)
    run = silent or final_run(links, lambda link: link.relative_spread < SPREAD_ERROR and not _shifted_by_weights(link))
    hidden = [link for link in links if link.rms > 0]
    if len(run) < 1 or len(hidden) < 2 or run[0] is hidden[0]:
        return None
    first, start, end = run[0], hidden[0], run[-1]
    steps = max(1, hidden.index(end) - hidden.index(start))
    factor = (end.spread / start.spread) ** (1 / steps) if start.spread > 0 else 0.0
    value = end.rms / start.rms if silent else first.relative_spread
    return Finding(
        code="vanishing-activations",
        severity="error",
        layer=first.layer,
        value=value,
        threshold=SILENT if silent else SPREAD_ERROR,
        message=(
            f"What differs between samples shrinks by a factor of {factor:.2g} a layer and is down to "
            f"{end.spread:.1e} of {end.rms:.1e} at the last layer; it is lost from {first.layer!r} on. "
            "Rescale the weights so that every layer's output has unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance",
        source=_MEASURED,
        layers=tuple(link.layer for link in run),
    )


def exploding_activations(links: list[Link]) -> Finding | None:
    """Preactivations grow by orders of magnitude.

    Returns:
        The finding, or None.
    """
    loud = [link for link in links if link.rms > 0 and not link.numbers.get("lookup")]
    if len(loud) < 2:
        return None
    start = loud[0].rms
    grown = [link for link in loud if link.rms > GROWTH_WARNING * max(start, 1.0)]
    if not grown:
        return None
    worst = max(grown, key=lambda link: link.rms)
    ratio, severe = worst.rms / start, worst.rms > GROWTH_ERROR * max(start, 1.0)
    return Finding(
        code="exploding-activations",
        severity="error" if severe else "warning",
        layer=grown[0].layer,
        value=ratio,
        threshold=GROWTH_ERROR if severe else GROWTH_WARNING,
        message=(
            f"Preactivations grow from {start:.2g} at the first layer to {worst.rms:.2g} at {worst.layer!r}, past "
            f"{GROWTH_WARNING:g} times at {grown[0].layer!r}. "
            "Rescale the weights so that every layer's output has unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance",
        source=_MEASURED,
        layers=tuple(link.layer for link in grown),
    )


def saturated_units(links: list[Link]) -> Finding | None:
    """A bounded nonlinearity is flat nearly everywhere.

    Returns:
        The finding, or None.
    """
    flat = [link for link in links if link.numbers.get("saturated_share", 0.0) >= SATURATED_WARNING]
    if not flat:
        return None
    worst = max(link.numbers["saturated_share"] for link in flat)
    severe = worst >= SATURATED_ERROR
    return Finding(
        code="saturated-units",
        severity="error" if severe else "warning",
        layer=flat[0].layer,
        value=worst,
        threshold=SATURATED_ERROR if severe else SATURATED_WARNING,
        message=(
            f"After layer {flat[0].layer!r} the nonlinearity is flat (slope below 5 % of its maximum) for "
            f"{flat[0].numbers['saturated_share']:.0%} of its inputs, so hardly any gradient passes. "
            "Standardise the inputs or rescale the weights to unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance",
        source=f"slope below 5 % of its maximum: Glorot & Bengio (2010), section 3; share {_MEASURED}",
        layers=tuple(link.layer for link in flat),
    )


def dead_units(links: list[Link]) -> Finding | None:
    """Units whose nonlinearity passes no gradient on any sample.

    Returns:
        The finding, or None.
    """
    dead = [link for link in links if link.numbers.get("dead_share", 0.0) >= DEAD_WARNING]
    if not dead:
        return None
    worst = max(dead, key=lambda link: link.numbers["dead_share"])
    share = worst.numbers["dead_share"]
    severe = share >= DEAD_ERROR
    return Finding(
        code="dead-units",
        severity="error" if severe else "warning",
        layer=dead[0].layer,
        value=share,
        threshold=DEAD_ERROR if severe else DEAD_WARNING,
        message=(
            f"After layer {worst.layer!r}, {share:.0%} of the units have slope zero on every sample: they cannot "
            "learn. "
            "Centre the inputs or the biases, and rescale the weights to unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance",
        source=f"Lu et al. (2020), dying ReLU; share {_MEASURED}",
        layers=tuple(link.layer for link in dead),
    )


def constant_output(links: list[Link], table: Table) -> Finding | None:
    """All samples get the same output although the last layer's weights are not zero.

    Returns:
        The finding, or None.
    """
    whole = table.get("", {})
    spread, rms = whole.get("output_sample_std"), whole.get("output_rms", 0.0)
    if spread is None or not links or links[-1].rms == 0 or not rms > 0 or not spread / rms < SPREAD_ERROR:
        return None
    if _zero_weight(links[-1], table):
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


def _zero_weight(link: Link, table: Table) -> bool:
    """A layer that starts at zero on purpose: only its bias speaks, so it says nothing about the signal."""
    return table.get(f"{link.layer.partition('#')[0]}.weight", {}).get("value_rms") == 0


def _shifted_by_weights(link: Link) -> bool:
    return link.numbers.get("weight_shift_share", 0.0) >= 0.5


def _dying_out(links: list[Link], table: Table) -> list[Link]:
    """Without biases nothing carries the rest: then everything shrinks, down to the output."""
    loud = [link for link in links if link.rms > 0]
    output = table.get("", {}).get("output_rms", math.inf)
    if len(loud) < 2 or output >= SILENT:
        return []
    return final_run(links, lambda link: link.rms < SILENT * loud[0].rms)
