"""Races: every start at its own best rate, on data that chose nothing; broken off and gone on; nothing touched."""

import json
import math
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import SAMPLED, flat, mlp, normal
from states import randomness, state_of
from theta0._models import unwrapped
from theta0.comparison import STARTS, compare
from theta0.comparison.store import Store, digest, run_from_dict, run_to_dict
from theta0.treatment import REMEDIES
from theta0.treatment.results import Applied
from theta0.treatment.searches import SEARCHES
from theta0.treatment.trials import Run, fresh_order


def deep(depth=6, width=16):
    return nn.Sequential(
        *(part for _ in range(depth) for part in (nn.Linear(width, width), nn.Sigmoid())), nn.Linear(width, 2)
    )


def learnable(count=16):
    x = normal(count * 16, 16)
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16), strict=True))


SHORT = {"starts": ("default", "lcw"), "rates": (0.03, 0.1, 0.3), "steps": 12, "seeds": 2, "optimizer": "momentum"}


def test_the_reported_run_is_what_training_gives():
    torch.manual_seed(3)
    model = deep(2)
    found = compare(model, learnable(), "cross_entropy", **SHORT | {"starts": ["lcw"], "rates": [0.1]})
    assert found.tuning_runs == ()
    assert not found.drawn
    standing = found.winner
    REMEDIES["lcw"](model, learnable()[:12], "cross_entropy")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x, y in fresh_order(learnable()[:12], 12, 1):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    held = sum(F.cross_entropy(model(x), y).item() for x, y in learnable()[12:]) / 4
    assert standing.runs[0].held_out == pytest.approx(held, rel=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("c", SAMPLED, ids=lambda c: c.name)
def test_a_model_is_left_as_it_was(c):
    model = c.model()
    before, drawn, reason = state_of(unwrapped(model)), randomness(), None
    options = {"starts": ("default", "unit-variance"), "rates": [0.01, 0.1], "steps": 2, "seeds": 1}
    eager = torch.compiler.set_stance("force_eager") if c.name == "compiled inside" else nullcontext()
    try:
        with eager:  # the checks of signatures cannot be traced
            compare(model, c.batches(), c.loss, **options)
    except ValueError as error:
        reason = str(error)
    assert reason is None or c.name == "lazy" or "sample" in reason or "part" in reason
    assert state_of(unwrapped(model)) == before
    assert randomness() == drawn


def test_other_data_weights_or_losses_are_other_runs(tmp_path):
    path = tmp_path / "runs.jsonl"
    options = SHORT | {"starts": ["default"], "rates": [0.1], "seeds": 1, "store": path}
    compare(mlp(), flat(), "cross_entropy", **options)
    first = len(path.read_text().splitlines())
    changed = mlp()
    changed[0].bias.data += 1
    other = [(x + 1, y) for x, y in flat()]
    for model, data, loss in ((changed, flat(), "cross_entropy"), (mlp(), other, "cross_entropy")):
        before = len(path.read_text().splitlines())
        compare(model, data, loss, **options)
        assert len(path.read_text().splitlines()) == before + first


def moody(model, batches, loss=None, *, generator=None):
    if generator == 1:
        raise ValueError("not today")
    return Applied()


def test_a_start_that_cannot_be_made_for_one_seed_is_told_and_the_race_goes_on(monkeypatch):
    monkeypatch.setitem(STARTS, "moody", moody)
    found = compare(
        lambda: deep(1), learnable(), "cross_entropy", **SHORT | {"starts": ("moody", "default"), "seeds": 3}
    )
    assert [(s.start, s.seeds) for s in found.standings] == [("default", (0, 1, 2)), ("moody", (0, 2))]
    assert found.complete
    assert [e.reason for e in found.candidates] == ["with seed 2 of 3: not today", ""]
    plain, other = found.standings
    assert [run.held_out for run in other.runs] == pytest.approx([plain.runs[seed].held_out for seed in (0, 2)])


def test_an_error_of_the_users_is_no_refusal():
    class Broken(nn.Linear):
        def forward(self, x):
            if torch.is_grad_enabled() and len(x) == 16:
                raise RuntimeError("out of memory")
            return super().forward(x)

    with pytest.raises(ValueError, match="out of memory"):
        compare(Broken(16, 2), learnable(), "cross_entropy", **SHORT | {"starts": ["default"]})


@pytest.mark.slow
def test_searched_starts_are_raced_and_tell_their_cost(monkeypatch):
    for name, options in (("nio", {}), ("gradinit", {}), ("mmd", {"perturbations": 8})):
        monkeypatch.setitem(STARTS, name, partial(SEARCHES[name], steps=20, **options))
    starts = ("default", "nio", "mmd", "gradinit")
    options = SHORT | {"starts": starts, "rates": [0.1], "steps": 4, "seeds": 2}
    found = compare(lambda: deep(2), learnable(), "cross_entropy", **options)
    assert [candidate.start for candidate in found.candidates] == list(starts)
    for candidate in found.candidates[1:]:
        assert candidate.reason or candidate.gradients > 50
    raced = {standing.start for standing in found.standings}
    assert raced >= {"default", "mmd"} | {e.start for e in found.candidates if not e.reason}
    regression = [(x, x[:, :2].sin()) for x, _ in learnable()]
    found = compare(lambda: deep(2), regression, "mse", **options | {"starts": ("default", "mmd"), "seeds": 1})
    assert [standing.start for standing in found.standings] == ["default"]
    assert found.candidates[1].reason.startswith("expected a classifier of two classes or more, got the loss 'mse'")


@pytest.mark.slow
def test_the_time_for_making_a_start_counts_against_the_budget(monkeypatch):
    def slow(model, batches, loss=None, *, generator=None):
        time.sleep(1.0)
        return Applied()

    monkeypatch.setitem(STARTS, "slow", slow)
    options = {"starts": ["slow"], "rates": [0.1], "steps": 1, "seeds": 3}
    found = compare(lambda: deep(1), learnable(), "cross_entropy", **options, budget_s=1.9)
    assert not found.complete
    assert found.winner.seeds == (0,)


@pytest.mark.slow
def test_automatic_rates_lie_around_each_starts_own_suggestion():
    options = {"starts": ("default", "unit-variance"), "steps": 2, "seeds": 1, "learning_rate": 0.123}
    found = compare(deep, learnable(), "cross_entropy", **options)
    for candidate in found.candidates:
        assert 5 <= len(candidate.rates) <= 7
        assert any(0.7 < rate / 0.123 < 1.4 for rate in candidate.rates)
        assert list(candidate.rates) == sorted(candidate.rates)
        assert candidate.suggested in candidate.rates
    assert found.candidates[0].suggested != found.candidates[1].suggested


def test_every_remedy_can_be_raced():
    assert set(REMEDIES) < set(STARTS)
    assert STARTS["default"](mlp(), flat()) is not None


def test_a_factory_must_return_a_module(unchecked):
    with pytest.raises(ValueError, match="expected a module or a function that returns one, got int"):
        compare(lambda: 3, flat(), "cross_entropy", **SHORT)


def test_runs_come_back_from_json():
    run = Run("sgd", 0.1, (1.0, math.inf), math.inf, 2.0, 3.0)
    assert run_from_dict(json.loads(json.dumps(run_to_dict(run), allow_nan=False))) == run


def test_a_store_without_a_file_and_digests():
    store = Store(None)
    store.put("a", {"value": 1})
    assert store.get("a")["value"] == 1
    assert digest(torch.zeros(2), "x") != digest(torch.zeros(2), "y")
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, 1))
    assert digest(torch.zeros(2, dtype=torch.bfloat16)) == digest(torch.zeros(2, dtype=torch.bfloat16))
