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
    assert len(text.splitlines()) <= 48
    assert "\x1b" not in text
    assert text == snapshot


@pytest.mark.parametrize("name", TREATMENTS)
def test_treatment_is_one_screen(name, snapshot):
    text = printed(treatment_report(TREATMENTS[name], target=cases.TARGET))
    assert len(text.splitlines()) <= 48
    assert "\x1b" not in text
    assert text == snapshot


def test_causes_are_told_with_their_remedy_and_consequences_in_a_line_below():
    lines = printed(diagnosis_report(cases.deep_sigmoid(), target=cases.TARGET)).splitlines()
    text = " ".join(" ".join(lines).split())
    shift, vanishing, constant, note = cases.deep_sigmoid().findings
    for cause in (shift, note):
        assert cause.message in text
        assert cause.remedy in text
    below = [line for line in lines if "follows from it" in line]
    assert below == [
        "   follows from it: finding 2, error: vanishing-gradients at hidden.18 (1.9e-7)",
        "   follows from it: finding 3, error: constant-output (3.1e-9)",
    ]
    assert lines.index(below[0]) == next(i for i, line in enumerate(lines) if shift.remedy in line) + 1
    assert text.count(vanishing.remedy) == 1  # the cause's
    assert constant.message not in text


def test_where_there_is_no_room_causes_keep_their_consequences_and_the_rest_is_counted():
    loud = cases.finding("exploding-activations", "hidden.0", 1e4, 1e3)
    follows = tuple(cases.finding("dead-units", f"hidden.{i}", 0.9, 0.5, cause=loud.code) for i in range(3))
    others = tuple(cases.finding("saturated-units", "x" * 90 + str(i), 0.9, 0.5, "warning") for i in range(30))
    whole = cases.Diagnosis(cases.deep_sigmoid(60).records, (loud, *others, *follows), 3.0)
    lines = printed(diagnosis_report(whole, target=cases.TARGET)).splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 80
    assert [line.split()[4] for line in lines if "follows from it" in line] == ["32,", "33,", "34,"]
    counted = next(int(line.split()[1]) for line in lines if "further finding" in line)
    assert counted + sum("saturated-units at" in line for line in lines) == 30


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
