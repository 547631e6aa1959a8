"""Faces of a result: a screen of text, one HTML page with its charts, plain data; functions of a result."""

import importlib
from typing import TYPE_CHECKING, Any

from theta0.reports.annotations import annotations
from theta0.reports.comparison import comparison_document, comparison_report
from theta0.reports.document import diagnosis_document, rate_document, spectrum_document, treatment_document
from theta0.reports.explanation import explanation_document, explanation_report
from theta0.reports.rate import rate_report
from theta0.reports.spectrum import spectrum_report
from theta0.reports.terminal import diagnosis_report, treatment_report

if TYPE_CHECKING:
    from theta0.reports.page import write_page
    from theta0.reports.plots import write_spectrum_figure

# What draws loads matplotlib, on first use: a screen of text does not wait for it.
_DRAWN = {"write_page": "page", "write_spectrum_figure": "plots"}

__all__ = [
    "annotations",
    "comparison_document",
    "comparison_report",
    "diagnosis_document",
    "diagnosis_report",
    "explanation_document",
    "explanation_report",
    "rate_document",
    "rate_report",
    "spectrum_document",
    "spectrum_report",
    "treatment_document",
    "treatment_report",
    "write_page",
    "write_spectrum_figure",
]


def __getattr__(name: str) -> Any:
    """Load what draws.

    Raises:
        AttributeError: if there is none of that name.
    """
    if name in _DRAWN:
        return getattr(importlib.import_module(f"theta0.reports.{_DRAWN[name]}"), name)
    raise AttributeError(f"module 'theta0.reports' has no attribute {name!r}")
