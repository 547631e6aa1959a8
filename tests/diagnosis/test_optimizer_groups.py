"""Parameters that the optimizer does not hold."""

import torch
from torch import nn

from cases import unprobed as diagnose

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
DATA = [(X, torch.arange(64) % 3)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def lacking(model, optimizer, data=DATA):
    found = diagnose(model, data, "cross_entropy", optimizer=optimizer).findings
    return [(f.severity, f.layers) for f in found if f.code == "unregistered-parameters"]


def test_a_layer_that_was_replaced_after_the_optimizer_was_made():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    assert lacking(model, optimizer) == []
    model[2] = nn.Linear(16, 3)
    assert lacking(model, optimizer) == [("warning", ("2.weight", "2.bias"))]
    optimizer.add_param_group({"params": model[2].parameters()})
    assert lacking(model, optimizer) == []


def test_what_is_frozen_or_unused_may_be_missing():
    model = network()
    model[0].requires_grad_(False)
    model.spare = nn.Linear(16, 3)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    assert lacking(model, torch.optim.SGD(model[2].parameters(), lr=0.1)) == []


def test_another_optimizer_may_hold_it():
    model = network()
    first, second = (torch.optim.SGD(model[number].parameters(), lr=0.1) for number in (0, 2))
    assert lacking(model, first) == [] == lacking(model, second)


def test_an_optimizer_of_a_copy_says_nothing():
    assert lacking(network(), torch.optim.SGD(network().parameters(), lr=0.1)) == []


def test_a_class_a_name_and_a_factory_hold_all():
    for optimizer in ("adam", torch.optim.Adam, lambda parameters: torch.optim.Adam(parameters, lr=1e-3)):
        assert lacking(network(), optimizer) == []


def test_an_optimizer_made_before_the_only_trained_layer_was_replaced():
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model[2] = nn.Linear(model[2].in_features, model[2].out_features)
    assert lacking(model, optimizer) == [("error", ("2.weight", "2.bias"))]
