"""A pre-activation residual CNN of 24 blocks without normalisation, started with He's rule everywhere."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

loss = "cross_entropy"
optimizer = "momentum"
learning_rate = 0.01


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.second(F.relu(self.first(F.relu(x))))


class Residual(nn.Module):
    def __init__(self, width=16, blocks=24):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(F.relu(self.blocks(self.stem(x))).mean((2, 3)))


def model():
    torch.manual_seed(0)
    net = Residual()
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def batches():
    digits = np.load(Path(__file__).with_name("digits.npz"))
    x = torch.tensor(digits["images"], dtype=torch.float32)[:, None]
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits["labels"], dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:512]
    return list(zip(x[order].split(64), y[order].split(64), strict=True))
