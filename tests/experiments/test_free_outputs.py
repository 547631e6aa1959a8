"""What the loss reaches with outputs chosen freely, the same for all samples, or not at all."""

import pytest
import torch
from torch import nn

from cases import normal
from theta0._batches import load_batches
from theta0.experiments.free_outputs import free_outputs

X = normal(32, 4)
Y = X.sum(1, keepdim=True)


def found(model, loss, parts=2):
    size = len(X) // parts
    return free_outputs(model, load_batches(list(zip(X.split(size), Y.split(size), strict=True)), model), loss)


def own(outputs, targets):
    return (outputs - targets).square().mean()


def test_a_loss_of_ones_own_has_the_constant_of_the_same_loss_by_name():
    model = nn.Linear(4, 1)
    mine, named = found(model, own), found(model, "mse")
    assert mine.constant == pytest.approx(named.constant, rel=1e-3)
    assert mine.least == pytest.approx(0, abs=1e-6)
    assert found(model, None) is None


@pytest.mark.parametrize(
    ("last", "low"), [(nn.Softplus(), 0.0), (nn.Sigmoid(), 0.0), (nn.LogSigmoid(), None)], ids=lambda v: str(v)
)
def test_outputs_within_an_interval(last, low):
    got = found(nn.Sequential(nn.Linear(4, 1), last), own, parts=1)
    beyond = Y.clamp_max(0) if low == 0.0 else Y.clamp_min(0)
    ones = (Y - 1).clamp_min(0) if isinstance(last, nn.Sigmoid) else torch.zeros_like(Y)
    assert got.confined == pytest.approx(float((beyond.square() + ones.square()).mean()), rel=0.05)
    assert got.least < got.confined


def test_a_loss_that_outputs_make_infinite_has_no_least():
    got = found(nn.Linear(4, 1), lambda o, t: (o - t).square().mean() + torch.log(-o.square() - 1).mean())
    assert got.least is None


def test_outputs_of_a_softmax_stay_on_the_simplex():
    """The squared error to twice a one-hot target is least at its corner: 1 in one entry of three."""
    targets = 2 * nn.functional.one_hot(torch.arange(32) % 3, 3).float()
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    got = free_outputs(model, load_batches([(X, targets)], model), own)
    assert got.confined == pytest.approx(1 / 3, rel=0.05)
    assert got.least == pytest.approx(0, abs=1e-5)


def test_batches_of_different_lengths_have_no_common_constant_but_that_of_each():
    def batches(*lengths):
        return [(normal(8, n, 4, seed=n), normal(8, n, 1, seed=n + 1)) for n in lengths]

    model = nn.Linear(4, 1)
    got = free_outputs(model, load_batches(batches(5, 7), model), lambda o, t: (o - t).abs().pow(1.5).mean())
    assert got.constant is None
    assert got.least == pytest.approx(0, abs=1e-3)
    named = free_outputs(model, load_batches(batches(5, 7), model), "mse")
    assert named.constant > 0


@pytest.mark.parametrize("offset", [0.0, 30.0, 1000.0])
def test_from_far_away_the_least_is_found_too(offset):
    model = nn.Linear(4, 5)
    nn.init.normal_(model.bias, std=offset)
    labels = X.argmax(1)
    data = load_batches([(X, labels)], model)
    got = free_outputs(model, data, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets))
    assert got.least == pytest.approx(0, abs=0.01)
    assert got.least < got.constant < 1.7
