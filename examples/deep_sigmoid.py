"""A deep sigmoid network that does not move: 20 hidden layers of 64 units with the default start."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
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
    digits = np.load(Path(__file__).with_name("digits.npz"))
    x = torch.tensor(digits["images"], dtype=torch.float32).flatten(1)
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits["labels"], dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1024]
    return list(zip(x[order].split(128), y[order].split(128), strict=True))
