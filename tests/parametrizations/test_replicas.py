"""Constrained models in DistributedDataParallel: two processes that end with one and the same zero-sum weight."""

import pytest
import torch
from torch import nn

from ranks import needs_gloo, on_ranks
from theta0.parametrizations import parametrize_, relative_sums, remove_

pytestmark = needs_gloo


def replica(rank, method, wrapped_first):
    torch.manual_seed(rank)  # the wrapper gives all replicas the values of the first
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 9))
    wrapped = nn.parallel.DistributedDataParallel(net if wrapped_first else parametrize_(net, method))
    heard = []
    net[0].bias.register_post_accumulate_grad_hook(lambda p: heard.append(p))

    def train(steps=3):
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            wrapped(torch.randn(4, 6)).square().sum().backward()
            optimizer.step()

    if wrapped_first:
        train()
        own = next(net.parameters())
        own.register_post_accumulate_grad_hook(lambda p: heard.append(p))
        parametrize_(wrapped, method)
        assert any(p is own for p in net.parameters())
    refused = ""
    if method not in ("lcw", "spectral-norm"):
        try:
            parametrize_(wrapped, method)
        except ValueError as error:
            refused = str(error)
    train()
    weights, sums = [net[i].weight.tolist() for i in (0, 2)], float(relative_sums(net[0]).max())
    if wrapped_first:
        remove_(wrapped)
        train()
        assert len(heard) == 3 + 2 * 6  # steps: the bias before, both parameters since
    return weights, sums, refused


@pytest.mark.parametrize(
    ("method", "wrapped_first"), [("lcw", False), ("lcw", True), ("spectral-norm", True), ("cwn", False)]
)
def test_two_processes(method, wrapped_first):
    first, other = on_ranks(2, replica, method, wrapped_first)
    assert first[0] == other[0]
    assert method == "spectral-norm" or first[1] <= 1e-6
    assert method != "cwn" or "before DistributedDataParallel wraps it: Dist" in first[2]
