"""Units that are copies of one another and stay so."""

from theta0.diagnosis.consequences import SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded

ERROR, WARNING = 0.5, 0.1  # of a layer's units


def judge(evidence: Evidence) -> Finding | None:
    """Units with the weights and the gradient of another unit; not of the last layer, whose targets part them."""
    last = evidence.calls[-1].layer.partition("#")[0] if evidence.calls else ""
    alike = {
        name: numbers["identical_share"]
        for name, numbers in evidence.table.items()
        if numbers.get("identical_share", 0.0) >= WARNING and name.rpartition(".")[0] != last
    }
    if not alike:
        return None
    name, share = next(iter(alike.items()))
    severity, threshold = graded(max(alike.values()) >= ERROR, ERROR, WARNING)
    return Finding(
        code="identical-units",
        severity=severity,
        layer=name,
        value=share,
        quantity="share of copies",
        threshold=threshold,
        message=(
            f"{share:.0%} of the units of {name!r} have exactly the weights and nearly the gradient of another unit: "
            f"they stay copies of each other ({len(alike)} such weights), and the network is as good as one that many "
            "units narrower. Draw the weights at random, for example by torch.nn.init.kaiming_normal_."
        ),
        remedy=f"torch.nn.init.kaiming_normal_(model.get_parameter({name!r}))",
        source="units with equal weights and equal gradients stay equal: Goodfellow et al. (2016), section 8.4",
        layers=tuple(alike),
    )


RULE = Rule(
    code="identical-units",
    judge=judge,
    place=Place.SYMMETRY,
    brings=SILENCE | {"activation-shift"},
    remedies=("redraw",),
    doc=RuleDoc(
        meaning="Several units compute the same value and receive the same gradient, so they stay equal during "
        "training. The layer has fewer units than it seems to have.",
        why="The weights were filled with one constant, or a row was copied.",
        numbers=(
            (
                "the share of a layer's units that have the same weights as another unit (not all of them zero) and,"
                " within 30 %, the same gradient. The last layer is not judged",
                f"error at {ERROR:g}; warning at {WARNING:g}",
                "such units stay equal: Goodfellow et al. (2016), section 8.4",
            ),
        ),
        fix="nn.init.kaiming_normal_(model[0].weight)",
        command="`theta0 treat TARGET --with redraw --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            nn.init.constant_(model[0].weight, 0.1)
            nn.init.constant_(model[2].weight, 0.1)
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            nn.init.constant_(model[2].weight, 0.1)  # the last layer's units are parted by their targets
        """,
        ignore="You can ignore it where copies are intended and something separates them later, such as dropout "
        "or noise on the weights.",
        measured="A vector of scales, as of a normalization, has no units: this was learned from a false alarm on a "
        "library model.",
    ),
)
