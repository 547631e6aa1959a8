"""Findings about single units: saturated, dead, copies of one another."""

from collections.abc import Sequence

from theta0._records import Table
from theta0.diagnosis.chain import Link
from theta0.diagnosis.results import Finding

SATURATED_ERROR, SATURATED_WARNING = 0.9, 0.5
DEAD_ERROR, DEAD_WARNING = 0.95, 0.5
FEW_VALUES = 32  # samples times positions
IDENTICAL_ERROR, IDENTICAL_WARNING = 0.5, 0.1
_MEASURED = "measured, docs/findings.md"


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
    # Preactivations that are zero throughout come from a zero weight, which is another fault, or none.
    dead = [link for link in links if link.rms > 0 and link.numbers.get("dead_share", 0.0) >= _least_dead(link)]
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


def _least_dead(link: Link) -> float:
    """Of a few values per unit, as behind global pooling of a small batch, many units are off by chance."""
    return DEAD_WARNING if link.numbers.get("values_per_unit", 0.0) >= FEW_VALUES else DEAD_ERROR


def identical_units(links: Sequence[Link], table: Table) -> Finding | None:
    """Units with the weights and the gradient of another unit: they stay copies for ever.

    The last layer's units may start equal: their targets part them.

    Returns:
        The finding, or None.
    """
    last = links[-1].layer.partition("#")[0] if links else ""
    alike = {
        name: numbers["identical_share"]
        for name, numbers in table.items()
        if numbers.get("identical_share", 0.0) >= IDENTICAL_WARNING and name.rpartition(".")[0] != last
    }
    if not alike:
        return None
    name, share = next(iter(alike.items()))
    severe = max(alike.values()) >= IDENTICAL_ERROR
    return Finding(
        code="identical-units",
        severity="error" if severe else "warning",
        layer=name,
        value=share,
        threshold=IDENTICAL_ERROR if severe else IDENTICAL_WARNING,
        message=(
            f"{share:.0%} of the units of {name!r} have exactly the weights and nearly the gradient of another unit: "
            f"they stay copies of each other ({len(alike)} such weights): the network is as good as that many units "
            "narrower. Draw the weights at random, for example by torch.nn.init.kaiming_normal_."
        ),
        remedy=f"torch.nn.init.kaiming_normal_(model.get_parameter({name!r}))",
        source="units with equal weights and equal gradients stay equal: Goodfellow et al. (2016), section 8.4",
        layers=tuple(alike),
    )
