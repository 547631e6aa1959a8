"""Findings about what flows forward: shift, vanishing, exploding."""

import math

from theta0._records import Table
from theta0.diagnosis.chain import SPREAD_ERROR, Link, chain, final_run, zero_weight
from theta0.diagnosis.outputs import constant_output, degenerate_softmax, initial_loss
from theta0.diagnosis.results import Finding
from theta0.diagnosis.units import dead_units, saturated_units

# Thresholds. Those called measured are derived in docs/findings.md, on networks that train and networks that do not.
SHIFT_ERROR, SHIFT_WARNING = 0.9999, 0.99
COMMON_WEIGHT, COMMON_SHARE = (
    0.5,
    0.8,
)  # |mean| over standard deviation of a weight; mean² over mean square of an output
SILENT, SHRUNK = 1e-3, 1e-2  # of an output, and of the last hidden layer over the first
GROWTH_ERROR, GROWTH_WARNING = 1e3, 1e2
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
    speaking = [link for link in links if not zero_weight(link, table)]
    found = [
        activation_shift(speaking) or common_shift(speaking, table),
        vanishing_activations(speaking, table),
        exploding_steps(links) or exploding_activations(links),
        saturated_units(links),
        dead_units(links),
        constant_output(links, table),
        initial_loss(table, regression=regression),
        degenerate_softmax(table),
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


def common_shift(links: list[Link], table: Table) -> Finding | None:
    """Weights of one sign: their mean, which all units share, makes nearly all of what every unit puts out.

    Of zero-mean draws the mean is far below the spread, and the units' outputs lie on both sides of zero.

    Returns:
        The finding, or None.
    """

    def leaning(link: Link) -> float:
        weight = table.get(f"{link.layer.partition('#')[0]}.weight", {})
        mean, rms = abs(weight.get("value_mean", 0.0)), weight.get("value_rms", 0.0)
        return mean / max((rms**2 - mean**2) ** 0.5, 1e-12) if rms > mean else (math.inf if mean else 0.0)

    def shared(link: Link) -> float:
        return link.numbers["preactivation_mean"] ** 2 / link.rms**2 if link.rms > 0 else 0.0

    run = [link for link in links if leaning(link) >= COMMON_WEIGHT and shared(link) >= COMMON_SHARE]
    if len(run) < 2:
        return None
    worst, first = max(shared(link) for link in run), next(link for link in links if leaning(link) >= COMMON_WEIGHT)
    return Finding(
        code="activation-shift",
        severity="error",
        layer=first.layer,
        value=worst,
        threshold=COMMON_SHARE,
        message=(
            f"The weights from layer {first.layer!r} on have a mean of {leaning(first):.2g} times their spread, which "
            f"all units share: up to {worst:.0%} of the mean square of a layer's output is one common number that "
            "grows with the fan-in. Draw them around zero, or centre them (LCW) and rescale them to unit variance."
        ),
        remedy="theta0 treat TARGET --with lcw",
        source=f"kutsuna2019lcw, section 3: the mean of the weights times that of the activations; {_MEASURED}",
        layers=tuple(dict.fromkeys([first.layer, *(link.layer for link in run)])),
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
        threshold=SHRUNK if silent else SPREAD_ERROR,
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


def exploding_steps(links: list[Link]) -> Finding | None:
    """A recurrent layer's states grow from step to step.

    Returns:
        The finding, or None.
    """
    grown = [link for link in links if link.numbers.get("step_growth", 0.0) > GROWTH_WARNING]
    if not grown:
        return None
    worst = max(grown, key=lambda link: link.numbers["step_growth"])
    growth, steps = worst.numbers["step_growth"], int(worst.numbers["steps"])
    severe = growth > GROWTH_ERROR
    return Finding(
        code="exploding-activations",
        severity="error" if severe else "warning",
        layer=worst.layer,
        value=growth,
        threshold=GROWTH_ERROR if severe else GROWTH_WARNING,
        message=(
            f"The states of {worst.layer!r} grow {growth:.1e} times over its {steps} time steps, a factor of "
            f"{growth ** (1 / max(1, steps - 1)):.2f} a step. "
            "Draw its recurrent weights orthogonal, so that their spectral radius is one."
        ),
        remedy=f"torch.nn.init.orthogonal_(model.get_submodule({worst.layer!r}).weight_hh_l0)",
        source=f"Pascanu et al. (2013), section 2.1; threshold {_MEASURED}",
        layers=tuple(link.layer for link in grown),
    )


def _shifted_by_weights(link: Link) -> bool:
    return link.numbers.get("weight_shift_share", 0.0) >= 0.5


def _dying_out(links: list[Link], table: Table) -> list[Link]:
    """Without biases nothing carries the rest: then everything shrinks, down to the output.

    A last layer that alone is small, as some start it, is another thing: the hidden layers must have shrunk too.

    Returns:
        The layers from where the signal is lost; empty where it is not.
    """
    loud = [link for link in links if link.rms > 0]
    output = table.get("", {}).get("output_rms", math.inf)
    if len(loud) < 3 or output >= SILENT:
        return []
    return final_run(links[: links.index(loud[-1])], lambda link: link.rms < SHRUNK * loud[0].rms)
