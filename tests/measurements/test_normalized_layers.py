"""Which layers a normalization follows before any other weight."""

import pytest
import torch
from torch import nn

from theta0._batches import load_batches
from theta0.diagnosis import diagnose
from theta0.measurements.signals import observed


class WrittenOut(nn.Module):
    """Division by the root mean square, as many language models write it."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        match self.form:
            case "rsqrt":
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            case "sqrt":
                return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            case "std":
                return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
            case "norm":
                return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return x * self.form


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ([nn.BatchNorm1d(16)], {"0"}),
        ([nn.ReLU(), nn.LayerNorm(16)], {"0"}),
        ([nn.BatchNorm1d(16).eval()], set()),
        ([nn.ReLU()], set()),
        ([nn.Linear(16, 16), nn.LayerNorm(16)], {"1"}),
        ([WrittenOut("rsqrt")], {"0"}),
        ([WrittenOut("sqrt")], {"0"}),
        ([WrittenOut("std")], {"0"}),
        ([WrittenOut("norm")], {"0"}),
        ([WrittenOut(2.0)], set()),
    ],
)
def test_normalizations_as_layers_and_written_out(between, expected):
    model = nn.Sequential(nn.Linear(8, 16), *between, nn.Linear(16, 3))
    batches = load_batches([(torch.randn(32, 8), torch.randint(3, (32,)))], model)
    assert observed(model, batches, "cross_entropy").inspection.normalized == expected


def deep(depth, width=64):
    torch.manual_seed(0)
    blocks = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())]
    return nn.Sequential(*blocks, nn.Linear(width, 4))


@pytest.mark.slow
def test_growth_behind_normalizations_is_an_error_only_from_the_higher_threshold():
    batches = [(torch.randn(64, 64), torch.randint(4, (64,)))]
    found = {depth: diagnose(deep(depth), batches, "cross_entropy", probe_steps=0).findings for depth in (4, 45, 75)}
    severity = {d: {f.severity for f in found[d] if f.code == "exploding-gradients"} for d in found}
    assert severity == {4: set(), 45: {"note"}, 75: {"error"}}


def test_small_preactivations_before_a_normalization_are_no_explosion():
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].weight.mul_(1e-7)
        model[0].bias.zero_()
        model[1].eps = 0.0
    batches = [(torch.randn(64, 8), torch.randint(4, (64,)))]
    found = diagnose(model, batches, "cross_entropy", probe_steps=0).findings
    assert "exploding-gradients" not in {f.code for f in found if f.severity == "warning"}
