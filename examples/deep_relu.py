"""Thirty ReLU layers without normalisation and with the default start: the signal dies on the way."""

import torch
from sklearn.datasets import load_digits
from torch import nn

loss = "cross_entropy"
optimizer = "momentum"
learning_rate = 0.003


def model():
    torch.manual_seed(0)
    hidden = [part for _ in range(29) for part in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


def batches():
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32)
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1024]
    return list(zip(x[order].split(128), y[order].split(128), strict=True))
