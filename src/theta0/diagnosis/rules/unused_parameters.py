"""Parameters that the loss does not depend on."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed, whole_parts


def judge(evidence: Evidence) -> Finding | None:
    """One finding for all that no cut explains; an error where the loss depends on no parameter at all."""
    cut = set() if evidence.paths is None else {name for c in evidence.paths.cuts for name in c.parameters}
    unused = [name for name in evidence.without_gradient if name not in cut]
    if not unused:
        return None
    parts = [] if evidence.paths is None else whole_parts(evidence, evidence.paths.idle)
    loose = evidence.loose_summand if parts else None
    return Finding(
        code="unused-parameters",
        severity="error" if len(unused) == len(evidence.trained) or loose is not None else "note",
        layer=unused[0],
        value=float(len(unused)),
        quantity="tensors",
        threshold=0.0,
        message=f"The loss does not depend on {listed(unused)}, on these batches. {_why(evidence)}"
        + ("" if loose is None else _LOOSE.format(part=listed(parts))),
        remedy="",
        source="autograd finds no path from the loss",
        layers=tuple(unused),
        source_line="" if loose is None else loose.line,
    )


_LOOSE = (
    " A number that no parameter changes is added to the loss, another one for each batch: what {part} makes left "
    "torch on its way there (tolist, numpy, item, a new tensor made of values). Compute with tensors up to the loss."
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
        meaning="The parameters belong to the model and the optimizer holds them, but they have no effect on the "
        "loss. They are never trained.",
        why="`forward` does not call a layer, or the loss does not use an output.",
        numbers=(
            (
                "the number of parameters that the loss does not depend on",
                "note above 0; error if the loss depends on no parameter, or if a whole part of the model has no "
                "effect and a number without gradient, another one for each batch, is added to the loss",
                "autograd",
            ),
        ),
        fix="del model.spare",
        command="call the layer in the forward pass, or remove it.",
        ill="""
            model = nn.Linear(8, 3)
            model.spare = nn.Linear(8, 3)
        """,
        healthy="model = nn.Linear(8, 3)",
        ignore="You can ignore a note where the layer is for later, or is used only by inputs that do not occur "
        "in these batches.",
    ),
)
