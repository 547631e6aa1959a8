"""Layers in execution order, whatever the order of registration, and what is known of each."""

import pytest
import torch
from torch import nn

from cases import case, each_case
from theta0._batches import load_batches, with_shapes
from theta0._models import unwrapped
from theta0._trace.layers import layers, tied_parameters


def found_in(c):
    model = unwrapped(c.model())
    batches = load_batches(c.batches(), model)
    model = with_shapes(model, batches[0])
    return model, layers(model, batches[0])


@each_case
def test_layers_in_execution_order_with_kinds(case):
    _, found = found_in(case)
    assert tuple((layer.path, layer.kind) for layer in found) == case.layers


@each_case
def test_parameters_behind_a_layer_exist(case):
    model, found = found_in(case)
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for layer in found:
        assert layer.parameters
        assert set(layer.parameters) <= names


def test_fan_in_counts_the_inputs_of_one_unit():
    fans = {layer.path: layer.fan_in for layer in found_in(case("cnn"))[1]}
    assert fans == {"0": 2 * 9, "2": 2 * 9, "4": 3, "8": 24}
    fans = {layer.path: layer.fan_in for layer in found_in(case("other convolutions"))[1]}
    assert fans == {"0": 6, "2": 4 * 3 // 2, "5": 2 * 2 * 3, "7": 18}
    fans = {layer.path: layer.fan_in for layer in found_in(case("bare"))[1]}
    assert fans == {"first": 6, "second": 8}
    assert found_in(case("lstm"))[1][0].fan_in == 1


@pytest.mark.parametrize(
    ("name", "path", "nonlinearity"),
    [
        ("mlp", "0", "relu"),
        ("in place", "0", "relu"),
        ("functional", "first", "tanh"),
        ("functional", "middle", "sigmoid"),
        ("functional", "last", None),
        ("tuple output", "body", "gelu"),
        ("own loss", "body", "silu"),
        ("norm and dropout", "0", "relu"),  # through batch normalisation
        ("two inputs", "right", "relu"),
        ("transformer, batch first", "encoder.layers.0.linear1", "relu"),
    ],
)
def test_the_nonlinearity_that_follows(name, path, nonlinearity):
    found = {layer.path: layer.nonlinearity for layer in found_in(case(name))[1]}
    assert found[path] == nonlinearity


def test_calls_are_counted():
    assert {layer.path: layer.calls for layer in found_in(case("twice"))[1]} == {"shared": 2, "head": 1}


def test_tied_frozen_and_parametrized_are_told():
    model, found = found_in(case("tied"))
    assert {layer.path for layer in found if layer.tied} == {"embed", "head"}
    assert tied_parameters(model) == dict.fromkeys(("embed.weight", "head.weight"), ("embed.weight", "head.weight"))
    assert [layer.frozen for layer in found_in(case("frozen"))[1]] == [True, False, False]
    for name in ("weight_norm", "weight_norm, old", "spectral_norm", "spectral_norm, old"):
        assert [layer.parametrized for layer in found_in(case(name))[1]] == [True, True, False], name
    assert [layer.parametrized for layer in found_in(case("constrained"))[1]] == [True, True, False]


def test_a_layer_never_reached_is_not_listed():
    model, found = found_in(case("functional"))
    names = {name for name, _ in model.named_parameters() if name.endswith("weight")}
    assert names - {name for layer in found for name in layer.parameters} == {"never.weight"}


def test_two_names_of_one_module_are_one_layer():
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    batch = load_batches([torch.ones(2, 4)], model)[0]
    assert [(layer.path, layer.calls) for layer in layers(model, batch)] == [("0", 2)]


def test_frozen_weight_behind_a_parametrization_is_frozen():
    c = case("constrained")
    model = c.model()
    model[0].parametrizations.weight.original.requires_grad_(False)
    batch = load_batches(c.batches(), model)[0]
    assert [layer.frozen for layer in layers(model, batch)] == [True, False, False]
