"""Labels that carry no information."""

import torch
from torch import Tensor

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc


def judge(evidence: Evidence) -> Finding | None:
    """Every label of a classification is the same."""
    targets = [batch.targets for batch in evidence.batches]
    known = [t.detach().flatten() for t in targets if isinstance(t, Tensor)]
    if len(known) < len(targets) or not evidence.inspection.labelled:
        return None
    labels = torch.cat(known)
    labels = labels[labels != -100]
    if labels.numel() < 2 or not bool((labels == labels[0]).all()):
        return None
    return Finding(
        code="no-signal",
        severity="error",
        layer="",
        value=0.0,
        threshold=0.0,
        message=(
            f"All {labels.numel():,} labels are {float(labels[0]):g}: their entropy is zero, and a constant output is "
            "perfect. Look at how labels are read, and shuffle data that are sorted by class."
        ),
        remedy="",
        source="the entropy of the labels",
    )


RULE = Rule(
    code="no-signal",
    judge=judge,
    place=Place.DATA,
    brings=frozenset({"initial-loss", "constant-output", "learning-rate-too-low"}),
    fault="the data",
    doc=RuleDoc(
        meaning="The labels say nothing of the inputs: whatever the network learns, it is not what you want.",
        why="Data sorted by class and not shuffled, a label column that was read wrongly, or a threshold that puts all "
        "samples on one side.",
        numbers=(("entropy of the labels over all batches", "0: error", "definition"),),
        fix="batches = [(x, y + (x[:, 0] > 0)) for x, y in batches]",
        command="No command changes your data.",
        ill="""
            model, batches = nn.Linear(8, 3), [(inputs, torch.zeros(64, dtype=torch.long))]
        """,
        healthy="model = nn.Linear(8, 3)",
        ignore="Where the batches that you diagnose on are of one class on purpose.",
    ),
)
