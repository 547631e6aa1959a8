"""Thirty ReLU layers without normalisation and with the default start: the signal dies on the way."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

loss = "cross_entropy"
optimizer = "momentum"
learning_rate = 0.003


def model():
    torch.manual_seed(0)
    hidden = [part for _ in range(29) for part in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(64, 10))


def batches():
    digits = np.load(Path(__file__).with_name("digits.npz"))
    x = torch.tensor(digits["images"], dtype=torch.float32).flatten(1)
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits["labels"], dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1024]
    return list(zip(x[order].split(128), y[order].split(128), strict=True))
