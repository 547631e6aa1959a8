"""Results as pandas data frames."""

from collections.abc import Callable
from typing import Any

from theta0.comparison.results import Comparison
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.results import Diagnosis
from theta0.explanation.results import Explanation
from theta0.reports.explanation import changed
from theta0.reports.rate import last_loss
from theta0.reports.spectrum import mean_amplitudes
from theta0.reports.wording import layers_of
from theta0.spectra import SpectrumChange
from theta0.treatment.results import Run, Treatment

Rows = list[dict[str, Any]]


def frame(result: Any) -> Any:
    """A result's rows as a data frame, indexed by their first column.

    Raises:
        ImportError: if pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_frame(): expected pandas, found none; install it with `pip install pandas`") from error
    rows = _ROWS[type(result)](result)
    index = next(iter(rows[0])) if rows else None
    return pd.DataFrame(rows) if index is None else pd.DataFrame(rows).set_index(index)


def _layers(found: Diagnosis) -> Rows:
    codes: dict[str, list[str]] = {}
    for finding in found.findings:
        for layer in dict.fromkeys((finding.layer, *finding.layers)):
            codes.setdefault(layer, []).append(finding.code)
    return [
        {
            "layer": layer,
            "type": found.layer_types.get(layer, ""),
            **numbers,
            "findings": ", ".join(codes.get(layer, [])),
        }
        for layer, numbers in layers_of(found).items()
    ]


def _attempts(found: Treatment) -> Rows:
    given = [] if found.untreated is None else [{"start": "as given", **_run(found.untreated), "kept": not found.kept}]
    tried = [
        {
            "start": attempt.remedy,
            **_run(attempt.run),
            "kept": found.kept and attempt.remedy == found.remedy,
            "reason": attempt.reason,
        }
        for attempt in found.attempts
    ]
    return [*given, *tried]


def _run(run: Run | None) -> dict[str, Any]:
    if run is None:
        return {}
    return {
        "optimizer": run.optimizer,
        "rate": run.rate,
        "steps": len(run.losses),
        "held_out_start": run.held_out_start,
        "held_out": run.held_out,
    }


def _experiments(found: Explanation) -> Rows:
    return [
        {
            "change": changed(run),
            "optimizer": run.optimizer,
            "rate": run.rate,
            "steps": len(run.losses),
            "loss": run.final,
            "outcome": run.outcome,
        }
        for run in found.runs
    ]


def _rates(found: LearningRate) -> Rows:
    return [
        {
            "rate": run.rate,
            "steps": len(run.losses),
            "first_loss": run.losses[0],
            "last_loss": last_loss(run),
            "outcome": run.outcome,
            "suggested": run.rate == found.value,
        }
        for run in found.runs
    ]


def _standings(found: Comparison) -> Rows:
    candidates = {candidate.start: candidate for candidate in found.candidates}
    return [
        {
            "start": standing.start,
            "mean": standing.mean,
            "spread": standing.spread,
            "seeds": len(standing.runs),
            "rate": standing.rate,
            "suggested": candidates[standing.start].suggested,
            "gradients": candidates[standing.start].gradients,
        }
        for standing in found.standings
    ]


def _amplitudes(found: SpectrumChange) -> Rows:
    columns = {name: mean_amplitudes(spectrum) for name, spectrum in {"start": found.start, **found.trained}.items()}
    frequencies = range(len(columns["start"]))
    return [{"frequency": k, **{name: values[k] for name, values in columns.items()}} for k in frequencies]


_ROWS: dict[type, Callable[[Any], Rows]] = {
    Diagnosis: _layers,
    Treatment: _attempts,
    Explanation: _experiments,
    LearningRate: _rates,
    Comparison: _standings,
    SpectrumChange: _amplitudes,
}
