"""`compare`: which start and rate trains best, on data that chose nothing, and by how much."""

import math

import pytest
from torch import nn
from torch.nn import functional as F

from cases import flat, mlp, normal
from states import randomness, state_of
from theta0 import compare
from theta0.comparison import winning_start_
from theta0.parametrizations import is_linearly_constrained
from theta0.treatment.trials import fresh_order

SHORT = {"starts": ("default", "lcw"), "rates": (0.03, 0.1, 0.3), "steps": 12, "seeds": 2, "optimizer": "momentum"}


def deep(depth=6, width=16):
    return nn.Sequential(
        *(part for _ in range(depth) for part in (nn.Linear(width, width), nn.Sigmoid())), nn.Linear(width, 2)
    )


def learnable(count=16):
    x = normal(count * 16, 16)
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16), strict=True))


def test_a_deep_sigmoid_network_is_won_by_a_start_that_can_be_made_again_and_the_default_is_never_dropped():
    found = compare(deep, learnable(), "cross_entropy", **SHORT | {"steps": 30})
    assert found.complete
    assert found.winner.start == "lcw"
    assert {standing.start for standing in found.standings} == {"default", "lcw"}
    by_name = {standing.start: standing for standing in found.standings}
    assert by_name["lcw"].mean + by_name["lcw"].spread < by_name["default"].mean - by_name["default"].spread
    assert found.drawn
    assert all(len(standing.runs) == 2 for standing in found.standings)
    assert found.cost == pytest.approx(
        sum(heat.run.cost for heat in found.tuning_runs) + sum(r.cost for s in found.standings for r in s.runs)
    )
    assert found.to_dict()["lcw/mean"] == by_name["lcw"].mean
    model = winning_start_(deep, learnable(), "cross_entropy", found)
    assert is_linearly_constrained(model[0])
    best = min(range(2), key=lambda seed: found.winner.runs[seed].held_out)
    x, y = fresh_order(learnable()[:12], 1, best + 1)[0]
    assert F.cross_entropy(model(x), y).item() == pytest.approx(found.winner.runs[best].losses[0], rel=1e-4)


def test_rates_are_halved_by_their_own_short_runs():
    found = compare(lambda: deep(2), learnable(), "cross_entropy", **SHORT)
    for start in ("default", "lcw"):
        first, second = ({h.rate: h.run for h in found.tuning_runs if (h.start, h.steps) == (start, n)} for n in (3, 6))
        assert set(first) == {0.03, 0.1, 0.3}
        kept = sorted(first, key=lambda rate: first[rate].held_out)[:2]
        assert set(second) == set(kept)
        best = min(kept, key=lambda rate: second[rate].held_out)
        assert next(s.rate for s in found.standings if s.start == start) == best
    assert {h.steps for h in found.tuning_runs} == {3, 6}


def test_a_budget_leaves_out_heats_and_seeds_but_no_start():
    found = compare(lambda: deep(2), learnable(), "cross_entropy", budget_s=1e-9, **SHORT | {"seeds": 5})
    assert not found.complete
    assert {standing.start for standing in found.standings} == {"default", "lcw"}
    assert all(len(standing.runs) == 1 for standing in found.standings)
    assert {h.steps for h in found.tuning_runs} == {3}
    assert math.isnan(found.winner.spread)


def test_an_interrupt_leaves_the_model_and_what_is_done_is_not_done_again(tmp_path):
    model, path = mlp(), tmp_path / "runs.jsonl"
    before, drawn, told = state_of(model), randomness(), []

    def stop(text, share):
        assert 0 <= share <= 1
        told.extend([text] if text not in told else [])
        if len(told) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(model, flat(), "cross_entropy", store=path, progress=stop, **SHORT)
    assert state_of(model) == before
    assert randomness() == drawn
    done = len(path.read_text().splitlines())
    assert done == 6
    path.write_bytes(path.read_bytes() + b'{"key": "torn')
    counted = Counting()
    resumed = compare(model, flat(), counted, store=path, **SHORT)
    fresh = compare(model, flat(), "cross_entropy", **SHORT)
    assert counted.calls > 0
    assert [(s.start, s.rate) for s in resumed.standings] == [(s.start, s.rate) for s in fresh.standings]
    once = compare(model, flat(), "cross_entropy", store=path, **SHORT)
    lines = len(path.read_text().splitlines())
    again = compare(model, flat(), "cross_entropy", store=path, **SHORT)
    assert len(path.read_text().splitlines()) == lines
    assert again.standings == once.standings
    assert [s.runs for s in once.standings] == [s.runs for s in fresh.standings]


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return F.cross_entropy(outputs, targets)


def test_a_start_that_cannot_be_made_is_told_and_the_others_are_raced():
    found = compare(mlp(), flat(), "cross_entropy", **SHORT | {"starts": ("default", "recurrent")})
    assert [s.start for s in found.standings] == ["default"]
    assert found.candidates[1].reason == "expected a recurrent layer, got none"
    with pytest.raises(ValueError, match="recurrent: expected a recurrent layer"):
        compare(mlp(), flat(), "cross_entropy", **SHORT | {"starts": ["recurrent"]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"starts": ("default", "magic")}, "starts: expected names out of default, .*, got magic"),
        ({"starts": ()}, "starts: expected names out of .*, got none"),
        ({"rates": [0.1, -1.0]}, "rates: expected 'auto' or positive numbers"),
        ({"rates": []}, "rates: expected 'auto' or positive numbers"),
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"seeds": 0}, "seeds: expected at least 1, got 0"),
        ({"budget_s": 0.0}, "budget_s: expected a positive number of seconds"),
        ({"optimizer": "lion"}, "optimizer: expected one of"),
    ],
)
def test_wrong_arguments(options, message, unchecked):
    model = mlp()
    before = state_of(model)
    with pytest.raises(ValueError, match=message):
        compare(model, flat(), "cross_entropy", **SHORT | options)
    assert state_of(model) == before
