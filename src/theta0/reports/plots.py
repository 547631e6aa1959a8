"""Results as matplotlib figures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from theta0.comparison.results import Comparison
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.results import Diagnosis
from theta0.experiments.probe import ExperimentRun
from theta0.explanation.results import Explanation
from theta0.reports.canvas import figure_of
from theta0.reports.explanation import AS_GIVEN
from theta0.reports.figures import (
    STYLES,
    Panel,
    Starts,
    box_panels,
    loss_panel,
    rate_panel,
    share_panel,
    spectrum_panel,
)
from theta0.reports.wording import printable
from theta0.spectra import SpectrumChange
from theta0.treatment.results import Run, Treatment


def figure(result: Any) -> Figure:
    """The charts of a result as one figure; without any where nothing was measured or run."""
    return figure_of([(panel.title, panel.draw) for panel in _PANELS[type(result)](result)])


def write_spectrum_figure(path: Path, change: SpectrumChange) -> None:
    """Draw amplitudes over frequencies, one curve for the start and one for each training.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> import pathlib, tempfile
        >>> from theta0.spectra import spectrum_change
        >>> change = spectrum_change(model, batches, "cross_entropy", between=(0, 5), steps=2, points=16)
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "spectrum.svg"
        >>> write_spectrum_figure(path, change)
        >>> path.is_file()
        True
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure(change).savefig(path, dpi=150)


def layer_panels(starts: Starts) -> list[Panel]:
    """What was measured layer by layer, at one start or at two on the same scales."""
    shares = [share_panel(starts, quantity) for quantity in ("shift_share", "sample_share")]
    boxes = [*box_panels(starts, "preactivation"), *box_panels(starts, "gradient")]
    return [*boxes, *(panel for panel in shares if panel)]


def treatment_runs(treatment: Treatment) -> list[tuple[str, Run | None]]:
    """The short runs of both starts, with the words for each."""
    remedy = printable(treatment.remedy)
    treated = remedy if treatment.kept or not remedy else f"{remedy} (not kept)"
    return [("as given", treatment.untreated), (treated, treatment.treated)]


def run_panels(runs: Sequence[tuple[str, Run | None]], *, ending: str = "held-out") -> list[Panel]:
    """The losses of short runs in one chart; none where there was no run."""
    panel = loss_panel(runs, ending=ending)
    return [panel] if panel else []


def comparison_runs(found: Comparison) -> list[tuple[str, Run | None]]:
    """The first run of the default start and of the best ones, the best last, as many as can be told apart."""
    shown = found.standings[: len(STYLES)]
    plain = [standing for standing in found.standings if standing.start == "default"]
    others = [standing for standing in reversed(shown) if standing not in plain]
    return [(standing.start, standing.runs[0]) for standing in [*plain, *others[-(len(STYLES) - len(plain)) :]]]


def explanation_panels(found: Explanation) -> list[Panel]:
    """The runs of the first seed with and without the proven change, or the one as given."""
    if found.proof is not None:
        pairs = [("as given", found.proof.given[0]), (printable(found.proof.change), found.proof.changed[0])]
    else:
        pairs = [("as given", run) for run in found.runs if run.change in AS_GIVEN][:1]
    return run_panels([(label, _as_run(run)) for label, run in pairs if run.losses], ending="last losses")


def _as_run(run: ExperimentRun) -> Run:
    return Run(run.optimizer, run.rate, run.losses, run.final, run.losses[0], float(len(run.losses)))


def rate_panels(rate: LearningRate) -> list[Panel]:
    """The runs that chose a rate in one chart; none where there was no run."""
    panel = rate_panel(rate)
    return [panel] if panel else []


_PANELS: dict[type, Callable[[Any], Sequence[Panel]]] = {
    Diagnosis: lambda found: layer_panels([("as given", found)]),
    Treatment: lambda found: run_panels(treatment_runs(found)),
    Comparison: lambda found: run_panels(comparison_runs(found)),
    Explanation: explanation_panels,
    LearningRate: rate_panels,
    SpectrumChange: lambda found: [spectrum_panel(found)],
}
