"""Whose fault it is: what no other start fixes is reported with the line to change, and left alone."""

from collections.abc import Sequence

from torch import Tensor, nn

from theta0._batches import Batch
from theta0._models import main_output
from theta0._trace.layers import layers
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.diagnosis.rules import rule_of

_START, _DATA, _LOSS, _RATE = "the start", "the data", "the output and the loss", "the learning rate"
_OFF_CENTRE = 1.0  # mean of the data over their standard deviation


def other_causes(diagnosis: Diagnosis, model: nn.Module, batch: Batch) -> tuple[str, str, str] | None:
    """Whose fault it is if not the start's, what is wrong, and the line to change; None where the start may be.

    The first finding decides; and an error further down that no start fixes. A rate is at fault only where nothing else
    is wrong, since it may be too high for this start alone. Units that are dead at the output are the output's, units
    dead at off-centre data the data's.
    """
    serious = [finding for finding in diagnosis.findings if finding.severity != "note"]
    for place, finding in enumerate(serious):
        whose = _fault(finding)
        only = all(_fault(other) == _RATE for other in serious)
        if (whose == _RATE and only) or (whose not in (_START, _RATE) and (place == 0 or finding.severity == "error")):
            return whose, finding.message, finding.remedy
    if serious and serious[0].code in ("dead-units", "zero-gradient"):
        return _dead(serious, model, batch)
    return None


def _fault(finding: Finding) -> str:
    rule = rule_of(finding.code)
    return _START if rule is None else rule.fault


def _dead(serious: Sequence[Finding], model: nn.Module, batch: Batch) -> tuple[str, str, str] | None:
    dead = next((finding for finding in serious if finding.code == "dead-units"), None)
    seen = [layer for layer in layers(model, batch) if layer.kind not in ("embedding", "recurrent")]
    if dead is None or not seen:
        return None
    if dead.layer == seen[-1].path and seen[-1].nonlinearity is not None:
        line = f"# remove {seen[-1].nonlinearity} after {dead.layer!r}, the last layer"
        return _LOSS, dead.message, line
    if dead.layer == seen[0].path and _off_centre(batch):
        return _DATA, dead.message, "inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-8)"
    return None


def _off_centre(batch: Batch) -> bool:
    data = batch.inputs if isinstance(batch.inputs, Tensor) else main_output(batch.inputs)
    if data is None or not data.is_floating_point() or data.numel() < 2:
        return False
    values = data.double()
    return bool(values.mean().abs() > _OFF_CENTRE * values.std())
