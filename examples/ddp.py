"""A training script of several processes, for `torchrun`: each has its own part of the data.

    torchrun --nproc-per-node 2 -m theta0 diagnose examples/ddp.py -- --lr 0.1

By itself it trains: `torchrun --nproc-per-node 2 examples/ddp.py`.
"""

import argparse

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")
    try:
        torch.manual_seed(0)
        x = torch.randn(1024, 16)
        data = TensorDataset(x, (x @ torch.randn(16, 4)).argmax(1))
        layers = [part for _ in range(arguments.depth) for part in (nn.Linear(16, 16), nn.ReLU())]
        model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(16, 4)))
        optimizer = torch.optim.SGD(model.parameters(), arguments.lr, momentum=0.9)
        torch.manual_seed(distributed.get_rank())
        sampler = DistributedSampler(data)
        for epoch in range(arguments.epochs):
            sampler.set_epoch(epoch)
            for inputs, targets in DataLoader(data, 32, sampler=sampler):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
            if distributed.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3f}")
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
