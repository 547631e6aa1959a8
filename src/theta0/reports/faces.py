"""How each result looks: its `repr`, what `print` shows, its page, figure and table; `theta0._records` asks here."""

from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any

from rich.console import RenderableType

from theta0._training import Run
from theta0.comparison.results import Comparison
from theta0.curvature.learning_rate import LearningRate
from theta0.curvature.top_eigenvalue import TopEigenvalue
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.explanation.results import Explanation
from theta0.reports.advice import worded
from theta0.reports.comparison import comparison_report, comparison_verdict
from theta0.reports.explanation import explanation_report
from theta0.reports.rate import rate_report, rate_verdict
from theta0.reports.screen import text_of
from theta0.reports.spectrum import spectrum_report, spectrum_verdict
from theta0.reports.terminal import diagnosis_report, finding_report, treatment_report
from theta0.reports.wording import diagnosis_verdict, finding_verdict, number, printable, run_verdict, treatment_verdict
from theta0.spectra import SpectrumChange
from theta0.treatment.results import Treatment

LONGEST = 160  # characters of a verdict in one line
HEIGHT = 640  # pixels of a page in a notebook's cell; its reader may drag it larger
# What draws loads matplotlib, what tabulates pandas, on first use: a line or a screen of text does not wait for them.
_HOMES = {"write_page": "page", "figure": "plots", "frame": "frames"}


def _eigenvalue(found: TopEigenvalue) -> str:
    sure = f"error at most {found.error:.1e}" if found.converged else "not converged"
    return f"{number(found.value, 5)} of the {found.matrix}, {sure}, after {found.products} products"


_LINES: dict[type, Callable[[Any], str]] = {
    Diagnosis: diagnosis_verdict,
    Treatment: treatment_verdict,
    Explanation: lambda found: found.verdict,
    Comparison: comparison_verdict,
    LearningRate: rate_verdict,
    SpectrumChange: spectrum_verdict,
    Finding: finding_verdict,
    Run: run_verdict,
    TopEigenvalue: _eigenvalue,
}
_REPORTS: dict[type, Callable[[Any], RenderableType]] = {
    Diagnosis: lambda found: diagnosis_report(found, target=""),
    Treatment: lambda found: treatment_report(found, target=""),
    Explanation: lambda found: explanation_report(found, target=""),
    Comparison: lambda found: comparison_report(found, target=""),
    LearningRate: lambda found: rate_report(found, target=""),
    SpectrumChange: lambda found: spectrum_report(found, target=""),
    Finding: finding_report,
}


def line(result: Any) -> str:
    """A result in one line: its type and its verdict, the latter cut where it is long."""
    verdict = worded(printable(_LINES[type(result)](result)), "")
    return f"<{type(result).__name__}: {verdict if len(verdict) <= LONGEST else verdict[: LONGEST - 1] + '…'}>"


def text(result: Any) -> str:
    """A result as its terminal report, with advice as calls in Python."""
    report = _REPORTS.get(type(result))
    return line(result) if report is None else text_of(report(result))


def fragment(result: Any) -> str:
    """A result's page as an element for a notebook: in a frame, so that neither's styles reach the other."""
    page = import_module("theta0.reports.page").page_of(result, target="")
    style = f"width: 100%; height: {HEIGHT}px; border: 0; resize: vertical; overflow: auto"
    sandbox = "allow-same-origin allow-popups allow-popups-to-escape-sandbox"  # no scripts; links open beside
    title = f"theta0: {escape(type(result).__name__)}"
    return f'<iframe title="{title}" sandbox="{sandbox}" style="{style}" srcdoc="{escape(page)}"></iframe>'


def __getattr__(name: str) -> Any:
    """Load what draws or tabulates.

    Raises:
        AttributeError: if there is none of that name.
    """
    if name in _HOMES:
        return getattr(import_module(f"theta0.reports.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'theta0.reports.faces' has no attribute {name!r}")
