"""Parameters that the loss does not depend on."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed


def judge(evidence: Evidence) -> Finding | None:
    """One finding for all that no cut explains; an error where the loss depends on no parameter at all."""
    cut = set() if evidence.paths is None else {name for c in evidence.paths.cuts for name in c.parameters}
    unused = [name for name in evidence.without_gradient if name not in cut]
    if not unused:
        return None
    return Finding(
        code="unused-parameters",
        severity="error" if len(unused) == len(evidence.trained) else "note",
        layer=unused[0],
        value=float(len(unused)),
        threshold=0.0,
        message=f"The loss does not depend on {listed(unused)}, on these batches. {_why(evidence)}",
        remedy="",
        source="autograd finds no path from the loss",
        layers=tuple(unused),
    )


def _why(evidence: Evidence) -> str:
    if evidence.paths is None or not (evidence.paths.idle or evidence.paths.unused):
        return "If that is not meant, look for a layer that forward never calls."
    idle, unused = evidence.paths.idle, evidence.paths.unused
    parts = []
    if unused:
        parts.append(f"The forward pass never uses {listed(unused)}.")
    if idle:
        parts.append(f"It uses {listed(idle)}, but nothing of what they make reaches the loss.")
    return " ".join(parts)


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
