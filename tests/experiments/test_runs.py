"""Runs that are paused and continued end where runs in one go end, and leave the model as it was."""

import math

import pytest
import torch
from torch import nn

from states import state_of
from theta0._batches import load_batches
from theta0._state import preserve_state
from theta0.experiments import continued, optimizer_kind, prepared, started

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
PARTS = [(x, x.sum(1).gt(0).long()) for x in X.split(16)]


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))


def experiment(model: nn.Module, optimizer="adam"):
    kind = optimizer_kind(optimizer, model)
    return prepared(model, load_batches(PARTS, model), "cross_entropy", kind.make, seed=5)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "rmsprop"])
def test_two_runs_in_turns_end_where_each_alone_ends(optimizer):
    model = network()
    with preserve_state(model):
        e = experiment(model, optimizer)
        alone = [continued(e, started(e, rate), 12) for rate in (0.01, 0.03)]
        turns = [started(e, rate) for rate in (0.01, 0.03)]
        for until in (3, 7, 12):
            turns = [continued(e, run, until) for run in turns]
        for one, other in zip(alone, turns, strict=True):
            assert one.losses == other.losses  # dropout draws by step, buffers and moments are kept
            one.resume()
            there = {key: value.clone() for key, value in model.state_dict().items()}
            other.resume()
            assert all(torch.equal(value, there[key]) for key, value in model.state_dict().items())


def test_a_run_is_torchs_own_training():
    model, theirs = network(), network()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.02, weight_decay=0.0)
    expected = []
    for step in range(6):
        torch.manual_seed(5 + step)
        x, y = PARTS[step % 4]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(theirs(x), y)
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    with preserve_state(model):
        e = experiment(model, "adamw")
        run = continued(e, started(e, 0.02), 6)
    assert list(run.losses) == expected


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(6, 2), 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 4:
            raise KeyboardInterrupt
        return self.inner(x)


def test_an_interrupt_leaves_the_model_bit_for_bit():
    model = Failing()
    before = state_of(model)

    def interrupted():
        with preserve_state(model):
            e = experiment(model, "sgd")
            continued(e, started(e, 0.1), 10)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert state_of(model) == before


def test_a_run_that_explodes_stops_and_is_never_continued():
    model = nn.Linear(6, 1, bias=False)
    with preserve_state(model):
        e = prepared(model, load_batches([(X, X[:, :1])], model), "mse", optimizer_kind("sgd", model).make)
        run = continued(e, started(e, 50.0), 40)
        assert run.diverged
        assert len(run.losses) < 40
        assert continued(e, run, 80) is run
        assert run.score(40, 8) == math.inf
