"""Findings on what is given, what the loss can reach, copies of units, and time: where each turns."""

import math

import pytest
import torch
from held_out_ill import Net, mlp, recurrent
from torch import nn
from torch.nn import functional as F

from cases import labels, normal
from cases import unprobed as diagnose

X, Y = normal(32, 6), labels(32, classes=4, seed=3)


def told(model, data, loss="cross_entropy", **options):
    return {f.code: f for f in diagnose(model, data, loss, **options).findings}


@pytest.mark.parametrize(("scale", "ill"), [(1.0, False), (10.0, False), (300.0, True), (1e5, True)])
def test_the_scale_is_that_which_the_first_layer_meets(scale, ill):
    torch.manual_seed(0)
    net = mlp(6, 16, 4)
    assert ("input-scale" in told(net, [(X * scale, Y)])) is ill
    inside = Net(lambda s, x: s.net(x / scale), net=net)
    assert "input-scale" not in told(inside, [(X * scale, Y)])
    normalised = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))
    assert "input-scale" not in told(normalised, [(X * scale, Y)])


def test_frozen_statistics_are_judged_by_whether_they_fit():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=1.0), nn.ReLU(), nn.Linear(16, 4))
    assert told(net.eval(), [(X, Y)])["frozen-batch-norm"].severity == "note"
    net.train()(X)
    assert "frozen-batch-norm" not in told(net.eval(), [(X, Y)])
    assert told(net, [(X * 100, Y)])["frozen-batch-norm"].severity != "note"


@pytest.mark.parametrize(("size", "ill"), [(2, True), (4, True), (8, False)])
def test_batches_are_small_by_values_per_channel(size, ill):
    flat = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    assert ("small-batch" in told(flat, [(X[:size], Y[:size])])) is ill
    spatial = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4))
    assert "small-batch" not in told(spatial, [(X[:size, None], Y[:size])])


@pytest.mark.parametrize(
    ("last", "classes", "least"),
    [
        (nn.Softmax(1), 4, math.log(1 + 3 / math.e)),
        (nn.Sigmoid(), 4, math.log(1 + 3 / math.e)),
        (nn.Tanh(), 4, math.log(1 + 3 / math.e**2)),
        (nn.Hardtanh(-3, 3), 4, None),
        (nn.LogSoftmax(1), 4, None),
        (nn.Softplus(), 4, None),
    ],
)
def test_the_least_cross_entropy_of_confined_logits(last, classes, least):
    """By gradient descent on free inputs of the last operation: nothing falls below, and it is approached."""
    torch.manual_seed(0)
    found = told(nn.Sequential(nn.Linear(6, classes), last), [(X, Y)])
    assert ("squashed-output" in found) is (least is not None)
    if least is not None:
        assert found["squashed-output"].value == pytest.approx(least / math.log(classes))
        free = torch.zeros(1, classes)
        free[0, 1] = 40.0
        free[0, [0, 2, 3]] = -40.0
        assert float(F.cross_entropy(last(free), torch.tensor([1]))) == pytest.approx(least, abs=1e-4)


@pytest.mark.parametrize(("scale", "ill"), [(1.0, True), (2.7, False), (14.3, False)])
@pytest.mark.parametrize("own", [False, True])
def test_unit_vectors_need_a_scale(scale, ill, own):
    def unit(x):
        return x / x.norm(dim=-1, keepdim=True) if own else F.normalize(x, dim=-1)

    torch.manual_seed(0)
    pair = Net(lambda s, x: unit(s.a(x)) @ unit(s.b(x)).t() * s.scale, a=mlp(6, 8), b=mlp(6, 8),
               scale=nn.Parameter(torch.tensor(scale)))  # fmt: skip

    def both(outputs, targets):
        return (F.cross_entropy(outputs, targets) + F.cross_entropy(outputs.T, targets)) / 2

    found = told(pair, [(X, torch.arange(32))], both)
    assert ("squashed-output" in found) is ill


@pytest.mark.parametrize(("low", "high", "ill"), [(-0.9, 0.9, False), (0, 5, True), (-3, 3, True)])
@pytest.mark.parametrize("loss", ["mse", "l1", lambda o, t: ((o - t) ** 2).mean()])
def test_a_bounded_output_against_the_range_of_the_targets(low, high, ill, loss):
    targets = torch.linspace(low, high, 32)[:, None]
    assert ("squashed-output" in told(mlp(6, 8, 1, last=nn.Tanh), [(X, targets)], loss)) is ill


@pytest.mark.parametrize("last", [nn.ReLU, nn.Sigmoid, nn.GELU])
def test_binary_logits_need_both_signs(last):
    targets = (X[:, :1] > 0).float()
    assert told(mlp(6, 8, 1, last=last), [(X, targets)], "bce")["squashed-output"].severity == "error"
    assert "squashed-output" not in told(mlp(6, 8, 1, last=nn.Sigmoid), [(X, targets)], F.binary_cross_entropy)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", ["mse", "l1", nn.SmoothL1Loss(), lambda o, t: (o - t).abs().mean()])
