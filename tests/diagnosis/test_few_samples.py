"""Batches that hold the same few samples again and again are named; samples that merely repeat are not."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from cases import unprobed as diagnose

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(400, 6, generator=GENERATOR)
Y = (X[:, 0] > 0.8).long() + (X[:, 0] > -0.8).long()


def loader(sampler=None, x=X, y=Y, **options):
    torch.manual_seed(0)
    return list(DataLoader(TensorDataset(x, y), batch_size=64, sampler=sampler, **options))[:4]


def by_class(one_a_sample):
    weights = 400.0 / torch.bincount(Y)
    return WeightedRandomSampler(weights[Y] if one_a_sample else weights, num_samples=400, replacement=True)


def said(batches):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return [f.message for f in diagnose(model, batches, "cross_entropy").findings if f.code == "no-signal"]


def test_a_sampler_that_is_given_one_weight_a_class():
    (message,) = said(loader(by_class(one_a_sample=False)))
    assert "WeightedRandomSampler takes one weight a sample" in message
    assert said(loader(by_class(one_a_sample=True))) == []


SIGNS = X[:, :2].sign()
HEALTHY = {
    "the whole data set at each step": lambda: [(X[:64], Y[:64])] * 4,
    "drawn with replacement": lambda: loader(WeightedRandomSampler(torch.ones(400), 400)),
    "few different inputs by nature": lambda: loader(x=SIGNS.repeat(1, 3), y=(SIGNS.prod(1) > 0).long(), shuffle=True),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_samples_that_repeat_for_other_reasons(name):
    assert said(HEALTHY[name]()) == []
