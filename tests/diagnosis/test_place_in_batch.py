"""Outputs that depend on a sample's place in the batch, and those that only seem to."""

import pytest
import torch
from torch import nn

from cases import normal
from cases import unprobed as diagnose

X = normal(32, 6, 8)
Y = X[:, :, 0].mean(1, keepdim=True)


class Encoded(nn.Module):
    """A sequence network that adds, or multiplies by, numbers along one of the axes; mean over positions at the end."""

    def __init__(self, change):
        super().__init__()
        self.change, self.first, self.last = change, nn.Linear(8, 16), nn.Linear(16, 1)
        self.register_buffer("table", torch.randn(50, 1, 16, generator=torch.Generator().manual_seed(0)))
        self.learned = nn.Parameter(torch.randn(50, 16, generator=torch.Generator().manual_seed(1)))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        return self.last(torch.tanh(self.change(self, self.first(x))).mean(1))


ILL = {
    "added along the batch": lambda net, h: h + net.table[: len(h)],
    "learned, along the batch": lambda net, h: h + net.learned[: len(h), None],
    "multiplied along the batch": lambda net, h: h * (1 + net.table[: len(h)]),
    "numbered along the batch": lambda net, h: h + torch.arange(len(h))[:, None, None] / len(h),
}
HEALTHY = {
    "added along positions": lambda net, h: h + net.table[: h.shape[1]].transpose(0, 1),
    "learned, along positions": lambda net, h: h + net.learned[: h.shape[1]],
    "dropout": lambda net, h: net.dropout(h),
    "noise that is always on": lambda net, h: h + 0.1 * torch.randn_like(h),
    "dropout that is always on": lambda net, h: nn.functional.dropout(h, 0.3, training=True),
    "a mean of the sample": lambda net, h: h - h.mean(1, keepdim=True),
}


def found(change):
    torch.manual_seed(0)
    codes = diagnose(Encoded(change), [(X, Y)] * 2, "mse").findings
    return [f for f in codes if f.code == "mixed-samples"]


@pytest.mark.parametrize("name", ILL)
def test_what_lies_along_the_batch_is_an_error_with_its_line(name):
    (finding,) = found(ILL[name])
    assert finding.severity == "error"
    assert "place in the batch" in finding.message
    assert "lambda net, h" in finding.source_line


@pytest.mark.parametrize("name", HEALTHY)
def test_positions_and_noise_are_none(name):
    assert found(HEALTHY[name]) == []
