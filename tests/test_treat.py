"""`treat`: a start that trains better, proven by short runs, or the model bit for bit as it came."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import case, flat, labels, mlp, normal
from states import randomness, state_of
from theta0 import load_start_, save_start, treat
from theta0.parametrizations import is_linearly_constrained

QUICK = {"optimizer": "momentum", "learning_rate": 0.1, "steps": 8}


def deep(depth=6, width=16):
    torch.manual_seed(0)
    return nn.Sequential(
        *(part for _ in range(depth) for part in (nn.Linear(width, width), nn.Sigmoid())), nn.Linear(width, 3)
    )


def learnable(count=8):
    x = normal(count * 32, 16)
    y = (x[:, 0] > 0).long()
    return list(zip(x.split(32), y.split(32), strict=True))


def test_a_deep_sigmoid_network_is_mended_and_stays_mended():
    model = deep()
    drawn = randomness()
    found = treat(model, learnable(), "cross_entropy", optimizer="momentum", learning_rate=0.1, steps=20)
    assert found.kept
    assert found.remedy == "lcw"
    assert found.rate == 0.1
    for plain, treated in found.confirmations:
        assert treated.held_out < 0.62 < 0.65 < plain.held_out
    assert found.reason.startswith("Kept")
    assert not found.before.healthy
    assert found.after.healthy
    assert randomness() == drawn
    assert [is_linearly_constrained(m) for m in model if isinstance(m, nn.Linear)] == [True] * 6 + [False]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    x, y = learnable()[0]
    assert F.cross_entropy(model(x), y).item() > 0.7  # the start, not the trained net


@pytest.mark.slow
def test_a_kept_start_is_saved_and_loaded_into_a_fresh_network(tmp_path):
    model = deep()
    found = treat(model, learnable(), "cross_entropy", with_="lcw", optimizer="momentum", learning_rate=0.1, steps=20)
    path = save_start(model, tmp_path / "start.safetensors", method=found.remedy)
    fresh = load_start_(deep(), path)
    x, _ = learnable()[0]
    torch.testing.assert_close(fresh(x), model(x))


def test_auto_on_a_healthy_network_tries_nothing():
    model = case("mlp").model()
    before = state_of(model)
    found = treat(model, flat(), "cross_entropy", **QUICK)
    assert (found.remedy, found.kept, found.attempts, found.untreated) == ("", False, (), None)
    assert found.reason.startswith("Nothing was tried")
    assert state_of(model) == before


@pytest.mark.slow
def test_without_a_rate_each_start_gets_its_own():
    found = treat(deep(4), learnable(), "cross_entropy", with_="lcw", steps=5)
    assert 1e-3 <= found.untreated.rate <= 1
    assert 1e-3 <= found.treated.rate <= 1
    assert found.cost > 100


def test_progress_and_log():
    told = {}
    found = treat(deep(2), learnable(), "cross_entropy", with_="lcw", progress=told.__setitem__, **QUICK)
    assert list(told)[-2:] == ["trying lcw", "proving lcw on fresh data orders"]
    assert told["proving lcw on fresh data orders"] == 1.0
    assert "theta0.remove_(model) before torch.save(model)" in found.reason
    logged = found.to_dict()
    assert logged["held_out_loss/treated"] == found.treated.held_out
    assert logged["0/preactivation_variance"] > 0


def test_where_nothing_can_be_constrained_it_is_told_and_taken_back():
    model = nn.Linear(6, 3)
    before = state_of(model)
    with pytest.raises(ValueError, match="lcw could not be applied: expected a Linear or Conv layer before the last"):
        treat(model, flat(), "cross_entropy", with_="lcw", **QUICK)
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"with_": "magic"}, "with: expected auto, unit-variance, lcw, .*nio.*standardize-input, got 'magic'"),
        ({"optimizer": "lion"}, "optimizer: expected one of"),
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"loss": "hinge"}, "loss: expected"),
        ({"batches": []}, "batches: expected at least one batch"),
        ({"batches": [(normal(1, 6), labels(1))]}, "at least two samples"),
        ({"loss": None}, "loss: expected a name or a callable, got None"),
    ],
)
def test_wrong_arguments_leave_the_model(options, message, unchecked):
    model = mlp()
    before = state_of(model)
    given_ = {"batches": flat(), "loss": "cross_entropy"} | options
    with pytest.raises(ValueError, match=message):
        treat(model, given_.pop("batches"), given_.pop("loss"), **given_)
    assert state_of(model) == before
