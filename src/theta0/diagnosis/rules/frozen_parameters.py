"""Parameters that are not trained."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed


def judge(evidence: Evidence) -> Finding | None:
    """One finding for all with `requires_grad=False`; an error where nothing is left to train."""
    trained = set(evidence.trained)
    frozen = [name for name, _ in evidence.model.named_parameters() if name not in trained]
    if not frozen or not (trained or evidence.has_loss):
        return None
    return Finding(
        code="frozen-parameters",
        severity="note" if trained else "error",
        layer=frozen[0],
        value=float(len(frozen)),
        threshold=0.0,
        message=(
            f"{listed(frozen)} will not be trained (requires_grad is False). "
            "If that is not meant, set requires_grad_(True)."
        ),
        remedy="model.requires_grad_(True)",
        source="requires_grad",
        layers=tuple(frozen),
    )


RULE = Rule(
    code="frozen-parameters",
    judge=judge,
    place=Place.FROZEN,
    fault="what is trained",
    doc=RuleDoc(
        meaning="These parameters keep their values during training.",
        why="`requires_grad_(False)` was called on them, on purpose for fine-tuning, or by a helper that freezes more "
        "than was meant.",
        numbers=(
            ("parameters with `requires_grad=False`", "0: note; error if nothing is left to train", "`requires_grad`"),
        ),
        fix="model.requires_grad_(True)",
        command="No command changes what is trained: call `requires_grad_(True)` in the target's `model()`.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            model[0].requires_grad_(False)
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="A note, where you froze them on purpose.",
    ),
)
