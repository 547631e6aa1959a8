"""Labels that carry no information: all the same, or learned no faster than permuted ones."""

import torch
from torch import Tensor

from theta0.diagnosis.evidence import BY_HEART, Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.experiments.shuffled_labels import LEAST_SAMPLES, PERMUTATIONS

ADVANTAGE = 0.1  # of what the real labels gain over permuted ones


def judge(evidence: Evidence) -> Finding | None:
    """Whether the labels differ, and by how much real ones are learned better than the best of the permuted ones."""
    return _all_the_same(evidence) or _by_heart(evidence)


def _by_heart(evidence: Evidence) -> Finding | None:
    found = evidence.shuffled_labels
    if found is None or len(found.permuted) < PERMUTATIONS or not found.advantage < ADVANTAGE:
        return None
    return Finding(
        code="no-signal",
        severity="warning",
        layer="",
        value=found.advantage,
        threshold=ADVANTAGE,
        message=(
            f"The labels are learned no faster than the same labels permuted among the samples (loss {found.real:.3g} "
            f"and {min(found.permuted):.3g} after {len(found.losses[0])} steps, {found.constant:.3g} without looking): "
            "what is learned is the samples by heart. See whether inputs and labels still belong together: a shuffle, "
            "a sort or a join that moved one of them."
        ),
        remedy="# compare a few inputs with their labels by eye",
        source=MEASURED,
    )


def _all_the_same(evidence: Evidence) -> Finding | None:
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
        "samples on one side. Learned by heart: inputs and labels were shuffled, sorted or filtered apart.",
        numbers=(
            ("entropy of the labels over all batches", "0: error", "definition"),
            (
                "how much more loss the real labels lose than permuted ones in the same short run, as a share, where "
                f"that gained less than {BY_HEART:.0%} of what there is to learn and there are {LEAST_SAMPLES} samples",
                f"{ADVANTAGE:g} on each of {PERMUTATIONS} permutations: warning",
                "judgement",
            ),
        ),
        fix="batches = [(x, y + (x[:, 0] > 0)) for x, y in batches]",
        command="No command changes your data.",
        ill="""
            model, batches = nn.Linear(8, 3), [(inputs, torch.zeros(64, dtype=torch.long))]
        """,
        healthy="model = nn.Linear(8, 3)",
        ignore="Where the batches that you diagnose on are of one class on purpose; or are few, and their signal weak: "
        "a larger `max_batches` shows it.",
    ),
)
