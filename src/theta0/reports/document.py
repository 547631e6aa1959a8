"""Results as plain data, for JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from theta0._records import Record
from theta0._training import Run
from theta0._version import __version__
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.results import Diagnosis
from theta0.spectra import Spectrum, SpectrumChange
from theta0.treatment.results import Treatment

SCHEMA = 1


def diagnosis_document(diagnosis: Diagnosis, *, target: str) -> dict[str, Any]:
    """A diagnosis as the documented JSON object; numbers that are not finite become text ("nan", "inf").

    Returns:
        Keys schema, theta0, target, healthy, records, findings, cost_in_gradients.
    """
    document: dict[str, Any] = finite(head(target) | _body(diagnosis))
    return document


def treatment_document(treatment: Treatment, *, target: str) -> dict[str, Any]:
    """A treatment as a JSON object: the start that the model now has, and what was tried.

    Returns:
        The keys of a diagnosis, and `treatment`.
    """
    now = treatment.after if treatment.kept and treatment.after is not None else treatment.before
    runs = {"untreated": treatment.untreated, "treated": treatment.treated}
    tried = {
        "remedy": treatment.remedy,
        "kept": treatment.kept,
        "reason": treatment.reason,
        **{name: None if run is None else asdict(run) for name, run in runs.items()},
        "attempts": [{"remedy": attempt.remedy, "reason": attempt.reason} for attempt in treatment.attempts],
    }
    body = _body(now) | {"cost_in_gradients": treatment.cost, "treatment": tried}
    document: dict[str, Any] = finite(head(target) | body)
    return document


def rate_document(rate: LearningRate, runs: Sequence[Run] = (), *, target: str) -> dict[str, Any]:
    """A suggested learning rate as a JSON object, with the short runs that verify it.

    Returns:
        Keys schema, theta0, target, learning_rate, runs, cost_in_gradients.
    """
    cost = rate.cost + sum(run.cost for run in runs)
    body = {"learning_rate": asdict(rate), "runs": [asdict(run) for run in runs], "cost_in_gradients": cost}
    document: dict[str, Any] = finite(head(target) | body)
    return document


def spectrum_document(change: SpectrumChange, *, target: str) -> dict[str, Any]:
    """Spectra before and after training as a JSON object.

    Returns:
        Keys schema, theta0, target, between, optimizer, learning_rate, window, frequencies (cycles per segment), start,
        trained, losses; amplitudes are lists of outputs of lists of frequencies.
    """

    def rows(spectrum: Spectrum) -> list[list[float]]:
        table: list[list[float]] = spectrum.amplitudes.tolist()
        return table

    body = {
        "between": change.between,
        "optimizer": change.optimizer,
        "learning_rate": change.rate,
        "window": change.start.window,
        "frequencies": change.start.frequencies.tolist(),
        "start": rows(change.start),
        "trained": {name: rows(spectrum) for name, spectrum in change.trained.items()},
        "losses": dict(change.losses),
    }
    document: dict[str, Any] = finite(head(target) | body)
    return document


def head(target: str) -> dict[str, Any]:
    """What every document begins with.

    Returns:
        Keys schema, theta0, target.
    """
    return {"schema": SCHEMA, "theta0": __version__, "target": target}


def _body(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "healthy": diagnosis.healthy,
        "records": [_record(record) for record in diagnosis.records],
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "learning_rate": None if diagnosis.learning_rate is None else asdict(diagnosis.learning_rate),
        "not_measured": list(diagnosis.not_measured),
        "cost_in_gradients": diagnosis.cost,
    }


def _record(record: Record) -> dict[str, Any]:
    return {"layer": record.layer, "quantity": record.quantity, "value": record.value, "unit": record.unit}


def finite(value: Any) -> Any:
    """The value with numbers that are not finite as text: JSON has no NaN or infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
