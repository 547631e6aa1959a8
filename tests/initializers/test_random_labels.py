"""Pre-training on random labels: labels unused, the best window kept, everything else as found."""

import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from states import randomness, state_of
from theta0._state import preserve_state
from theta0.initializers import random_labels_
from theta0.initializers.random_labels import random_labels


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def network(batch_norm=False, classes=2, dtype=torch.float32):
    g = generator(3)
    layers = [nn.Linear(5, 8), *([nn.BatchNorm1d(8)] if batch_norm else []), nn.ReLU(), nn.Linear(8, classes)]
    model = nn.Sequential(*layers).to(dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.5)
    return model


BATCHES = [torch.randn(16, 5, generator=generator(i)) for i in range(4)]


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def test_labels_of_the_batches_do_not_matter():
    found = []
    for labelled in (False, True):
        batches = [(x, torch.zeros(16, dtype=torch.long)) if labelled else x for x in BATCHES]
        found.append(values(random_labels_(network(), batches, steps=7, generator=4)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.slow
def test_it_is_adam_on_fresh_uniform_labels():
    """A loss that is recorded at a rate too small to move: its labels are uniform and new at every step."""
    model = network(classes=3, dtype=torch.float64)
    x, steps, losses = torch.randn(2, 5, generator=generator(), dtype=torch.float64), 900, []
    random_labels_(model, [x], steps=steps, learning_rate=1e-12, generator=1, progress=lambda s: losses.append(s.loss))
    each = -F.log_softmax(model(x).detach(), 1)
    possible = sorted({round(float((each[0, i] + each[1, j]) / 2), 6) for i in range(3) for j in range(3)})
    assert len(possible) == 9
    seen = torch.tensor(losses, dtype=torch.float64)
    counts = torch.tensor([(seen - value).abs().lt(1e-5).sum() for value in possible])
    assert counts.sum() == steps
    chi_squared = ((counts - steps / 9) ** 2 / (steps / 9)).sum()
    assert chi_squared < 26.1  # 0.1 % of the distribution with 8 degrees of freedom


@pytest.mark.slow
def test_the_best_hundred_steps_are_kept():
    model, at = network(), {}

    def remember(step):
        if step.step % 100 == 0:
            at[step.step] = values(model)

    done = random_labels(model, BATCHES, steps=450, learning_rate=0.05, generator=2, progress=remember)
    assert (done.steps, len(done.losses), done.interrupted, done.cost) == (450, 4, False, 450.0)
    assert done.best_step == 100 * (1 + done.losses.index(min(done.losses)))
    assert all(torch.equal(a, b) for a, b in zip(values(model), at[done.best_step], strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("steps", "stop", "windows"), [(199, None, [100, 99]), (150, None, [100]), (60, None, [60]),
                                                        (900, 99, [99]), (900, 50, [])])  # fmt: skip
def test_the_last_steps_count_if_they_are_more_than_half_a_window(steps, stop, windows):
    model, losses, at = network(), [], [values(network())]

    def remember(step):
        losses.append(step.loss)
        at.append(values(model))
        if step.step == stop:
            raise KeyboardInterrupt

    found = random_labels(model, BATCHES, steps=steps, generator=2, progress=remember)
    assert found.interrupted == bool(stop)
    ends = [sum(windows[: i + 1]) for i in range(len(windows))]
    means = [sum(losses[end - count : end]) / count for end, count in zip(ends, windows, strict=True)]
    assert found.losses == pytest.approx(means)
    assert found.best_step == (ends[means.index(min(means))] if ends else 0)
    assert all(torch.equal(a, b) for a, b in zip(values(model), at[found.best_step], strict=True))


def test_the_model_and_the_random_state_are_otherwise_as_found():
    model = network()
    model[0].bias.requires_grad_(False)
    model[2].weight.grad = torch.ones_like(model[2].weight)
    before, randoms = state_of(model), randomness()
    random_labels_(model, BATCHES, steps=3, generator=0)
    after = state_of(model)
    assert randomness() == randoms
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"0.weight", "2.weight", "2.bias"}
    assert all(before[key][0] == after[key][0] for key in changed)


def test_running_statistics_belong_to_the_kept_parameters():
    model = network(batch_norm=True)
    random_labels_(model, BATCHES, steps=50, generator=0)
    wanted = torch.cat([model[0](x) for x in BATCHES]).var(0)
    torch.testing.assert_close(model[1].running_var, wanted.detach(), rtol=0.3, atol=0.05)


def test_an_interrupt_leaves_the_best_so_far_and_an_error_leaves_the_start():
    def stop(step):
        if step.step == 150:
            raise KeyboardInterrupt

    whole, cut = network(), network()
    random_labels_(whole, BATCHES, steps=100, generator=0)
    with pytest.raises(KeyboardInterrupt):
        random_labels_(cut, BATCHES, steps=1000, generator=0, progress=stop)
    assert all(torch.equal(a, b) for a, b in zip(values(whole), values(cut), strict=True))

    def fail(step):
        raise RuntimeError("display is gone")

    start = network()
    with pytest.raises(RuntimeError, match="display"):
        random_labels_(start, BATCHES, steps=5, generator=0, progress=fail)
    assert all(torch.equal(a, b) for a, b in zip(values(network()), values(start), strict=True))


def test_an_interrupt_while_the_model_is_put_back_leaves_the_best_too(monkeypatch):
    @contextmanager
    def impatient(model):
        with preserve_state(model):
            yield
        raise KeyboardInterrupt

    whole, cut = random_labels_(network(), BATCHES, steps=100, generator=0), network()
    monkeypatch.setattr("theta0.initializers.random_labels.preserve_state", impatient)
    with pytest.raises(KeyboardInterrupt):
        random_labels_(cut, BATCHES, steps=100, generator=0)
    assert all(torch.equal(a, b) for a, b in zip(values(whole), values(cut), strict=True))


def test_a_loaders_own_generator_plays_no_part_and_is_left_as_it_was():
    own = generator(8)
    loader, found = DataLoader(TensorDataset(torch.cat(BATCHES)), 16, shuffle=True, generator=own), []
    for seed in (8, 9):
        before = own.manual_seed(seed).get_state()
        found.append(values(random_labels_(network(), loader, steps=7, generator=4)))
        assert torch.equal(own.get_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class CutOff(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        (nn.Linear(5, 1), {"steps": 1}, "at least two logits"),
        (nn.Linear(5, 2), {"steps": -1}, "steps"),
        (nn.Linear(5, 2), {"steps": 1.5}, "steps: expected a whole number of at least 0, got 1.5"),
        (nn.Flatten(), {"steps": 1}, "requires a gradient"),
        (nn.Linear(5, 2).requires_grad_(False), {"steps": 1}, "requires a gradient"),
        (CutOff(5, 2), {"steps": 1}, "outputs that depend on a parameter that requires a gradient, got ones cut off"),
        (nn.Linear(5, 2), {"steps": 1, "learning_rate": math.nan}, "learning_rate"),
        (nn.Linear(5, 2).apply(lambda m: m.weight.data.fill_(1e38)), {"steps": 1}, "finite loss"),
    ],
)
def test_bad_input(model, arguments, words, unchecked):
    with pytest.raises(ValueError, match=words):
        random_labels_(model, BATCHES, **arguments)
