"""Logits whose axes a reshape mixes before a classification loss, and all the layouts that are right."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import normal
from cases import unprobed as diagnose

N, L, C = 8, 12, 3
X = normal(N, L, 5)
Y = X[..., :C].argmax(-1)


class Tagger(nn.Module):
    """One prediction for each position, in the layout of one of several heads."""

    def __init__(self, head):
        super().__init__()
        self.body, self.head = nn.Linear(5, 16), head
        self.linear, self.conv, self.wide = nn.Linear(16, C), nn.Conv1d(16, C, 1), nn.Linear(16 * L, C * L)
        self.twice = nn.Linear(16, 2 * C)

    def forward(self, x):
        return self.head(self, self.body(x).tanh())


def cross(logits, y):
    return F.cross_entropy(logits, y)


def by_conv(net, h):
    return net.conv(h.transpose(1, 2))


MIXED = {
    "reshaped without moving": (by_conv, lambda out, y: cross(out.reshape(-1, C), y.reshape(-1))),
    "viewed, then logarithms": (
        lambda net, h: F.log_softmax(by_conv(net, h).view(N * L, C), 1),
        lambda out, y: F.nll_loss(out, y.flatten()),
    ),
    "viewed instead of transposed": (lambda net, h: net.linear(h).view(N, C, L), cross),
    "flattened the wrong way round": (
        lambda net, h: net.linear(h).transpose(1, 2).reshape(-1, C),
        lambda out, y: cross(out, y.reshape(-1)),
    ),
}
RIGHT = {
    "flattened": (lambda net, h: net.linear(h), lambda out, y: cross(out.reshape(-1, C), y.reshape(-1))),
    "transposed": (lambda net, h: net.linear(h).transpose(1, 2), cross),
    "as a convolution gives it": (by_conv, cross),
    "moved and flattened": (by_conv, lambda out, y: cross(out.movedim(1, -1).reshape(-1, C), y.reshape(-1))),
    "permuted, viewed": (by_conv, lambda out, y: cross(out.permute(0, 2, 1).contiguous().view(-1, C), y.view(-1))),
    "one wide layer": (lambda net, h: net.wide(h.flatten(1)).view(N, L, C), lambda out, y: cross(out.mT, y)),
    "one wide layer, classes first": (lambda net, h: net.wide(h.flatten(1)).view(N, C, L), cross),
    "heads, averaged": (lambda net, h: net.twice(h).view(N, L, 2, C).mean(2), lambda out, y: cross(out.mT, y)),
    "a part of the units": (lambda net, h: net.twice(h)[..., :C].reshape(-1, C), lambda out, y: cross(out, y.view(-1))),
    "chosen positions": (lambda net, h: net.linear(h), lambda out, y: cross(out[y > 0].view(-1, C), y[y > 0])),
    "positions first": (
        lambda net, h: net.linear(h.transpose(0, 1)),
        lambda out, y: cross(out.reshape(-1, C), y.T.reshape(-1)),
    ),
}


def mismatches(name, table, *, step):
    head, loss = table[name]
    torch.manual_seed(0)
    model = Tagger(head)
    if step:
        found = diagnose(model, [(X, Y)] * 2, step=lambda model, batch: loss(model(batch[0]), batch[1]))
    else:
        found = diagnose(model, [(X, Y)] * 2, loss)
    return [f for f in found.findings if f.code == "loss-mismatch"]


@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_numbers_of_several_places_that_stand_for_the_classes_of_one_are_an_error(name, step):
    (found,) = mismatches(name, MIXED, step=step)
    assert found.severity == "error"
    assert "moves no axis" in found.message
    assert found.source_line


@pytest.mark.sampled(22)
@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_every_layout_that_keeps_the_classes_of_a_place_together_is_none(name, step):
    assert mismatches(name, RIGHT, step=step) == []
