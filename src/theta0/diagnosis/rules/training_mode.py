"""Dropout and normalization in a mode that does not fit training."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding, Severity
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed

DROPPED = 0.8


def judge(evidence: Evidence) -> Finding | None:
    """A whole model in evaluation mode, or dropout that leaves next to nothing."""
    model = evidence.model
    dropouts = {name: m for name, m in model.named_modules() if isinstance(m, _DropoutNd) and m.p > 0}
    norms = {name: m for name, m in model.named_modules() if isinstance(m, _NormBase) and m.track_running_stats}
    affected = [*dropouts, *norms]
    if affected and not any(_at(model, name).training for name in affected) and not model.training:
        return _finding(
            affected,
            float(len(affected)),
            0.0,
            f"The model is in evaluation mode: {listed(affected)} {'works' if len(affected) == 1 else 'work'} as for "
            "inference (no dropout, stored statistics). Call model.train() before training, and again after each "
            "evaluation.",
            "model.train()",
            "warning" if dropouts else "note",  # stored statistics that do not fit are frozen-batch-norm's
        )
    strong = [name for name, m in dropouts.items() if m.p >= DROPPED and m.training]
    if not strong:
        return None
    share = max(dropouts[name].p for name in strong)
    return _finding(
        strong,
        share,
        DROPPED,
        f"Dropout at {listed(strong)} drops {share:.0%} of the values, so that almost no signal passes. torch's p is "
        "the share that is dropped, not the share that is kept.",
        f"model.get_submodule({strong[0]!r}).p = {1 - share:.2g}",
    )


def _at(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name)


def _finding(
    layers: list[str], value: float, threshold: float, message: str, remedy: str, severity: Severity = "warning"
) -> Finding:
    return Finding(
        code="training-mode",
        severity=severity,
        layer=layers[0],
        value=value,
        threshold=threshold,
        message=message,
        remedy=remedy,
        source="torch's documentation of Module.train and Dropout; share: judgement",
        layers=tuple(layers),
    )


RULE = Rule(
    code="training-mode",
    judge=judge,
    place=Place.NORMALIZATION,
    fault="the training loop",
    brings=frozenset({"frozen-batch-norm"}),
    doc=RuleDoc(
        meaning="The network is trained in the wrong mode: without its regularization, with stored statistics, or "
        "with almost all of its signal dropped.",
        why="`model.eval()` was called for an evaluation or by a function that loads a pretrained model, and "
        "`model.train()` was not called after it; or a keep probability was given as the p of "
        "`nn.Dropout`.",
        numbers=(
            (
                "dropout and normalization layers in evaluation mode",
                "warning if the model and all of them are",
                "torch's documentation",
            ),
            ("the share of values that dropout drops", f"warning at {DROPPED:g}", "judgement"),
        ),
        fix="model.train()",
        command="call `model.train()` before training, and again after every evaluation.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
            model.eval()
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))",
        ignore="You can ignore it where dropout and statistics are frozen on purpose, as in fine-tuning.",
    ),
)
