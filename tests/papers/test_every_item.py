"""Every table and figure of the sources at a size that says nothing but that it is written, with its numbers."""

import importlib
import json
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from theta0.papers.furusho2020thesis import penalized_digits, penalized_sines
from theta0.papers.furusho2020thesis import setting as furusho
from theta0.papers.kutsuna2019lcw import absorbed_means, boxes, convolutional, deep_mlp
from theta0.papers.lee2023mmd import convolutional as lee_convolutional
from theta0.papers.lee2023mmd import setting as lee
from theta0.papers.yang2022nio import setting as yang

# One for each way in which tables and figures are made.
ITEMS = {
    "furusho2020thesis": [
        "fig8",
        "fig9",
        "fig10",
        "fig11",
        "fig12",
        "fig13",
        "fig15",
        "fig16",
        "fig17",
        "fig18",
        "fig19",
    ],
    "kutsuna2019lcw": ["fig2", "fig3", "fig4", "biases", "relu", "fig6", "table1"],
    "lee2023mmd": ["table1", "table2", "table3", "table5", "fig1", "fig3", "cnn"],
    "yang2022nio": ["starts"],
}
CASES = [(paper, name) for paper, names in ITEMS.items() for name in names]


@pytest.fixture(scope="module", autouse=True)
def least_sizes():
    """The smoke scale, where that takes seconds, reduced to what runs at all; no pictures."""
    with pytest.MonkeyPatch.context() as patch:

        def reduced(module, name="SCALES", **sizes):
            scales = getattr(module, name)
            patch.setitem(scales, "smoke", replace(scales["smoke"], **sizes))

        reduced(furusho, samples=20, width=6, widths=(4, 6), rates=2, runs=1, speed_runs=1, starts=2, steps=2)
        reduced(penalized_sines, "SIZES", steps=100, widths=(1, 4, 1))
        reduced(penalized_digits, "SIZES", epochs=3, line_steps=1)
        reduced(lee, steps=1, grid_steps=1, perturbations=2, tasks=2, runs=2, mini_batches=1, cnn_steps=1, points=8)
        reduced(yang, search_steps=1, search_batches=2, train_steps=1, train_samples=64, test_samples=16, batch=8)
        for module in (deep_mlp, absorbed_means, convolutional, boxes):
            plan = module.SCALES["smoke"].plan
            reduced(module, plan=replace(plan, train=64, test=32, epochs=1, points=1, batch=32))
        reduced(deep_mlp, width=8, seeds=1)
        reduced(convolutional, seeds=1)
        patch.setattr(lee_convolutional, "EPOCHS", (1, 2))
        rows = tuple(row for row in lee.SCALES["smoke"].rows if not row[1] and row[2] != "random labels")
        reduced(lee, rows=rows)
        patch.setattr(
            Figure, "savefig", lambda figure, path, dpi: None
        )  # most of the time; slow tests look at pictures
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all items of a source, so that experiments that figures share run once."""
    return tmp_path_factory.mktemp("items")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("paper", "name"), CASES, ids=lambda part: part)
def test_is_written_with_its_numbers(paper, name, folder):
    items = importlib.import_module(f"theta0.papers.{paper}").ITEMS
    line = items[name](scale="smoke", out_dir=folder / paper)
    assert name in line or paper == "yang2022nio"
    json.loads((folder / paper / f"{name}.json").read_text(), parse_constant=pytest.fail)
