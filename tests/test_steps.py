"""A step of one's own, batches of any form, a model's own loss, and optimizers as they come."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import normal
from theta0._batches import load_batches
from theta0.diagnosis import diagnose
from theta0.experiments import optimizer_kind, suggest_learning_rate
from theta0.treatment import treat

X, Y = normal(32, 6), torch.arange(32) % 3


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def step(model, batch):
    return F.cross_entropy(model(batch["image"]), batch["meta"][0])


BATCHES = [{"image": X, "meta": (Y, ["a.png"] * 32)}, {"image": 2 * X, "meta": (Y, ["b.png"] * 32)}]


def test_a_step_measures_what_a_loss_does():
    by_step = diagnose(net(), BATCHES, step=step).to_dict()
    by_loss = diagnose(net(), [(X, Y), (2 * X, Y)], "cross_entropy").to_dict()
    assert by_step
    known = {key: value for key, value in by_loss.items() if key in by_step}
    assert {key for key in known if "gradient" in key}
    assert {key: by_step[key] for key in known} == pytest.approx(known, nan_ok=True)


def test_a_step_may_return_a_mapping_as_lightning_does():
    found = diagnose(net(), BATCHES, step=lambda model, batch: {"loss": step(model, batch), "log": {}})
    assert found.to_dict()["loss"] == diagnose(net(), BATCHES, step=step).to_dict()["loss"]


def test_rates_and_treatments_take_steps():
    rate = suggest_learning_rate(net(), BATCHES, step=step, steps=0)
    expected = suggest_learning_rate(net(), [(X, Y), (2 * X, Y)], "cross_entropy", steps=0)
    assert rate.value == pytest.approx(expected.value, rel=0.05)
    assert treat(net(), BATCHES * 2, step=step, steps=2).before.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "mse", "step": step}, "step: expected either loss or step, got both"),
        ({"step": lambda model, batch: 3.0}, "step: expected step.* got float"),
        ({"step": lambda model, batch: batch["nothing"]}, "batch 0: the step raised KeyError"),
    ],
)
def test_steps_that_cannot_be_used(options, message):
    with pytest.raises(ValueError, match=message):
        diagnose(net(), BATCHES, **options)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, left, right=None):
        return self.layer(left if right is None else left + right)


FORMS = {
    "names of files": ((X, Y, ["a.png"] * 32), net()),
    "arrays": ((X.numpy(), Y.numpy()), net()),
    "image and label": ({"image": X, "label": Y}, net()),
    "names of parameters": ({"left": X, "right": X, "category": Y, "path": ["a"] * 32}, Two()),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_batches(name):
    item, model = FORMS[name]
    (batch,) = load_batches([item], model)
    assert torch.equal(batch.targets, Y)
    assert diagnose(model, [item], "cross_entropy").to_dict()["loss"] > 0


def test_what_is_meant_by_three_tensors_is_asked():
    with pytest.raises(ValueError, match=r"batch 0: expected .* got 3 items.*pass step="):
        load_batches([(X, Y, Y)], net())
    with pytest.raises(ValueError, match=r"batch 0: expected a mapping whose keys are forward's parameters .*input"):
        load_batches([{"image": X, "mask": X, "label": Y}], net())


def test_arrays_reach_a_step_as_they_are():
    seen = []

    def arrays(model, batch):
        seen.append(type(batch[0]))
        return F.cross_entropy(model(torch.from_numpy(batch[0])), torch.from_numpy(batch[1]))

    assert diagnose(net(), [(X.numpy(), Y.numpy())], step=arrays).to_dict()["loss"] > 0
    assert set(seen) == {np.ndarray}


class Answers(Two):
    """Returns its own loss, of targets that are not called labels."""

    def forward(self, left, start_positions):
        logits = self.layer(left)
        return {"loss": F.cross_entropy(logits, start_positions), "start_logits": logits}


def test_a_models_own_loss_counts_whatever_its_targets_are_called():
    found = diagnose(Answers(), [{"left": X, "start_positions": Y}])
    assert found.to_dict()["layer.weight/gradient_norm"] > 0
    assert not any("no loss" in line for line in found.not_measured)


def test_without_a_loss_it_is_said_that_gradients_were_not_measured():
    found = diagnose(net(), [X])
    assert len(found.not_measured) == 1
    assert "no loss" in found.not_measured[0]


def own(parameters):
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.5)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (None, ("sgd", None, True)),
        ("AdamW", ("adamw", None, True)),
        ("Adagrad", ("adam", None, False)),
        (torch.optim.RMSprop, ("rmsprop", None, True)),
        (own, ("momentum", 0.3, True)),
        (own(net().parameters()), ("momentum", 0.3, True)),
        (torch.optim.NAdam(net().parameters(), lr=0.2), ("adam", 0.2, False)),
    ],
)
def test_optimizers_as_they_come(optimizer, expected):
    found = optimizer_kind(optimizer, net())
    assert (found.nearest, found.rate, found.settings is not None) == expected


def test_an_optimizers_own_rate_is_judged():
    hot = torch.optim.SGD(net().parameters(), lr=1e4)
    assert "learning-rate-too-high" in {
        f.code for f in diagnose(net(), [(X, Y)], "cross_entropy", optimizer=hot).findings
    }
    strange = diagnose(net(), [(X, Y)], "cross_entropy", optimizer=torch.optim.NAdam(net().parameters(), lr=1e4))
    assert any("NAdam" in line for line in strange.not_measured)


def test_what_is_no_optimizer():
    with pytest.raises(ValueError, match=r"optimizer: expected one of sgd.* got 'lion'"):
        optimizer_kind("lion", net())
    with pytest.raises(ValueError, match=r"optimizer: expected one of sgd.* a function from parameters"):
        optimizer_kind(lambda parameters: 3, net())


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_labels_that_are_places_in_the_batch_stay_with_the_whole_batch(optimizer):
    """As of a contrastive loss: a part of the batch has fewer pairs, and its labels are others."""
    torch.manual_seed(0)
    encoder, views = nn.Linear(8, 4), torch.randn(4, 2, 32, 8)

    def step(model, batch):
        first, second, places = batch
        similar = F.normalize(model(first), dim=1) @ F.normalize(model(second), dim=1).T
        return F.cross_entropy(5 * similar, places)

    batches = [(x, x + 0.1 * y, torch.arange(32)) for x, y in views]
    found = diagnose(encoder, batches, step=step, optimizer=optimizer, learning_rate=1e-2)
    assert found.records
    assert [f.code for f in found.findings if f.severity == "error"] == []
