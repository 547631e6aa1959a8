"""A deep sigmoid network that does not move: 20 hidden layers of 64 units with the default start."""

from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import nn

loss = "cross_entropy"
optimizer = "momentum"
learning_rate = 0.1


def model():
    torch.manual_seed(0)
    widths = [64] * 21
    hidden = [part for i, o in pairwise(widths) for part in (nn.Linear(i, o), nn.Sigmoid())]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


def batches():
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32)
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1024]
    return list(zip(x[order].split(128), y[order].split(128), strict=True))
