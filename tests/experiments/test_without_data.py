"""Outputs without the data, and after a training that breaks."""

import pytest
import torch
from torch import nn

from theta0._batches import load_batches
from theta0.experiments.held_out import outputs_after_training
from theta0.experiments.optimizers import optimizer_kind
from theta0.experiments.zero_inputs import changed_without_data

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Mapped(nn.Module):
    """Takes amounts, codes and a switch by name."""

    def __init__(self, *, codes):
        super().__init__()
        self.embedding, self.layer, self.codes = nn.Embedding(16, 4), nn.Linear(4, 2), codes

    def forward(self, x, codes, switch):
        return self.layer(self.embedding(codes) if self.codes else x)


class Refuses(nn.Linear):
    """Divides by the size of its input, and says so where that is zero."""

    def forward(self, x):
        if not x.any():
            raise ValueError("x: expected something else than zeros")
        return super().forward(x)


class Chosen(nn.Linear):
    """Outputs of the samples that are not zero alone."""

    def forward(self, x):
        return super().forward(x[x.abs().sum(1) > 0])


def batch_of(model, inputs):
    (batch,) = load_batches([(inputs, Y)], model)
    return batch


@pytest.mark.parametrize("codes", [False, True])
def test_zeros_and_the_next_samples_codes_change_what_depends_on_them(codes):
    torch.manual_seed(0)
    model = Mapped(codes=codes)
    inputs = {"x": X, "codes": torch.arange(16), "switch": torch.tensor(True)}
    given = model(**inputs).detach().double()
    without = model(torch.zeros_like(X), torch.arange(16).roll(1), torch.tensor(True)).detach().double()
    expected = float((given - without).square().mean().sqrt() / given.square().mean().sqrt())
    assert changed_without_data(model, batch_of(model, inputs)) == pytest.approx(expected)


@pytest.mark.parametrize("model", [Refuses(4, 2), Chosen(4, 2)], ids=["refused", "another shape"])
def test_nothing_is_known_of_a_model_that_takes_no_zeros(model):
    assert changed_without_data(model, batch_of(model, X)) is None


def test_outputs_after_a_training_that_diverges_or_raises_are_none():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    data = load_batches([(X, Y)], model)
    kind = optimizer_kind("sgd", model)
    (outputs,) = outputs_after_training(model, data, data, "cross_entropy", kind, 0.1, steps=3)
    assert outputs.shape == (16, 2)
    assert outputs_after_training(model, data, data, "cross_entropy", kind, 1e38, steps=5) is None
    wrong = load_batches([(X[:, :3], Y)], model)
    assert outputs_after_training(model, data, wrong, "cross_entropy", kind, 0.1, steps=3) is None
    assert torch.equal(model.weight, before)
