"""Figures 1-4 of kutsuna2019lcw and section 2's ablation at smoke scale on digits, and what their numbers must show."""

import json

import pytest
import torch

from theta0.papers.kutsuna2019lcw import ITEMS, absorbed_means, boxes
from theta0.papers.models import deep_perceptron
from theta0.theory import gradient_gain

FIGURES = ("fig1", "fig2", "fig3", "fig4")


def drawn(name, folder) -> tuple[str, dict]:
    line = ITEMS[name](scale="smoke", out_dir=folder)
    assert "\n" not in line
    assert (folder / f"{name}.png").stat().st_size > 10_000
    return line, json.loads((folder / f"{name}.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_stripes_are_the_shift_and_zero_sums_remove_them(tmp_path):
    line, numbers = drawn("fig1", tmp_path)
    assert line.startswith("fig1: ")
    assert numbers["shift_share"] == pytest.approx(numbers["shift_share_expected"], abs=0.1)
    assert numbers["shift_share_zero_sum"] < 0.05
    assert numbers["correlation_of_row_means_with_proposition_1"] > 0.98


@pytest.mark.slow
def test_activations_keep_their_spread_under_lcw_only(tmp_path):
    line, constrained = drawn("fig2", tmp_path)
    assert line.startswith("fig2, digits: ")
    start, trained = constrained["panels"].values()
    assert all(len(boxes) == 20 and len(boxes[0]) == 5 for boxes in start["quantiles"].values())
    assert all(sorted(row) == row for row in start["quantiles"]["5"])
    assert len(start["within_unit"]) == 10
    assert min(start["within_unit"]) > 0.1
    assert min(start["common_mean_share"]) > min(trained["common_mean_share"])
    _, plain = drawn("fig3", tmp_path)
    assert plain["within_unit"][8] < 1e-4 * plain["within_unit"][0]
    assert plain["between_units"][8] > 0.05


@pytest.mark.slow
def test_gradients_vanish_as_the_closed_form_says(tmp_path):
    line, numbers = drawn("fig4", tmp_path)
    assert line.startswith("fig4, digits: ")
    plain, constrained = numbers["panels"].values()
    for found in (plain, constrained):
        assert found["preactivation_variance"] == pytest.approx([1] * 20, rel=0.05)
    assert plain["gradient_variance"][0] < 1e-12 * plain["gradient_variance"][-1]
    assert 1 / 30 < constrained["gradient_variance"][0] / constrained["gradient_variance"][-1] < 30
    assert plain["gain"] == pytest.approx(gradient_gain(torch.sigmoid, zero_sum=False), rel=0.2)  # 32 units only
    assert constrained["gain"] == pytest.approx(gradient_gain(torch.sigmoid, zero_sum=True), rel=0.2)


def test_absorbed_means_are_zero_in_every_layer():
    model = deep_perceptron(9, 3, depth=4, width=7, generator=torch.Generator().manual_seed(0)).double()
    x = torch.randn(20, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
    absorbed_means.absorb_means_(model, x)
    for z in boxes.flow(model, x)[1]:
        torch.testing.assert_close(z.mean(0), torch.zeros(7).double(), atol=1e-12, rtol=0)


@pytest.mark.slow
def test_the_ablation_is_written_and_resumes(tmp_path):
    line, numbers = drawn("biases", tmp_path)
    assert line.startswith("biases, digits: test accuracy at 2/8 hidden layers: plain ")
    assert len(numbers["rows"]) == 8
    seen = []
    assert ITEMS["biases"](scale="smoke", out_dir=tmp_path, progress=lambda *a: seen.append(a)) == line
    assert seen == [(8, 8)]


@pytest.mark.parametrize("name", [*FIGURES, "biases"])
def test_unknown_scale(name):
    with pytest.raises(ValueError, match="choose one of"):
        ITEMS[name](scale="huge")
