"""Optimizers by name, class, factory and instance."""

import pytest
import torch
from torch import nn

from theta0.experiments import optimizer_kind, suggest_learning_rate


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
BATCHES = [(X, (X.sum(1) > 0).long())]


def test_an_instance_is_mirrored_with_its_groups_and_left_alone():
    model = network()
    theirs = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.1, "weight_decay": 0.0},
            {"params": model[2].parameters(), "lr": 0.02, "betas": (0.8, 0.99)},
        ],
        lr=0.5,
        weight_decay=0.3,
    )
    kind = optimizer_kind(theirs, model)
    made = kind.make(list(model.parameters()), 1.0)
    assert made is not theirs
    assert type(made) is torch.optim.AdamW
    assert [group["lr"] for group in made.param_groups] == pytest.approx([1.0, 0.2])
    assert [group["weight_decay"] for group in made.param_groups] == [0.0, 0.3]
    assert made.param_groups[1]["betas"] == (0.8, 0.99)
    assert made.param_groups[1]["params"][0] is model[2].weight
    assert [group["lr"] for group in theirs.param_groups] == [0.1, 0.02]
    assert kind.name == "adamw"
    assert kind.settings.betas == (0.9, 0.999)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (torch.optim.Adam, "adam"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, nesterov=True), "momentum"),
        (torch.optim.Adamax, "Adamax"),
    ],
)
def test_classes_and_factories_are_suggested_a_rate_that_trains(optimizer, name):
    model = network()
    found = suggest_learning_rate(model, BATCHES, "cross_entropy", optimizer, generator=0)
    assert found.optimizer == name
    assert found.proven
    run = next(run for run in found.runs if run.rate == found.value)
    assert run.losses[-1] < 0.8 * run.losses[0]


def test_named_and_mirrored_optimizers_get_the_same_rate():
    model = network()
    named = suggest_learning_rate(model, BATCHES, "cross_entropy", "momentum", generator=0)
    theirs = torch.optim.SGD(model.parameters(), lr=123.0, momentum=0.9)
    mirrored = suggest_learning_rate(model, BATCHES, "cross_entropy", theirs, generator=0)
    assert mirrored.value == named.value
    assert theirs.param_groups[0]["lr"] == 123.0
    assert not theirs.state


def test_anything_else_is_refused(unchecked):
    with pytest.raises(ValueError, match="optimizer: expected one of sgd"):
        optimizer_kind(3, network())
