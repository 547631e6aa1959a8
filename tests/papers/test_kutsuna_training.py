"""How the experiments of kutsuna2019lcw train, and its deep and convolutional figures end to end at smoke scale."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from theta0.papers.datasets import Dataset, load
from theta0.papers.kutsuna2019lcw import convolutional
from theta0.papers.kutsuna2019lcw.convolutional import fig6, table1
from theta0.papers.kutsuna2019lcw.deep_mlp import SCALES, fig5, relu, run, start_measured
from theta0.papers.kutsuna2019lcw.training import Plan, augmented, prepared, train
from theta0.papers.kutsuna2019lcw.variants import VARIANTS, start_
from theta0.papers.models import deep_perceptron
from theta0.papers.sweeps import Store


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def blobs(n=240, side=6, name="blobs"):
    y = torch.arange(n) % 2
    x = torch.rand(n, 1, side, side, generator=seeded(0)) + y[:, None, None, None]
    return Dataset(x, y, x[:60], y[:60], name, "blobs")


@pytest.mark.parametrize("epochs", [100, 300, 500])
def test_rates_are_the_source_s(epochs):
    """0.1 · 0.95 per epoch of 100 (Fig. 5), per three of 300 and per five of 500 (Table 1), not below 0.001."""
    plan, every = Plan(None, None, epochs, epochs, 1e-4), epochs // 100
    for epoch in range(epochs):
        expected = 0.1
        for _ in range(epoch // every):
            expected = max(expected * 0.95, 0.001)
        assert math.isclose(plan.rate_at(epoch / epochs), expected, rel_tol=1e-9)


def test_the_first_update_is_that_of_sgd_by_hand():
    data = prepared(blobs(8), Plan(None, None, 1, 1, 0.01, batch=8))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()
    data = Dataset(data.train_x.double(), data.train_y, data.test_x.double(), data.test_y, "blobs", "blobs")
    weight = model[1].weight.detach().clone().numpy()
    bias, x = model[1].bias.detach().clone().numpy(), data.train_x.flatten(1).numpy()
    logits = x @ weight.T + bias
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected_loss = -np.log(p[np.arange(8), data.train_y.numpy()]).mean()
    p[np.arange(8), data.train_y.numpy()] -= 1
    result = train(model, data, Plan(None, None, 1, 1, 0.01, batch=8), seeded(0))
    np.testing.assert_allclose(model[1].weight.detach().numpy(), weight - 0.1 * (p.T @ x / 8 + 0.01 * weight))
    assert math.isclose(result["train_loss"][0], expected_loss)
    assert result["updates"] == 1


def test_training_learns_writes_the_points_and_repeats():
    plan, data = Plan(200, 50, 6, 3, 1e-4, batch=20), prepared(blobs(), Plan(200, 50, 6, 3, 1e-4))
    runs = []
    for _ in range(2):
        model = deep_perceptron(36, 2, depth=1, width=8, generator=seeded(0))
        runs.append(train(model, data, plan, seeded(1)))
    assert runs[0] == runs[1]
    assert runs[0]["step"] == [20, 40, 60]
    assert runs[0]["test_accuracy"][-1] > 0.95
    assert model.training


def test_a_diverging_run_ends_in_none():
    data = prepared(blobs(), Plan(200, 50, 1, 1, 1e-4))
    model = deep_perceptron(36, 2, depth=6, width=8, activation=nn.Identity, generator=seeded(0))
    result = train(model, data, Plan(200, 50, 4, 4, 1e-4, batch=20, rate=1e4), seeded(1))
    assert result["train_loss"][-1] is None
    assert len(result["train_loss"]) == len(result["step"]) == 4


def test_channels_are_standardised_by_the_training_samples():
    data = prepared(load("digits"), Plan(300, 40, 1, 1, 0.0))
    assert data.train_x.shape == (300, 1, 8, 8)
    assert len(data.test_x) == len(data.test_y) == 40
    torch.testing.assert_close(data.train_x.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train_x.std(), torch.tensor(1.0))


def test_augmentation_shifts_and_mirrors():
    x = torch.zeros(400, 1, 7, 7)
    x[:, 0, 3, 1] = 1.0
    moved = augmented(x, seeded(0), padding=2)
    assert moved.shape == x.shape
    _, _, rows, columns = moved.nonzero(as_tuple=True)
    assert sorted(set(rows.tolist())) == [1, 2, 3, 4, 5]
    assert sorted(set(columns.tolist())) == [0, 1, 2, 3, 4, 5, 6]  # 1 ± 2 with the edge cut off, and mirrored
    still = augmented(x, seeded(0), padding=0)
    mirrored = (still != x).flatten(1).any(1).double().mean()
    assert 0.42 < mirrored < 0.58
    assert torch.equal(still.flip(3)[still[:, 0, 3, 1] == 0], x[still[:, 0, 3, 1] == 0])


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_starts_as_it_says(name):
    variant = VARIANTS[name]
    x = torch.randn(256, 1, 6, 6, generator=seeded(1))
    model = deep_perceptron(36, 3, depth=4, width=32, before=variant.before, after=variant.after, generator=seeded(0))
    start_(model, variant, [x])
    seen = []
    model.hidden3.register_forward_hook(lambda _, __, output: seen.append(output.detach()))
    model(x)
    if variant.start == "unit-variance":
        assert 0.9 < seen[0].std() < 1.1
    if variant.start == "data-dependent":
        torch.testing.assert_close(seen[0].std(0, correction=0), torch.ones(32), atol=0.1, rtol=0)
        torch.testing.assert_close(seen[0].mean(0), torch.zeros(32), atol=0.05, rtol=0)
    if variant.weights in ("lcw", "cwn"):
        for layer in (model.hidden1, model.hidden4):
            weight = layer.weight.detach().double()
            assert (weight.sum(1).abs() / weight.abs().sum(1)).max() < 1e-6
        assert model.output.weight.sum(1).abs().min() > 1e-6  # the logits' weights stay plain
    if variant.weights == "spectral-norm":
        assert torch.linalg.matrix_norm(model.hidden3.weight, 2) < 1.2


def test_batch_normalization_does_not_see_spectral_normalization():
    """One factor per layer is divided out again, and its gradient is zero: with equal V the steps of V are equal."""
    data = prepared(blobs(), Plan(200, 50, 1, 1, 1e-4))
    data = Dataset(data.train_x.double(), data.train_y, data.test_x.double(), data.test_y, "blobs", "blobs")
    runs = []
    for name in ("BN", "BN+SN"):
        before = partial(nn.BatchNorm1d, eps=1e-12)
        model = deep_perceptron(36, 2, depth=4, width=8, before=before, generator=seeded(0)).double()
        start_(model, VARIANTS[name], [data.train_x])
        runs.append(train(model, data, Plan(200, 50, 2, 4, 1e-4, batch=20), seeded(1))["train_loss"])
    torch.testing.assert_close(torch.tensor(runs[0]), torch.tensor(runs[1]), rtol=1e-4, atol=0)


@pytest.mark.slow
def test_start_of_fifty_sigmoid_layers_as_the_source_describes_it():
    """Gradients survive under LCW, and are lost without it; the last hidden layer is no constant vector (§4.3)."""
    x = torch.randn(128, 1, 28, 28, generator=seeded(1))
    data = Dataset(x, torch.arange(128) % 10, x, torch.arange(128) % 10, "noise", "noise")
    found = {}
    for name in ("plain", "LCW"):
        model = start_(deep_perceptron(784, 10, generator=seeded(0)), VARIANTS[name], [x])
        found[name] = start_measured(model, data, 128)
    ratio = {name: start["gradient_variance"][0] / start["gradient_variance"][-1] for name, start in found.items()}
    assert 1 / 30 < ratio["LCW"] < 30
    assert ratio["plain"] < 1e-16
    assert found["LCW"]["shift_share"][-1] < 0.3
    assert found["plain"]["shift_share"][-1] > 0.95


@pytest.mark.slow
def test_fig5_is_written_with_its_starts_and_resumes(tmp_path):
    calls = []
    line = fig5(scale="smoke", out_dir=tmp_path, progress=lambda *a: calls.append(a))
    assert line.startswith("fig5, digits: ")
    assert "\n" not in line
    assert (tmp_path / "fig5.png").stat().st_size > 10_000
    numbers = json.loads((tmp_path / "fig5.json").read_text(), parse_constant=pytest.fail)
    trained = [row for row in numbers["rows"] if row["trained"]]
    assert {row["variant"] for row in trained} == set(VARIANTS)
    assert all(len(row["start"]["shift_share"]) == row["depth"] for row in numbers["rows"])
    assert len({row["seed"] for row in trained if row["variant"] == "BN+LCW"}) == 2
    calls.clear()
    assert fig5(scale="smoke", out_dir=tmp_path, progress=lambda *a: calls.append(a)) == line
    assert len(calls) == 1


@pytest.mark.slow
def test_relu_networks_too(tmp_path):
    assert relu(scale="smoke", out_dir=tmp_path, store=Store(tmp_path / "x.jsonl")).startswith("relu, digits: ")
    assert (tmp_path / "relu.png").is_file()


@pytest.mark.slow
def test_table_and_figure_of_the_convolutional_networks_share_their_runs(tmp_path):
    line = table1(scale="smoke", out_dir=tmp_path)
    assert line.startswith("table1, digits: ")
    calls = []
    assert fig6(scale="smoke", out_dir=tmp_path, progress=lambda *a: calls.append(a)).startswith("fig6, digits: ")
    assert len(calls) == 1  # nothing was left to compute
    numbers = json.loads((tmp_path / "table1.json").read_text(), parse_constant=pytest.fail)
    assert {(row["model"], row["weights"]) for row in numbers["rows"]} == {
        (model, weights) for model in ("VGG19", "ResNet18") for weights in ("plain", "LCW", "WN", "CWN", "SN")
    }
    for name in ("table1", "fig6"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    plan = SCALES["smoke"].plan.settings()
    shape = {"seed": 0, "depth": 2, "width": 8, "activation": "sigmoid", "plan": plan}
    run(load("digits"), {**shape, "variant": "SN", "trained": True})
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("item", [fig5, table1])
def test_unknown_scale(item):
    with pytest.raises(ValueError, match="choose one of"):
        item(scale="huge")


@pytest.mark.parametrize(("item", "names"), [(table1, ["cifar10", "cifar100"]), (fig6, ["cifar100"])])
def test_at_paper_scale_the_data_sets_are_the_sources(item, names, tmp_path, monkeypatch):
    asked = []

    def sweep(compute, runs, **options):
        asked.extend(runs)
        return done(runs)

    monkeypatch.setattr(convolutional, "sweep", sweep)
    monkeypatch.setattr(convolutional, "finish", lambda *_: None)
    item(scale="paper", out_dir=tmp_path)
    assert list(dict.fromkeys(run["data"] for run in asked)) == names
    assert {run["plan"]["epochs"] for run in asked if run["data"] == "cifar100"} == {500}


def done(runs):
    """A result for each run, as `training.train` shapes it."""
    curve = {key: [0.5, 0.5] for key in ("train_loss", "train_accuracy", "test_loss", "test_accuracy")}
    return [{"label": run["data"], "step": [1, 2], **curve} for run in runs]
