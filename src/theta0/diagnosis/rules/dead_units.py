"""Units whose nonlinearity passes no gradient on any sample."""

from theta0.diagnosis.chain import Link
from theta0.diagnosis.consequences import SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded

ERROR, WARNING = 0.95, 0.5  # of a layer's units
FEW_VALUES = 32  # samples times positions
FEW_UNITS = 12  # of fewer, Wilson's 95 % interval of half reaches below a quarter


def judge(evidence: Evidence) -> Finding | None:
    """Most units of a layer have slope zero everywhere."""
    # Preactivations that are zero throughout come from a zero weight, which is another fault, or none.
    silent = [link for link in evidence.links if link.rms > 0]
    dead = [link for link in silent if link.numbers.get("dead_share", 0.0) >= _least(evidence, link)]
    if not dead:
        return None
    worst = max(dead, key=lambda link: link.numbers["dead_share"])
    share = worst.numbers["dead_share"]
    severity, threshold = graded(share >= ERROR, ERROR, WARNING)
    return Finding(
        code="dead-units",
        severity=severity,
        layer=dead[0].layer,
        value=share,
        quantity="dead share",
        threshold=threshold,
        message=(
            f"After layer {worst.layer!r}, {share:.0%} of the units have slope zero on every sample: they cannot "
            "learn. Center the inputs or the biases, and rescale the weights to unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance --out start.safetensors",
        source=f"Lu et al. (2020), dying ReLU; share {MEASURED}",
        layers=tuple(link.layer for link in dead),
    )


def _least(evidence: Evidence, link: Link) -> float:
    """Of a few values per unit, as behind global pooling of a small batch, many units are off by chance.

    So are half of a few units, as of a gate whose inputs differ little between samples.
    """
    weight = evidence.parameters.get(f"{link.layer}.weight")
    many = weight is None or len(weight) >= FEW_UNITS
    return WARNING if many and link.numbers.get("values_per_unit", 0.0) >= FEW_VALUES else ERROR


RULE = Rule(
    code="dead-units",
    judge=judge,
    quantities=("dead_share",),
    place=Place.FORWARD,
    brings=(SILENCE | {"vanishing-activations"}) - {"dead-units"},
    remedies=("unit-variance", "lcw"),
    refutable=True,
    doc=RuleDoc(
        meaning="The units return the same value for every sample and receive no gradient. They take no part in "
        "the network, and training does not revive them.",
        why="The input of a ReLU is negative for every sample: the biases are far below zero, or the weights "
        "have one sign and the data are all positive.",
        numbers=(
            (
                "the share of a layer's units whose nonlinearity has slope zero on every sample",
                f"error at {ERROR:g}; warning at {WARNING:g}, where a layer has {FEW_UNITS} units and a unit "
                f"{FEW_VALUES} values or more",
                "Lu et al. (2020), dying ReLU; measured",
            ),
        ),
        fix="nn.init.zeros_(model[0].bias)",
        command="`theta0 treat TARGET --with unit-variance --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
            nn.init.constant_(model[0].bias, -100)
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))",
        ignore="You can ignore a warning on a small batch, where units may be inactive by chance: diagnose on "
        "more samples.",
        measured="""
            | dead share (ReLU) | networks | trained | stuck |
            | --- | --- | --- | --- |
            | below 0.1 | 19 | 19 | 0 |
            | 0.1 to 0.3 | 14 | 5 | 8 |
            | 0.3 to 0.7 | 23 | 0 | 20 |

            Nothing above 0.7 was in the set; the threshold of an error is judgement. That a unit with a few values is
            not called dead was learned from false alarms on library models.
        """,
    ),
)
