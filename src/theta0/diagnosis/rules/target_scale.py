"""Regression targets far outside the scale of the outputs."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded

ERROR, WARNING = 1000.0, 100.0  # over the outputs' scale, or over 1 where that is larger
TINY = 1e-3


def judge(evidence: Evidence) -> Finding | None:
    """The targets' root mean square over the outputs'."""
    compared = [c for c in evidence.inspection.comparisons if c.target_rms > 0]
    if not compared:
        return None
    found = max(compared, key=lambda c: c.target_rms / max(c.output_rms, 1.0))
    ratio = found.target_rms / max(found.output_rms, 1.0)
    if ratio > WARNING:
        severity, threshold = graded(ratio > ERROR, ERROR, WARNING)
        size = f"{ratio:,.0f} times the outputs' scale"
        why = "the outputs approach them very slowly, and the loss's gradient is as large"
    elif max(c.target_rms for c in compared) < TINY and found.output_rms > WARNING * found.target_rms:
        severity, threshold, ratio = "warning", WARNING, found.output_rms / found.target_rms
        size = f"{ratio:,.0f} times smaller than the outputs"
        why = "a good output has almost the same loss as zero, and one step overshoots"
    else:
        return None
    return Finding(
        code="target-scale",
        severity=severity,
        layer="",
        value=ratio,
        threshold=threshold,
        message=(
            f"The targets (mean {found.target_mean:.4g}, standard deviation {found.target_std:.4g}) are {size}: {why}. "
            "Standardize the targets to mean 0 and standard deviation 1, and undo it on the outputs."
        ),
        remedy="targets = (targets - targets.mean()) / targets.std()",
        source="a network starts with outputs of order 1; threshold: judgement",
        source_line=found.operation.line or evidence.observed.loss_line,
    )


RULE = Rule(
    code="target-scale",
    judge=judge,
    place=Place.DATA,
    brings=frozenset(
        {"initial-loss", "learning-rate-too-high", "learning-rate-too-low", "exploding-gradients", "gradient-conflict"}
    ),
    fault="the data",
    refutable=True,
    doc=RuleDoc(
        meaning="The targets of a regression are hundreds of times larger than the outputs. With an adaptive "
        "optimizer, each step moves the outputs by about the learning rate times the width, so training "
        "takes very long; with gradient descent, the first gradients are as large as the targets.",
        why="Prices, returns, temperatures in kelvin or years are used as they are.",
        numbers=(
            (
                "the root mean square of the targets, divided by that of the outputs or by 1, whichever is larger",
                f"error above {ERROR:,.0f}; warning above {WARNING:g}",
                "judgement",
            ),
            (
                f"for targets smaller than {TINY:g}: the root mean square of the outputs, divided by that of the "
                "targets",
                f"warning above {WARNING:g}",
                "judgement",
            ),
        ),
        fix="batches = [(x, (y - y.mean()) / y.std()) for x, y in batches]",
        command="standardize the targets where your script loads them.",
        ill="""
            model, loss = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), "mse"
            batches = [(inputs, 5000 + 300 * inputs.sum(1, keepdim=True))]
        """,
        healthy="""
            model, loss = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), "mse"
            batches = [(inputs, inputs.sum(1, keepdim=True))]
        """,
        ignore="You can ignore it where the last bias is initialized to the mean of the targets and the last "
        "layer is scaled to their standard deviation.",
    ),
)
