"""Short runs against plain training loops."""

import math

import pytest
import torch
from torch.nn import functional as F

from cases import case, flat, mlp
from states import state_of
from theta0._batches import load_batches
from theta0._state import snapshot
from theta0._training import RATES, mean_loss, probe_rate, short_run, steps_from

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.05),
    "adamw": lambda p: torch.optim.AdamW(p, 0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_a_plain_loop(name):
    ours, plain = case("mlp").model(), case("mlp").model()
    batches = flat()
    optimizer, expected = OPTIMIZERS[name](plain.parameters()), []
    for step in range(5):
        optimizer.zero_grad()
        x, y = batches[step % 2]
        loss = F.cross_entropy(plain(x), y)
        expected.append(loss.item())
        loss.backward()
        optimizer.step()
    with torch.random.fork_rng():
        found = steps_from(ours, load_batches(batches, ours), "cross_entropy", optimizer=name, rate=0.05, steps=5)
    assert found == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(list(ours.parameters()), list(plain.parameters()))


def test_frozen_parameters_do_not_move():
    model = case("frozen").model()
    before = model[0].weight.clone()
    with torch.random.fork_rng():
        steps_from(model, load_batches(flat(), model), "cross_entropy", optimizer="adam", rate=0.1, steps=3)
    assert torch.equal(model[0].weight, before)


def test_a_run_ends_with_the_first_loss_that_is_not_finite():
    losses = iter([1.0, 2.0, math.nan, 4.0])
    model = mlp()
    batches = load_batches(flat(), model)
    with torch.random.fork_rng():
        found = steps_from(model, batches, lambda o, t: o.sum() * 0 + next(losses), optimizer="sgd", rate=0.1, steps=9)
    assert found[:2] == [1.0, 2.0]
    assert len(found) == 3
    assert math.isnan(found[2])


def test_mean_loss_is_over_batches_and_nan_counts_as_infinite():
    model = case("mlp").model()
    batches = load_batches(flat(), model)
    expected = sum(F.cross_entropy(model(x), y).item() for x, y in flat()) / 2
    assert mean_loss(model, batches, "cross_entropy") == pytest.approx(expected)
    assert mean_loss(model, batches, lambda o, t: o.sum() * math.nan) == math.inf


def test_a_run_is_repeatable_under_dropout():
    def run():
        model = case("norm and dropout").model()
        batches = load_batches(flat(), model)
        return short_run(model, batches, batches, "cross_entropy", optimizer="sgd", rate=0.1, steps=4)

    with torch.random.fork_rng():
        assert run() == run()


def test_the_probed_rate_is_the_best_of_its_kind_and_the_model_is_put_back():
    model = case("mlp").model()
    batches = load_batches(flat(), model)
    before = state_of(model)
    with torch.random.fork_rng():
        rate, cost = probe_rate(model, batches, "cross_entropy", optimizer="sgd", restore=snapshot(model))
        assert state_of(model) == before
        reached = {}
        for candidate in RATES:
            trained = case("mlp").model()
            steps_from(trained, batches, "cross_entropy", optimizer="sgd", rate=candidate, steps=10)
            reached[candidate] = mean_loss(trained, batches, "cross_entropy")
    assert rate == min(reached, key=reached.get)
    assert cost == pytest.approx(len(RATES) * (10 + 2 / 3))
