"""Faces of a result: a screen of text, one HTML page, and the charts in it. Functions of a result, not methods."""

from theta0.reports.page import write_page
from theta0.reports.terminal import diagnosis_report, treatment_report

__all__ = ["diagnosis_report", "treatment_report", "write_page"]
