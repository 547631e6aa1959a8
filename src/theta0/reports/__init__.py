"""Faces of a result: a screen of text, one HTML page with its charts, plain data; functions of a result."""

from theta0.reports.comparison import comparison_document, comparison_report
from theta0.reports.document import diagnosis_document, rate_document, spectrum_document, treatment_document
from theta0.reports.explanation import explanation_document, explanation_report
from theta0.reports.page import write_page
from theta0.reports.rate import rate_report
from theta0.reports.spectrum import spectrum_report, write_spectrum_figure
from theta0.reports.terminal import diagnosis_report, treatment_report

__all__ = [
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
