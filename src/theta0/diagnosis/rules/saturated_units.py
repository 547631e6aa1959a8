"""Bounded nonlinearities that are flat nearly everywhere."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.residual import with_branch_scale
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded

ERROR, WARNING = 0.9, 0.5  # of the nonlinearity's inputs


def judge(evidence: Evidence) -> Finding | None:
    """The slope is next to nothing at most inputs of a bounded nonlinearity."""
    flat = [link for link in evidence.links if link.numbers.get("saturated_share", 0.0) >= WARNING]
    if not flat:
        return None
    worst = max(link.numbers["saturated_share"] for link in flat)
    severity, threshold = graded(worst >= ERROR, ERROR, WARNING)
    return Finding(
        code="saturated-units",
        severity=severity,
        layer=flat[0].layer,
        value=worst,
        quantity="saturated share",
        threshold=threshold,
        message=(
            f"After layer {flat[0].layer!r} the nonlinearity is flat (slope below 5 % of its maximum) for "
            f"{flat[0].numbers['saturated_share']:.0%} of its inputs, so almost no gradient passes. "
            "Standardize the inputs or rescale the weights to unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance --out start.safetensors",
        source=f"slope below 5 % of its maximum: Glorot & Bengio (2010), section 3; share {MEASURED}",
        layers=tuple(link.layer for link in flat),
    )


RULE = Rule(
    code="saturated-units",
    judge=judge,
    quantities=("saturated_share",),
    place=Place.FORWARD,
    brings=frozenset({"vanishing-gradients", "constant-output"}),
    remedies=("branch-scale", "head-scale", "unit-variance", "lcw"),
    revise=with_branch_scale,
    refutable=True,
    doc=RuleDoc(
        meaning="A sigmoid, tanh or clamp is at its bounds for most inputs. Its slope there is almost zero, and so "
        "is the gradient behind it.",
        why="The inputs of the nonlinearity are too large: large weights, large biases, data that were not "
        "standardized, or a residual stream that has grown.",
        numbers=(
            (
                "the share of a bounded nonlinearity's inputs at which its slope is below 5 % of its largest; for a "
                "clamp that begins at 0, of its inputs above 0",
                f"error at {ERROR:g}; warning at {WARNING:g}",
                "Glorot & Bengio (2010), section 3; measured",
            ),
        ),
        fix="""
            from theta0.initializers import unit_variance_

            unit_variance_(model, batches)
        """,
        command="`theta0 treat TARGET --with unit-variance --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            model[0].weight.data *= 1000
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore it where a gate is meant to be open or closed at the start, for example by a large "
        "bias.",
        measured="""
            | saturated share (sigmoid, tanh) | networks | trained | stuck |
            | --- | --- | --- | --- |
            | below 0.5 | 84 | 35 | 46 |
            | 0.7 to 0.9 | 14 | 3 | 6 |

            Nothing above 0.9 was in the set; that threshold is judgement.
        """,
    ),
)
