"""Races in which rates diverge."""

import math
import sys

from torch import nn

from cases import flat, mlp, normal
from theta0.comparison import compare


def learnable(count=16):
    x = normal(count * 16, 16)
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16), strict=True))


def test_diverging_starts_come_last():
    found = compare(
        mlp(), flat(), lambda o, t: o.square().mean() * 1e3, starts=("default", "lcw"), rates=[1e4], steps=20, seeds=2
    )
    assert all(math.isinf(standing.mean) for standing in found.standings)
    assert all(math.isnan(standing.spread) for standing in found.standings)


def test_where_every_automatic_rate_diverges_lower_ones_are_tried(monkeypatch):
    module = sys.modules["theta0.comparison.performing"]
    monkeypatch.setattr(module, "allowed_rate", lambda *_: (None, ""))  # the probe's rate is left
    steep = [(x * 16, x[:, :2] * 16) for x, _ in learnable()]
    options = {"starts": ["default"], "steps": 24, "seeds": 1}
    found = compare(lambda: nn.Linear(16, 2), steep, lambda o, t: (o - t).pow(4).mean(), **options)
    first = {tried.rate: tried.run.held_out for tried in found.tuning_runs if tried.steps == 6}
    (candidate,) = found.candidates
    assert candidate.reason == ""
    assert all(math.isinf(first[rate]) for rate in candidate.rates)
    assert found.winner.rate < min(candidate.rates)
    assert found.winner.runs[0].held_out < found.winner.runs[0].held_out_start


def test_where_every_rate_diverges_the_search_ends_and_the_entrant_says_so():
    def hopeless(outputs, targets):  # finite at the start, and not after any step
        return outputs.mean() + (0.0 if outputs.detach().sum() == 0 else math.nan)

    def zero():
        model = nn.Linear(16, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model

    found = compare(zero, learnable(), hopeless, starts=["default"], steps=12, seeds=1)
    lowest = min(found.candidates[0].rates)
    assert found.candidates[0].reason == f"every rate tried diverged, down to {lowest / 1e6:.3g}"
    assert len({tried.rate for tried in found.tuning_runs}) == len(found.candidates[0].rates) + 6
    given = compare(zero, learnable(), hopeless, starts=["default"], rates=[0.1], steps=12, seeds=1)
    assert given.tuning_runs == ()
    assert given.candidates[0].reason == "every rate tried diverged, down to 0.1"
