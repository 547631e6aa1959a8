"""Constrained models in DistributedDataParallel: two processes that end with one and the same zero-sum weight."""

import multiprocessing
import socket

import pytest
import torch
from torch import distributed, nn

from theta0.parametrizations import parametrize_, relative_sums


def replica(rank, port, method, queue):
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(rank)  # the wrapper gives all replicas the values of the first
    net = parametrize_(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 9)), method)
    wrapped = nn.parallel.DistributedDataParallel(net)
    refused = ""
    if method != "lcw":
        try:
            parametrize_(wrapped, method)
        except ValueError as error:
            refused = str(error)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    x = torch.randn(4, 6)
    for _ in range(5):
        optimizer.zero_grad()
        wrapped(x).square().sum().backward()
        optimizer.step()
    queue.put((rank, [net[i].weight.tolist() for i in (0, 2)], float(relative_sums(net[0]).max()), refused))
    distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["lcw", "cwn"])
def test_two_processes(method):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=replica, args=(rank, port, method, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict((rank, rest) for rank, *rest in (queue.get(timeout=60) for _ in processes))
    for process in processes:
        process.join(timeout=60)
    assert found[0][0] == found[1][0]
    assert found[0][1] <= 1e-6
    assert method == "lcw" or "before DistributedDataParallel" in found[0][2]
