"""Outputs and targets of unlike shapes that the loss stretches against each other."""

import math

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc


def judge(evidence: Evidence) -> Finding | None:
    """The loss compares more terms than there are outputs or targets."""
    if not evidence.inspection.broadcasts:
        return None
    found = evidence.inspection.broadcasts[0]
    fewest = max(math.prod(found.output), math.prod(found.target))
    return Finding(
        code="broadcast-loss",
        severity="error",
        layer="",
        value=found.terms / fewest,
        quantity="terms for each output",
        threshold=1.0,
        message=(_OF_MODEL if found.of_model else _IN_LOSS).format(**vars(found), fewest=fewest),
        remedy="" if found.of_model else "targets = targets.reshape(outputs.shape)",
        source="torch's broadcasting semantics",
        source_line=found.line or evidence.observed.loss_line,
    )


_IN_LOSS = (
    "The loss compares outputs of shape {output} with targets of shape {target}: broadcasting makes {terms:,} terms of "
    "{fewest:,}, each output compared with every target, so that only a constant is best. Give both the same shape."
)
_OF_MODEL = (
    "The model puts shapes {output} and {target} together: broadcasting makes {terms:,} outputs of {fewest:,} samples, "
    "each with each other, and the loss compares these with {fewest:,} targets. "
    "Give both the same shape, for example by .sum(-1, keepdim=True) or .squeeze(-1)."
)
RULE = Rule(
    code="broadcast-loss",
    judge=judge,
    place=Place.LOSS,
    fault="the output and the loss",
    doc=RuleDoc(
        meaning="The loss compares every sample's output with every sample's target. The best result that training "
        "can reach is one constant for all samples: the mean of the targets.",
        why="A last layer with one unit returns shape (N, 1), and the targets have shape (N,). Broadcasting "
        "makes (N, N) of the two. The same happens inside a model that adds a column (N, 1) and a sum of shape (N,).",
        numbers=(
            (
                "the number of terms that the loss compares, divided by the number of outputs, where outputs and "
                "targets have different numbers of axes, as (N, 1) and (N,)",
                "error above 1",
                "torch's broadcasting",
            ),
        ),
        fix="batches = [(x, y.unsqueeze(-1)) for x, y in batches]",
        command="give the targets the outputs' shape, where your script loads them or in the line that the report "
        "names.",
        ill="""
            model = nn.Linear(8, 1)
            batches = [(inputs, inputs.sum(1))]  # outputs (64, 1), targets (64,)


            def loss(outputs, targets):
                return ((outputs - targets) ** 2).mean()
        """,
        healthy="""
            model = nn.Linear(8, 1)
            batches = [(inputs, inputs.sum(1, keepdim=True))]


            def loss(outputs, targets):
                return ((outputs - targets) ** 2).mean()
        """,
        ignore="You can ignore it where the loss is meant to compare every output with every target, as a "
        "contrastive or a pairwise loss does.",
    ),
)
