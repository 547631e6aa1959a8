"""Parameters that are not trained."""

from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.evidence import BY_HEART, Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, listed


def judge(evidence: Evidence) -> Finding | None:
    """One finding for all with `requires_grad=False`; an error where nothing is left to train."""
    trained = set(evidence.trained)
    frozen = [name for name, _ in evidence.parameters.items() if name not in trained]
    if not frozen or not (trained or evidence.has_loss):
        return None
    alone = bool(trained) and _no_weight_is_trained(evidence) and not _has_learnt(evidence)
    left = "Only biases and gains are left, in a network that has not learned anything yet. " if alone else ""
    return Finding(
        code="frozen-parameters",
        severity="error" if not trained else "warning" if alone else "note",
        layer=frozen[0],
        value=float(len(frozen)),
        quantity="tensors",
        threshold=0.0,
        message=(
            f"{listed(frozen)} will not be trained (requires_grad is False). {left}"
            "If that is not meant, set requires_grad_(True)."
        ),
        remedy="" if trained and not alone else "model.requires_grad_(True)",
        source="requires_grad",
        layers=tuple(frozen),
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """A warning where training fails and nothing else is found that explains it: with these it has more to train.

    So it is where the run at the given rate does not train, and the layers in front of the trained ones are frozen as
    they were drawn.
    """
    fails = any(other.code == "does-not-train" for other in others)
    serious = [other for other in others if other.severity != "note" and other.code != "does-not-train"]
    if finding.severity != "note" or serious or not _weights(evidence, trained=False):
        return finding
    if fails:
        return replace(finding, severity="warning", message=f"{finding.message} What is left does not train by itself.")
    if not _undecided(evidence) or _has_learnt(evidence) or not evidence.drawn_features:
        return finding
    message = (
        f"{finding.message} They still are what a default draw made of them, and the layers behind learn from what "
        "such random layers make: load the pretrained weights, or train them too."
    )
    return replace(finding, severity="warning", message=message, remedy="model.requires_grad_(True)")


def _undecided(evidence: Evidence) -> bool:
    """Whether a short run was made at the given rate, or any, and did not train."""
    probe = evidence.probe
    run = None if probe is None else probe.at(evidence.rate) or probe.at(probe.best)
    return run is not None and run.outcome != "trains"


def _weights(evidence: Evidence, trained: bool) -> list[str]:
    names = set(evidence.trained)
    return [name for name, p in evidence.parameters.items() if p.dim() > 1 and (name in names) == trained]


def _no_weight_is_trained(evidence: Evidence) -> bool:
    return not _weights(evidence, trained=True) and bool(_weights(evidence, trained=False))


def _has_learnt(evidence: Evidence) -> bool:
    """Whether the first loss lies well below what outputs reach that ignore the input, as after pretraining."""
    probe, whole = evidence.probe, evidence.network
    constant = whole.get("loss_constant") if probe is None else probe.constant
    floor = 0.0 if probe is None else probe.floor
    first = whole.get("loss")
    if constant is None or first is None:
        return False
    return first < constant - BY_HEART * abs(constant - floor)


RULE = Rule(
    code="frozen-parameters",
    judge=judge,
    place=Place.FROZEN,
    fault="which parameters are trained",
    revise=revise,
    doc=RuleDoc(
        meaning="These parameters do not change during training.",
        why="`requires_grad_(False)` was called on them: on purpose for fine-tuning, or by a function that "
        "freezes more than intended.",
        numbers=(
            (
                "the number of parameters with `requires_grad=False`",
                "note above 0; warning if only biases and gains are trained and the first loss is hardly better than"
                " without looking at the input, or if training fails and nothing else is found, or if the short run at "
                "the given rate does not train and all layers in front of trained ones are frozen as they were drawn; "
                "error if nothing is left to train",
                "`requires_grad`; judgement",
            ),
        ),
        fix="model.requires_grad_(True)",
        command="call `model.requires_grad_(True)` before the optimizer is made.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            model[0].requires_grad_(False)
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore a note where you froze them on purpose, and a warning where you want to keep "
        "random weights.",
    ),
)
