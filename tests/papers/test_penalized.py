"""Figures 8-13: a stack trains its members as if each were alone, and the figures end to end at smoke scale."""

import json

import pytest
import torch
from torch import Generator
from torch.nn import functional as F

from theta0.papers.furusho2020thesis import ITEMS, penalized, penalized_digits, penalized_sines
from theta0.papers.models import LineAutoencoder, he_perceptron, trained_autoencoder
from theta0.regularizers import REGULARIZERS
from theta0.spectra import fourier_amplitude


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_members_of_a_stack_train_as_if_alone(optimizer):
    kinds = [("none", 0.0), ("l2", 0.1), ("l2", 0.3), ("l1", 0.01), ("path", 0.02), ("path", 0.02)]
    models = [he_perceptron([3, 5, 4, 1], generator=Generator().manual_seed(i)).double() for i in range(len(kinds))]
    x = torch.randn(len(kinds), 12, 3, generator=Generator().manual_seed(9), dtype=torch.float64)
    y = torch.randn(len(kinds), 12, 1, generator=Generator().manual_seed(8), dtype=torch.float64)
    stack = penalized.stacked(models)

    def rows(step):
        return (torch.arange(6) + step).expand(len(kinds), -1) % 12

    options = {"penalties": kinds, "optimizer": lambda w: optimizer(w, 0.05), "steps": 7, "rows": rows}
    penalized.train(stack, x, y, F.mse_loss, **options)
    for member, (model, (kind, coefficient)) in enumerate(zip(models, kinds, strict=True)):
        stepper = optimizer(model.parameters(), 0.05)
        for step in range(7):
            chosen = rows(step)[0]
            loss = F.mse_loss(model(x[member, chosen]), y[member, chosen])
            if kind != "none":
                loss = loss + coefficient * REGULARIZERS[kind](model)
            stepper.zero_grad()
            loss.backward()
            stepper.step()
        for name, parameter in model.named_parameters():
            assert torch.allclose(stack.weights[name][member], parameter, atol=1e-10), (kind, name)
        norms = stack.norms()
        for name, norm in REGULARIZERS.items():
            assert norms[name][member] == pytest.approx(norm(model).item(), rel=1e-9)


def test_equal_penalties_lie_side_by_side():
    stack = penalized.stacked([he_perceptron([1, 2, 1]) for _ in range(3)])
    x = torch.ones(3, 4, 1)
    mixed = [("l2", 0.1), ("l1", 0.1), ("l2", 0.1)]
    with pytest.raises(ValueError, match="side by side"):
        penalized.train(stack, x, x, F.mse_loss, penalties=mixed, optimizer=lambda w: torch.optim.SGD(w, 0.1), steps=1)


def test_the_targets_have_the_thesis_amplitudes():
    for trial in range(3):
        spectrum = fourier_amplitude(lambda t, trial=trial: penalized_sines.targets(trial), penalized_sines.grid())
        expected = torch.zeros(101)
        expected[[3, 6, 9]], expected[[20, 23, 26]] = 1.0, 0.4
        assert torch.allclose(spectrum.amplitudes, expected, atol=1e-5)
    assert not torch.allclose(penalized_sines.targets(0), penalized_sines.targets(1))


def test_a_share_of_the_labels_is_redrawn():
    labels = torch.zeros(10_000)
    wrong = penalized_digits._noisy(labels, 0.65, 0).mean().item()
    assert wrong == pytest.approx(0.325, abs=0.02)


def test_every_epoch_sees_each_sample_at_most_once():
    rows = penalized_digits._batches(100, 2, 4)
    epoch = torch.cat([rows(step) for step in range(3)], 1)
    assert epoch.shape == (8, 96)
    assert all(len(row.unique()) == 96 for row in epoch)
    assert torch.equal(epoch[0], epoch[2])  # the first trial's, under the next penalty
    assert not torch.equal(epoch[0], epoch[1])


@pytest.mark.slow
def test_the_autoencoder_orders_images_on_its_line():
    t = torch.linspace(0, 1, 60).unsqueeze(1)
    images = torch.cat([t, 1 - t, t, 1 - t], 1)
    model = trained_autoencoder(images, steps=400, seed=0)
    assert isinstance(model, LineAutoencoder)
    along = model.images(torch.linspace(-2, 2, 9).unsqueeze(1))[:, 0]
    assert abs(along[-1] - along[0]) > 0.6
    steps = along.diff()
    assert (steps > 0).all() or (steps < 0).all()


