"""Optimizers by name, class, factory and instance."""

import pytest
import torch
from torch import nn

from theta0.experiments import optimizer_kind, suggest_learning_rate
from theta0.experiments.optimizers import rate_of


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


def gradients_of(model: nn.Module, batches) -> list[torch.Tensor]:
    model.zero_grad()
    for x, y in batches:
        (nn.functional.cross_entropy(model(x), y) / len(batches)).backward()
    return [p.grad.clone() for p in model.parameters()]


def test_gradients_are_accumulated_over_batches_and_clipped():
    model, other = network(), network()
    parts = list(zip(X.split(16), BATCHES[0][1].split(16), strict=True))
    for accumulate, norm in ((2, None), (4, 0.01)):
        kind = optimizer_kind("sgd", model, clip_norm=norm, accumulate=accumulate)
        theirs, ours = torch.optim.SGD(other.parameters(), 0.1), kind.make(list(model.parameters()), 0.1)
        for start in range(0, 4, accumulate):
            for p, g in zip(other.parameters(), gradients_of(other, parts[start : start + accumulate]), strict=True):
                p.grad = g
            if norm is not None:
                nn.utils.clip_grad_norm_(other.parameters(), norm)
            theirs.step()
        for x, y in parts:
            ours.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            ours.step()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("schedule", "peak"),
    [
        (lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=50), 0.3),
        (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 100)), 0.1),
        (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100), 0.1),
        (lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o), 0.1),
    ],
)
def test_the_rate_of_a_schedule_is_its_highest(schedule, peak):
    model = network()
    factory = lambda p: torch.optim.SGD(p, lr=0.1)  # noqa: E731
    assert rate_of(optimizer_kind(factory, model), None, schedule) == pytest.approx(peak, rel=1e-3)
    assert rate_of(optimizer_kind("sgd", model), 0.1, schedule) == pytest.approx(peak, rel=1e-3)
    instance = factory(model.parameters())
    made = schedule(instance)  # warming up, it has already lowered the instance's rate
    assert optimizer_kind(instance, model).rate == pytest.approx(peak, rel=1e-3)
    assert rate_of(optimizer_kind(instance, model), None, made) == pytest.approx(peak, rel=1e-3)


def test_what_is_done_around_a_step_is_checked():
    for wrong, message in (
        ({"clip_norm": 0.0}, "clip_norm: expected a positive number, got 0.0"),
        ({"accumulate": 0}, "accumulate: expected a number of batches of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizer_kind(torch.optim.SGD(network().parameters(), 0.1), network(), **wrong)
    with pytest.raises(ValueError, match="scheduler: expected a function from an optimizer to a schedule"):
        rate_of(optimizer_kind("sgd", network()), 0.1, lambda optimizer: None)


def test_a_copy_of_the_model_keeps_the_groups_of_an_instance():
    model = network()
    groups = [{"params": [p for p in model.parameters() if p.dim() == d], "weight_decay": d - 1.0} for d in (2, 1)]
    kind = optimizer_kind(torch.optim.AdamW(groups, 0.1), model)
    copied = list(network().parameters())
    made = kind.make(copied, 0.1)
    assert [[p.dim() for p in group["params"]] for group in made.param_groups] == [[2, 2], [1, 1]]
