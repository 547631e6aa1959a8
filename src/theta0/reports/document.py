"""Results as plain data, for JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from theta0._training import Run
from theta0._version import __version__
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.reports.advice import worded
from theta0.spectra import SpectrumChange
from theta0.treatment.results import Treatment

SCHEMA = 2


def diagnosis_document(diagnosis: Diagnosis, *, target: str) -> dict[str, Any]:
    """A diagnosis as the documented JSON object; numbers that are not finite become text ("nan", "inf").

    Returns:
        Keys schema, theta0, target, healthy, records, findings, learning_rate, probe, not_measured, cost_in_gradients.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import diagnose
        >>> diagnosis = diagnose(model, batches, "cross_entropy", probe_steps=0)
        >>> document = diagnosis_document(diagnosis, target="train.py")
        >>> document["target"], document["healthy"]
        ('train.py', True)
    """
    return document(target, _body(diagnosis, target))


def treatment_document(treatment: Treatment, *, target: str) -> dict[str, Any]:
    """A treatment as a JSON object: the start that the model now has, and what was tried.

    Returns:
        The keys of a diagnosis, and `treatment`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import treat
        >>> treatment = treat(model, batches, "cross_entropy", steps=5)
        >>> treatment_document(treatment, target="train.py")["treatment"]["kept"]
        False
    """
    now = treatment.after if treatment.kept and treatment.after is not None else treatment.before
    runs = {"untreated": treatment.untreated, "treated": treatment.treated}
    tried = {
        "remedy": treatment.remedy,
        "kept": treatment.kept,
        "reason": worded(treatment.reason, target),
        **{name: None if run is None else asdict(run) for name, run in runs.items()},
        "attempts": [
            {"remedy": attempt.remedy, "reason": worded(attempt.reason, target)} for attempt in treatment.attempts
        ],
    }
    return document(target, _body(now, target) | {"cost_in_gradients": treatment.cost, "treatment": tried})


def rate_document(rate: LearningRate, runs: Sequence[Run] = (), *, target: str) -> dict[str, Any]:
    """A suggested learning rate as a JSON object, with the short runs that verify it.

    Returns:
        Keys schema, theta0, target, learning_rate, runs, cost_in_gradients.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import suggest_learning_rate
        >>> rate = suggest_learning_rate(model, batches, "cross_entropy", steps=0)  # by the curvature alone
        >>> rate_document(rate, target="train.py")["learning_rate"]["proven"]
        False
    """
    cost = rate.cost + sum(run.cost for run in runs)
    advice = {"advice": [worded(sentence, target) for sentence in rate.advice]}
    body = {"learning_rate": asdict(rate) | advice, "runs": [asdict(run) for run in runs], "cost_in_gradients": cost}
    return document(target, body)


def spectrum_document(change: SpectrumChange, *, target: str) -> dict[str, Any]:
    """Spectra before and after training as a JSON object.

    Returns:
        Keys schema, theta0, target, between, optimizer, learning_rate, window, frequencies (cycles per segment), start,
        trained, losses; amplitudes are lists of outputs of lists of frequencies.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0.spectra import spectrum_change
        >>> change = spectrum_change(model, batches, "cross_entropy", between=(0, 5), steps=2, points=16)
        >>> len(spectrum_document(change, target="train.py")["frequencies"])
        9
    """
    body = {
        "between": change.between,
        "optimizer": change.optimizer,
        "learning_rate": change.rate,
        "window": change.start.window,
        "frequencies": change.start.frequencies.tolist(),
        "start": change.start.amplitudes.tolist(),
        "trained": {name: spectrum.amplitudes.tolist() for name, spectrum in change.trained.items()},
        "losses": dict(change.losses),
    }
    return document(target, body)


def document(target: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A document, which begins with the keys schema, theta0, target."""
    whole = {"schema": SCHEMA, "theta0": __version__, "target": target, **body}
    return {key: _finite(value) for key, value in whole.items()}


def finding_document(finding: Finding, target: str) -> dict[str, Any]:
    """A finding as plain data, its advice worded for the target.

    Returns:
        The finding's fields.
    """
    advice = {"message": worded(finding.message, target), "remedy": worded(finding.remedy, target)}
    return asdict(finding) | advice


def _body(diagnosis: Diagnosis, target: str) -> dict[str, Any]:
    return {
        "healthy": diagnosis.healthy,
        "records": [asdict(record) for record in diagnosis.records],
        "findings": [finding_document(finding, target) for finding in diagnosis.findings],
        "learning_rate": None if diagnosis.learning_rate is None else asdict(diagnosis.learning_rate),
        "probe": None if diagnosis.probe is None else asdict(diagnosis.probe),
        "not_measured": [worded(line, target) for line in diagnosis.not_measured],
        "cost_in_gradients": diagnosis.cost,
    }


def _finite(value: Any) -> Any:
    """The value with numbers that are not finite as text: JSON has no NaN or infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
