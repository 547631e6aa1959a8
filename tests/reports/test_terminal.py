import io

import pytest
import report_cases as cases
from rich.console import Console

from theta0.reports import diagnosis_report, treatment_report

DIAGNOSES = {
    "deep_sigmoid_20": cases.deep_sigmoid(20),
    "deep_sigmoid_50": cases.deep_sigmoid(50),
    "deep_sigmoid_100": cases.deep_sigmoid(100),
    "healthy_50": cases.healthy(50),
    "empty": cases.empty(),
    "non_finite": cases.non_finite(),
    "hostile": cases.hostile(),
    "many_findings": cases.many_findings(),
}
TREATMENTS = {
    "kept": cases.kept(),
    "not_kept": cases.not_kept(),
    "untried": cases.untried(),
    "laborious": cases.laborious(),
}


def printed(renderable, width=80, **options):
    console = Console(width=width, file=io.StringIO(), **options)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize("name", DIAGNOSES)
def test_diagnosis_is_one_screen(name, snapshot):
    text = printed(diagnosis_report(DIAGNOSES[name], target=cases.TARGET))
    assert len(text.splitlines()) <= 50
    assert "\x1b" not in text
    assert text == snapshot


@pytest.mark.parametrize("name", TREATMENTS)
def test_treatment_is_one_screen(name, snapshot):
    text = printed(treatment_report(TREATMENTS[name], target=cases.TARGET))
    assert len(text.splitlines()) <= 50
    assert "\x1b" not in text
    assert text == snapshot


def test_every_finding_is_told_with_its_remedy():
    text = " ".join(printed(diagnosis_report(cases.deep_sigmoid(), target=cases.TARGET)).split())
    for finding in cases.deep_sigmoid().findings:
        assert finding.code in text
        assert finding.message in text
        assert finding.remedy in text


def test_names_are_text_and_not_markup():
    text = printed(diagnosis_report(cases.hostile(), target="[red]x[/red].py"), force_terminal=True, color_system=None)
    for literal in ("[red]x[/red].py", "[bold]x[/bold]", "[red]begins[/red]", "<script>alert(1)</script>"):
        assert literal in text
    assert "\x1b[31mred" not in text


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_line_is_wider_than_the_terminal(width):
    for report in (
        diagnosis_report(cases.hostile(), target="x" * 100),
        treatment_report(cases.not_kept(), target="x" * 100),
    ):
        assert max(map(len, printed(report, width).splitlines())) <= width
