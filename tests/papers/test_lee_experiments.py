"""lee2023mmd's experiments: stacked fine-tuning against one by one, tasks, and every item at smoke scale on digits."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from theta0.papers.datasets import load, standardize
from theta0.papers.lee2023mmd import ITEMS
from theta0.papers.lee2023mmd.degeneracies import shares
from theta0.papers.lee2023mmd.fine_tuning import fine_tuned_accuracies
from theta0.papers.lee2023mmd.neighbourhoods import neighbour_detachment
from theta0.papers.lee2023mmd.setting import paired_interval
from theta0.papers.lee2023mmd.starts import made_start, make_missing, start, start_file
from theta0.papers.lee2023mmd.tasks import binary_groups, binary_tasks, whole_tasks
from theta0.papers.models import draw_weights_, fully_connected, small_cnn

PLAIN = ("xavier", False, "none")


@pytest.fixture(scope="module")
def digits():
    return standardize(load("digits"), over="all")


def train_alone(model, task, test_x, epochs, seed):
    """The protocol written out for one task: a shuffle an epoch, batches of 50, the epoch of least validation loss."""
    optimizer, best, accuracy = torch.optim.Adam(model.parameters(), lr=1e-3), math.inf, math.nan
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        model.train()
        for rows in torch.randperm(len(task.train_x), generator=shuffle).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(task.train_x[rows]), task.train_y[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            loss = F.cross_entropy(model(task.validation_x), task.validation_y).item()
            if loss < best:
                best, accuracy = loss, 100 * (model(test_x).argmax(1) == task.test_y).double().mean().item()
    return accuracy


@pytest.mark.parametrize("kind", ["plain", "batch norm", "cnn"])
def test_stacked_fine_tuning_is_fine_tuning_one_by_one(digits, kind):
    def make():
        generator = torch.Generator().manual_seed(1)
        model = small_cnn(8) if kind == "cnn" else fully_connected(64, (30, 20), batch_norm=kind == "batch norm")
        return draw_weights_(model, "he", generator=generator)

    tasks = (whole_tasks if kind == "cnn" else binary_tasks)(digits, 12, 3, 4)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    together = fine_tuned_accuracies(model, tasks, digits.test_x, epochs=4, seed=5)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    alone = [train_alone(make(), task, digits.test_x, 4, 1009 * 5 + i) for i, task in enumerate(tasks)]
    np.testing.assert_allclose(together, alone, atol=100 / len(digits.test_x) + 1e-9)


def test_tasks(digits):
    groups = binary_groups(10, 40, 3)
    assert len({tuple(row.tolist()) for row in groups}) == 40
    assert all(0 < int(row.sum()) < 10 for row in groups)
    small, large = binary_tasks(digits, 5, 2, 0), binary_tasks(digits, 20, 2, 0)
    for a, b in zip(small, large, strict=True):
        assert (len(a.train_x), len(a.validation_x), len(b.train_x)) == (50, 10, 200)
        assert torch.equal(a.train_x, b.train_x[:50])
        assert torch.equal(a.test_y, b.test_y)
        rows = {tuple(x.flatten().tolist()) for x in a.train_x}
        assert not any(tuple(x.flatten().tolist()) in rows for x in a.validation_x)
    with pytest.raises(ValueError, match="too few"):
        binary_tasks(digits, 200, 1, 0)
    with pytest.raises(ValueError, match="tasks of 2 classes"):
        binary_groups(2, 3, 0)


def test_every_binary_task_can_be_drawn():
    assert len({tuple(row.tolist()) for row in binary_groups(4, 14, 0)}) == 14


def test_models(unchecked):
    model = draw_weights_(fully_connected(batch_norm=True), "xavier", generator=torch.Generator().manual_seed(0))
    widths = [(m.in_features, m.out_features) for m in model if isinstance(m, nn.Linear)]
    assert widths == [(784, 392), (392, 392), (392, 392), (392, 2)]
    assert sum(isinstance(m, nn.BatchNorm1d) for m in model) == 3
    assert float(model[1].weight.detach().double().var()) == pytest.approx(2 / (784 + 392), rel=0.02)
    assert not model[1].bias.any()
    assert float(draw_weights_(model, "he")[1].weight.detach().double().var()) == pytest.approx(2 / 784, rel=0.02)
    with pytest.raises(ValueError, match="'xavier' or 'he'"):
        draw_weights_(model, "lecun")
    with pytest.raises(ValueError, match="widths"):
        fully_connected(0)
    with pytest.raises(ValueError, match="4 pixels"):
        small_cnn(3)


def test_shares_are_per_mini_batch():
    model = fully_connected(4, (3,), 2)
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([1.0, -1.0, -1.0]))
        model[1].weight[2, 0] = 10.0  # the third unit lives where the first input is 1
        model[3].weight.zero_()
        model[3].bias.copy_(torch.tensor([50.0, 0.0]))
    batches = (torch.zeros(4, 4), torch.eye(4))
    found = shares(model, batches, perturbations=8, scale=1e-3)
    assert found["dead_1"] == pytest.approx([200 / 3, 100 / 3])
    assert found["degenerate"] == [100, 100]
    assert found["constant"] == [100, 100]
    assert "dead_2" not in found


def test_the_detachment_of_a_neighbour_leaves_the_model():
    model = fully_connected(6, (7,), 2)
    before = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    values = {neighbour_detachment(model, x, 1.0, seed) for seed in range(3)}
    assert len(values) == 3
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_paired_interval_is_student_s():
    mean, half = paired_interval([1.0, 2.0, 3.0])
    assert (mean, half) == pytest.approx((2.0, 4.302652730 / math.sqrt(3)))


@pytest.mark.slow
def test_a_start_is_made_once_and_found_again(digits, tmp_path):
    found = start(digits, "he", "mmd", 1, steps=3, perturbations=4)
    first = made_start(digits, tmp_path, found)
    assert start_file(tmp_path, found).is_file()
    again = made_start(digits, tmp_path, found)
    plain = made_start(digits, tmp_path, start(digits, "he", "none", 1, steps=0))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first[1].weight, plain[1].weight)
    assert not list(tmp_path.glob("*.checkpoint"))  # of no use once the start is there


def test_steps_are_told_where_one_start_is_made_after_another(digits, tmp_path):
    found = [start(digits, "he", "random labels", run, steps=150) for run in (0, 1)]
    told: list[tuple[int, int]] = []
    make_missing(digits, tmp_path, [*found, found[0]], progress=lambda done, of: told.append((done, of)))
    assert told == [(100, 300), (150, 300), (250, 300), (300, 300)]
    make_missing(digits, tmp_path, found, progress=lambda done, of: told.append((done, of)))
    assert len(told) == 4


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4", "table5"])
def test_tables_have_the_sources_values_beside_ours(name, digits, tmp_path):
    scale = "smoke,steps=1,grid_steps=1,perturbations=2,tasks=2,mini_batches=1,degenerates=(0.4,),scales=(0.5,)"
    line = ITEMS[name](digits, scale=f"{scale},rows={(('xavier', False, 'mmd'), PLAIN)}", out_dir=tmp_path)
    assert "source" in line
    assert "he:" not in line
    text = (tmp_path / f"{name}.md").read_text()
    expected = {"table1": "82.42 ± 0.72", "table2": "4.76 ± 0.88", "table3": "80.83 ± 1.03", "table4": "5.12 ± 1.20"}
    assert expected.get(name, "5.48 ± 1.56") in text
    assert "source" in text.splitlines()[0]
    assert json.loads((tmp_path / f"{name}.json").read_text())


def test_a_row_stands_beside_the_one_without_pre_training(digits, tmp_path):
    with pytest.raises(ValueError, match="rows: expected the row without pre-training beside each"):
        ITEMS["table1"](digits, scale="smoke,rows=(('he',False,'mmd'),)", out_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["table3", "fig2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("table5", "fig1", "fig3"))]
)
def test_items_are_written_with_their_numbers(name, tmp_path):
    line = ITEMS[name](scale="smoke", out_dir=tmp_path)
    assert line.startswith(f"{name}, digits, standardized")
    assert "source" in line
    assert "\n" not in line
    assert (tmp_path / f"{name}.{'md' if name.startswith('table') else 'png'}").stat().st_size > 100
    json.loads((tmp_path / f"{name}.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_accuracies_resume_and_their_differences_are_paired(tmp_path):
    calls = []
    first = ITEMS["table1"](scale="smoke", out_dir=tmp_path, progress=lambda *a: calls.append(a))
    numbers = json.loads((tmp_path / "table1.json").read_text())["rows"]
    assert len(numbers) == 10
    by_row = {(row["draw"], row["batch_norm"], row["method"]): row for row in numbers}
    ours, plain = by_row["he", False, "mmd"], by_row["he", False, "none"]
    assert ours["gain"] == pytest.approx(np.mean(ours["accuracies"]) - np.mean(plain["accuracies"]))
    assert plain["gain"] == plain["gain_half_interval"] == 0
    calls.clear()
    assert ITEMS["table1"](scale="smoke", out_dir=tmp_path, progress=lambda *a: calls.append(a)) == first
    assert calls == [(20, 20)]
    assert ITEMS["table2"](scale="smoke", out_dir=tmp_path).startswith("table2, digits, standardized, 6 steps: N = 5")


def test_items():
    assert list(ITEMS) == ["table1", "table2", "table3", "table4", "table5", "fig1", "fig2", "fig3", "cnn"]
    with pytest.raises(ValueError, match="choose one of"):
        ITEMS["fig1"](scale="huge")
