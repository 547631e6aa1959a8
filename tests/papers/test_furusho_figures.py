"""The thesis's figures end to end at smoke scale on digits, and what their numbers must show."""

import json

import pytest

from theta0.papers.datasets import load
from theta0.papers.furusho2020thesis import ITEMS, setting
from theta0.papers.furusho2020thesis.rate_maps import FACTORS
from theta0.papers.sweeps import Store


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig15", "fig18", "fig19", "fig16"])
def test_each_kind_of_figure_is_written_with_its_numbers(name, tmp_path):
    line = ITEMS[name](scale="smoke", out_dir=tmp_path)
    assert line.startswith(f"{name}, digits, classes 0 and 1: ")
    assert "\n" not in line
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    json.loads((tmp_path / f"{name}.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_plain_and_normalised_runs_bear_the_measured_rate_and_a_store_resumes(tmp_path):
    store, calls = Store(tmp_path / "runs.jsonl"), []
    first = ITEMS["fig17"](
        load("digits"), scale="smoke", out_dir=tmp_path, store=store, progress=lambda *a: calls.append(a)
    )
    assert calls[0] == (0, 6)
    assert calls[-1] == (6, 6)
    numbers = json.loads((tmp_path / "fig17.json").read_text())
    edge, beyond = FACTORS.index(1.0), FACTORS.index(1.6)
    for configuration, result in zip(numbers["configurations"], numbers["results"], strict=True):
        if configuration["network"] == "stochastic_depth":
            continue  # its loss is that of another drawn network at every update
        for run, start in enumerate(result["first"]):
            assert result["last_at_factors"][edge][run] < start
            if configuration["network"] == "batch_norm":
                after = result["last_at_factors"][beyond][run]
                assert after is None or after > start
        assert all(result["thesis_rate"] < 2 / top for top in result["top_eigenvalues"])
    calls.clear()
    again = ITEMS["fig17"](
        load("digits"), scale="smoke", out_dir=tmp_path, store=store, progress=lambda *a: calls.append(a)
    )
    assert again == first
    assert calls == [(6, 6)]


def test_thinning_keeps_both_classes_of_sorted_files():
    data = setting.two_class_data("digits", None, "smoke", "mnist")
    assert len(data.train_x) == setting.SCALES["smoke"].samples
    assert 0.4 < data.train_y.double().mean() < 0.6


def test_unknown_scale():
    with pytest.raises(ValueError, match="choose one of"):
        ITEMS["fig15"](scale="huge")


def test_all_figures_are_listed():
    assert list(ITEMS) == [f"fig{n}" for n in range(8, 25) if n != 14]
