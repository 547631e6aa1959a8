"""Parameters that the loss does not depend on."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed


def judge(evidence: Evidence) -> Finding | None:
    """One finding for all of them; an error where the loss depends on no parameter at all."""
    unused = [name for name in evidence.trained if "gradient_norm" not in evidence.table.get(name, {})]
    if not unused or not evidence.has_loss:
        return None
    return Finding(
        code="unused-parameters",
        severity="error" if len(unused) == len(evidence.trained) else "note",
        layer=unused[0],
        value=float(len(unused)),
        threshold=0.0,
        message=(
            f"The loss does not depend on {listed(unused)}, on these batches. "
            "If that is not meant, look for a layer that forward never calls."
        ),
        remedy="",
        source="autograd finds no path from the loss",
        layers=tuple(unused),
    )


RULE = Rule(
    code="unused-parameters",
    judge=judge,
    place=Place.UNUSED,
    fault="the forward pass",
    doc=RuleDoc(
        meaning="The parameters are part of the model and are given to the optimizer, but nothing that they do reaches "
        "the loss. They are never trained.",
        why="A layer that `forward` does not call, or an output that the loss does not use.",
        numbers=(
            (
                "parameters that the loss does not depend on",
                "0: note; error if the loss depends on no parameter",
                "autograd",
            ),
        ),
        fix="del model.spare",
        command="No command changes your forward pass: call the layer, or remove it.",
        ill="""
            model = nn.Linear(8, 3)
            model.spare = nn.Linear(8, 3)
        """,
        healthy="model = nn.Linear(8, 3)",
        ignore="A note, where the layer is for later, or is used only by inputs that these batches lack.",
    ),
)