def test_shapes_that_stretch_against_each_other(loss):
    column, flat = mlp(6, 8, 1), Net(lambda s, x: s.f(x)[:, 0], f=mlp(6, 8, 1))
    t = X.sum(1)
    for model, targets, ill in ((column, t, True), (flat, t[:, None], True), (column, t[:, None], False), (flat, t, False)):  # fmt: skip  # noqa: E501
        found = told(model, [(X, targets)], loss)
        assert ("broadcast-loss" in found) is ill
        if ill:
            assert found["broadcast-loss"].value == 32
            assert next(iter(found)) == "broadcast-loss"


def test_pairs_that_are_meant_are_no_mistake():
    def ranking(outputs, targets):
        return ((outputs[:, None] - outputs[None]) * (targets[:, None] - targets[None])).mean()

    def chamfer(outputs, targets):
        return (outputs[:, :, None] - targets[:, None]).square().sum(-1).amin(2).mean()

    flat = Net(lambda s, x: s.f(x)[:, 0], f=mlp(6, 8, 1))
    assert "broadcast-loss" not in told(flat, [(X, X.sum(1))], ranking)
    points = Net(lambda s, x: s.f(x).view(-1, 4, 2), f=mlp(6, 8, 8))
    assert "broadcast-loss" not in told(points, [(X, normal(32, 5, 2))], chamfer)


def test_copies_of_units_are_told_from_equal_rows_that_part():
    torch.manual_seed(0)
    net = mlp(6, 16, 16, 4)
    nn.init.constant_(net[2].weight, 0.1)  # its units' outgoing weights differ: they part at once
    assert "identical-units" not in told(net, [(X, Y)])
    nn.init.constant_(net[4].weight, 0.1)
    nn.init.constant_(net[2].bias, 0.0)
    assert told(net, [(X, Y)])["identical-units"].layer == "2.weight"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("steps", "ill"), [(12, False), (90, True)])
def test_gradients_through_time(kind, steps, ill):
    torch.manual_seed(0)
    net = recurrent(kind, 3, 24, 4)
    data = [(normal(16, steps, 3), labels(16, classes=4))]
    found = told(net, data)
    assert ("vanishing-gradients" in found) is ill
    if ill:
        x = data[0][0].clone().requires_grad_()
        F.cross_entropy(net(x), data[0][1]).backward()
        norms = x.grad.double().square().sum((0, 2)).sqrt()
        assert found["vanishing-gradients"].value == pytest.approx(float(norms.min() / norms.max()), rel=1e-3)


def test_memory_that_was_never_initialised_is_named_before_any_forward():
    net = mlp(6, 8, 4)
    with torch.no_grad():
        net[2].bias[1] = 1e30
    assert [f.layer for f in diagnose(net, [(X, Y)], "cross_entropy").findings] == ["2.bias"]


def test_what_follows_names_its_cause():
    found = diagnose(mlp(6, 16, 4, phi=nn.Tanh), [(X * 1e4, Y)], "cross_entropy").findings
    assert found[0].code == "input-scale"
    assert found[0].cause == ""
    assert {f.cause for f in found[1:]} == {"input-scale"}


@pytest.mark.parametrize(("scale", "ill"), [(0.1, False), (2.0, False), (100.0, True)])
def test_a_softmax_that_gives_most_classes_to_nobody(scale, ill):
    torch.manual_seed(0)
    net = mlp(6, 16, 10)
    with torch.no_grad():
        net[-1].bias.copy_(torch.linspace(-scale, scale, 10))  # the same classes for every sample
    found = told(net, [(X, labels(32, classes=10, seed=3))])
    assert ("degenerate-softmax" in found) is ill
    if ill:
        assert found["degenerate-softmax"].cause == "initial-loss"


def test_large_logits_that_give_every_class_to_somebody_are_not_degenerate():
    """One-hot outputs, but for different samples different ones."""
    found = told(nn.Sequential(nn.Identity(), nn.Linear(4, 4, bias=False)), [(torch.eye(4).repeat(8, 1) * 50, Y)])
    assert "degenerate-softmax" not in found


@pytest.mark.parametrize("agree", [True, False])
def test_batches_that_pull_in_unlike_directions(agree):
    """A linear model on batches that share no feature: their gradients are at right angles."""
    net = nn.Linear(8, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    targets = torch.tensor([[1.0], [2.0]])
    batches = [(torch.eye(8)[[0, 1] if agree else [2 * i, 2 * i + 1]], targets) for i in range(4)]
    found = diagnose(net, batches, "mse")
    value = next(r.value for r in found.records if r.quantity == "gradient_agreement")
    assert value == pytest.approx(1.0 if agree else 0.0, abs=1e-6)
    assert ("gradient-conflict" in {f.code for f in found.findings}) is not agree
