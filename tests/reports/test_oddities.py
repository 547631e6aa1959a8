"""What reports say of results that are incomplete, unproven, or out of the ordinary."""

import dataclasses
import math

import pytest
import report_cases as cases
import torch
from torch import nn

from theta0._records import Record
from theta0.curvature import top_eigenvalue
from theta0.curvature.learning_rate import RateRun
from theta0.diagnosis.results import Diagnosis
from theta0.reports import write_page
from theta0.reports.failure import failure_text
from theta0.reports.figures import box_panels, rate_panel, share_panel
from theta0.reports.summary import main_numbers
from theta0.reports.wording import treatment_verdict


def test_an_eigenvalue_says_how_sure_it_is():
    """Of a linear model under the squared error the matrix is that of the second moments."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = nn.Linear(4, 1, bias=False)
    found = top_eigenvalue(model, [(x, x[:, :1])], "mse", generator=0)
    expected = float(torch.linalg.eigvalsh(2 * x.double().T @ x.double() / 64)[-1])
    assert found.value == pytest.approx(expected, rel=2e-2)
    assert "of the ggn, error at most" in repr(found)
    assert "not converged" in repr(dataclasses.replace(found, converged=False))


def test_an_explanation_whose_budget_ended_says_how_to_go_on():
    text = " ".join(str(dataclasses.replace(cases.explained(), complete=False)).split())
    assert "The budget ended before everything was tried; a larger budget goes on." in text
    assert "The budget ended" not in str(cases.explained())


def lined():
    line = "train.py:42: x = x.detach()"
    return cases.finding("gradient-cut", "net.0", 0.0, 0.0, source_line=line, message="It ends here. " * 60)


def test_a_failure_and_a_report_name_the_line_where_it_arises():
    diagnosis = Diagnosis(cases.healthy(2).records, (lined(),), 1.0)
    text = failure_text(diagnosis, diagnosis.findings)
    assert lined().source_line in text
    assert len(text.splitlines()) <= 12
    assert lined().source_line in str(diagnosis)
    assert lined().source_line in str(lined())


def test_a_treatment_without_runs_is_kept_without_a_loss():
    found = dataclasses.replace(cases.kept(), treated=None, untreated=None)
    assert treatment_verdict(found) == "lcw was kept."


def test_the_largest_share_is_no_number_where_one_layer_has_none():
    broken = Diagnosis((*cases.healthy(2).records, *cases.layer_records("odd", 0.0, 1.0, math.nan, 1e-4)), (), 1.0)
    rows = {label: values for label, *values in main_numbers(dataclasses.replace(cases.kept(2), after=broken))}
    assert rows["largest activation-shift share"][1] == "nan"
    assert rows["largest saturated share"][1] != "nan"


@pytest.mark.slow
def test_a_page_of_a_rate_shows_every_run(tmp_path):
    page = write_page(tmp_path / "rate.html", cases.rated(), target="train.py").read_text()
    for run in cases.rated().runs:
        assert run.outcome in page
    assert "A higher rate may train better if raised." in page


@pytest.mark.slow
def test_a_rate_without_runs_has_no_chart_and_losses_far_apart_are_on_a_logarithmic_axis():
    assert rate_panel(dataclasses.replace(cases.rated(), runs=())) is None
    wide = (RateRun(0.01, (2.3, 1e-3), "trains"), RateRun(1.0, (2.3, 90.0), "rises"))
    panel = rate_panel(dataclasses.replace(cases.rated(), runs=wide))
    assert "0.01: trains" in panel.description
    assert panel.svg.startswith("<svg") or "<svg" in panel.svg


def test_charts_of_one_layer_and_of_no_finite_value_say_so():
    one = Diagnosis(tuple(cases.layer_records("only", 0.0, 1.0, 0.1, 1e-4)), (), 1.0)
    (words,) = {panel.description for panel in box_panels([("as given", one)], "preactivation")}
    assert words == "The middle 98 % of values span 4.66 at only."
    nothing = Diagnosis((Record("a", "shift_share", math.nan), Record("b", "shift_share", math.nan)), (), 1.0)
    panel = share_panel([("as given", nothing), ("treated", one)], "shift_share")
    assert "as given: no finite value" in panel.description
