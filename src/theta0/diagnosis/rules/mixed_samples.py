"""Samples of a batch that influence each other's outputs."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc

SHARE = 1e-3  # of the effect of a sample's own inputs
STRONG = 0.03
_WITHIN = frozenset(("softmax", "log_softmax", "scaled_dot_product_attention", "multi_head_attention_forward", "lstm"))
_RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu", "scan"))


def judge(evidence: Evidence) -> Finding | None:
    """Outputs that change though their own inputs do not, in evaluation mode."""
    found = evidence.mixing if evidence.finite else None
    if found is None or found.share < SHARE or found.kind:
        return None
    operation = found.operation
    name = "" if operation is None else operation.name
    where = f" It begins at {operation}." if operation is not None else ""
    return Finding(
        code="mixed-samples",
        severity="error" if found.share >= STRONG or name in _WITHIN | _RECURRENT else "warning",
        layer="" if operation is None else operation.path,
        value=found.share,
        threshold=SHARE,
        message=(
            "In evaluation mode, the outputs of samples change when only the inputs of other samples do, by "
            f"{found.share:.1%} of what their own inputs change.{where} {_advice(name)}"
        ),
        remedy="",
        source="two forward passes on eight samples, half of which are exchanged; threshold: judgement",
        layers=() if operation is None else (operation.path,),
        source_line="" if operation is None else operation.line,
    )


def _advice(name: str) -> str:
    if name in ("multi_head_attention_forward", "scaled_dot_product_attention") or name in _RECURRENT:
        return "The batch lies along the axis that it runs over: give (length, batch, width), or say batch_first=True."
    if name in ("softmax", "log_softmax", "normalize", "cumsum"):
        return "It runs along the axis of the samples: say another dim."
    if not name:
        return "Samples change places: look for a reshape or view where a transpose or permute is meant."
    return (
        "It combines entries of different samples: look at the axis that it runs over, and for a reshape or view "
        "before it where a transpose or permute is meant."
    )


RULE = Rule(
    code="mixed-samples",
    judge=judge,
    place=Place.LOSS,
    brings=frozenset({"vanishing-activations", "constant-output", "activation-shift", "initial-loss"}),
    fault="the forward pass",
    doc=RuleDoc(
        meaning="What the network says of a sample depends on which others are in the batch, although no batch "
        "statistics are on: positions of different samples see each other, and often those of one sample do not.",
        why="Batch and sequence axes exchanged (`batch_first`), a softmax or a norm over the batch axis, a `reshape` "
        "or `view` where a transpose is meant.",
        numbers=(
            (
                "change of the outputs whose own inputs stay, over that of those whose inputs are exchanged, in "
                "evaluation mode",
                f"{SHARE:g}: warning; error at {STRONG:g}, or where a softmax, attention or recurrence does it",
                "independent samples give exactly 0; judgement",
            ),
        ),
        fix="model.dim = -1",
        command="No command changes your forward pass: look at the operation that the finding names.",
        ill="""
            class Net(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.dim, self.score, self.head = dim, nn.Linear(8, 8), nn.Linear(8, 3)

                def forward(self, x):
                    return self.head(self.score(x).softmax(self.dim) * x)

            model = Net(0)
        """,
        healthy="""
            class Net(nn.Module):
                def __init__(self, dim):
                    super().__init__()
                    self.dim, self.score, self.head = dim, nn.Linear(8, 8), nn.Linear(8, 3)

                def forward(self, x):
                    return self.head(self.score(x).softmax(self.dim) * x)

            model = Net(-1)
        """,
        ignore="Where samples are meant to see each other, as in attention between the rows of a table. Means and "
        "variances over the batch, constant graphs and outputs for pairs of samples are left out.",
    ),
)
