"""Weight decay that leaves nothing to be learned is named, with the run without it; usual decay is not."""

import pytest
import torch
from torch import nn

from theta0.diagnosis import diagnose

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(128, 20, generator=GENERATOR)
Y = (X[:, :3].sum(1) > 0).long()
BATCHES = [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 128, 32)]


def findings(optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = diagnose(model, BATCHES, "cross_entropy", optimizer=optimizer(model.parameters()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.cost <= 120
    return {f.code: f for f in found.findings if f.severity != "note"}


STRONG = {
    "adam": lambda p: torch.optim.Adam(p, 1e-3, weight_decay=0.5),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.5),
    "beside the gradient": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=50.0),
    "in one group": lambda p: torch.optim.Adam([{"params": list(p), "weight_decay": 0.5}], 1e-3),
}
USUAL = {
    "adam": lambda p: torch.optim.Adam(p, 1e-3, weight_decay=1e-2),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3, weight_decay=0.5),
    "none": lambda p: torch.optim.Adam(p, 1e-3),
}


@pytest.mark.parametrize("name", STRONG)
def test_strong_decay_is_the_first_finding(name):
    found = findings(STRONG[name])
    assert next(iter(found)) == "loss-terms"
    assert "Weight decay holds the network back" in found["loss-terms"].message


@pytest.mark.parametrize("name", USUAL)
def test_usual_decay_is_none(name):
    assert findings(USUAL[name]) == {}