def test_a_network_collapses_where_it_answers_one_class_to_the_end():
    ones = [[1.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.2, 0.6], [1.0, 1.0, 1.0, 1.0], [0.5, 0.0, 1.0, 0.4]]
    run = {"epochs": [0, 10, 20, 30], "runs": {"l2": {"ones": ones}}}
    assert penalized_digits.collapses(run, "l2") == [20, None, 0, None]


def test_a_norm_that_is_not_squared_drives_a_whole_network_to_zero_at_a_constant_speed():
    labels = torch.zeros(2, 8, 1)  # no signal in the data: only the penalty pulls on the weights
    stack = penalized.stacked([he_perceptron([3, 5, 5, 1], generator=Generator().manual_seed(i)) for i in range(2)])
    start, found = stack.norms()["l2"], []
    penalized.train(
        stack,
        torch.zeros(2, 8, 3),
        labels,
        lambda outputs, targets: 0 * (outputs - targets).square().mean(),
        penalties=[("l2", 0.1), ("l2", 0.2)],
        optimizer=lambda w: torch.optim.SGD(w, 0.1),
        steps=50,
        observe=lambda step: found.append(stack.norms()["l2"]),
    )
    for member, coefficient in enumerate((0.1, 0.2)):
        assert found[50][member] == pytest.approx(start[member] - 50 * 0.1 * coefficient * 3, rel=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all figures, so that each of the two experiments runs once."""
    return tmp_path_factory.mktemp("figures")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig8", "fig9", "fig10", "fig11", "fig12", "fig13"])
def test_each_figure_is_written_with_its_numbers(name, folder):
    line = ITEMS[name](None, None, scale="smoke", out_dir=folder)
    assert line.startswith(f"{name}, ")
    assert "\n" not in line
    assert (folder / f"{name}.png").stat().st_size > 10_000
    json.loads((folder / f"{name}.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_the_second_figure_finds_the_runs_of_the_first(folder):
    ITEMS["fig9"](None, None, scale="smoke", out_dir=folder)
    calls = []
    ITEMS["fig10"](None, None, scale="smoke", out_dir=folder, progress=lambda *a: calls.append(a))
    assert calls == [(5, 5)]
    with pytest.raises(ValueError, match="choose one of"):
        ITEMS["fig11"](None, None, scale="huge")
    with pytest.raises(ValueError, match="choose one of"):
        ITEMS["fig10"](None, None, scale="huge")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_penalties_keep_the_noise_out_at_full_scale(tmp_path):
    ITEMS["fig10"](None, None, out_dir=tmp_path, jobs=2)
    document = json.loads((tmp_path / "fig10.json").read_text())
    runs = dict(zip(penalized_sines.RUNS, document["results"], strict=True))
    noise = {run: penalized_sines.summed(result, penalized_sines.NOISE) for run, result in runs.items()}
    gaps = {run: noise["none"].mean() / values.mean() for run, values in noise.items()}
    assert gaps["l2"] > 2.5
    assert gaps["l1"] > 2
    assert gaps["path"] > 1.2
    for run in ("none", "l1", "path", penalized_sines.HALF):  # the published L2 coefficient costs k = 9 too much
        for k in (3, 6, 9):
            assert penalized_sines.summed(runs[run], (k,)).mean() == pytest.approx(1, abs=0.4)
    for run in ("l2", "l1", "path"):
        early, late = (
            (penalized_sines.summed(runs["none"], penalized_sines.NOISE, moment).mean())
            - penalized_sines.summed(runs[run], penalized_sines.NOISE, moment).mean()
            for moment in (10, -1)
        )
        assert late > 2 * early


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_penalties_keep_the_random_labels_out_at_full_scale(tmp_path):
    ITEMS["fig11"](None, None, out_dir=tmp_path)
    run = json.loads((tmp_path / "fig11.json").read_text())["result"]
    for name in ("path", "l2, half", "l1, half"):
        gains = penalized_digits.gains(run, name)
        assert gains.min() > 0.05
        assert gains.mean() > 0.1
        assert penalized_digits.collapses(run, name) == [None] * 3
    assert any(penalized_digits.collapses(run, "l2"))  # the published coefficients end in one class
    assert any(penalized_digits.collapses(run, "l1"))
