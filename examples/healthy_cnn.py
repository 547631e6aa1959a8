"""A small CNN with batch normalisation: nothing to find."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

loss = "cross_entropy"
optimizer = "momentum"
learning_rate = 0.05


def model():
    torch.manual_seed(0)

    def stage(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *stage(1, 16),
        *stage(16, 32),
        nn.MaxPool2d(2),
        *stage(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def batches():
    digits = np.load(Path(__file__).with_name("digits.npz"))
    x = torch.tensor(digits["images"], dtype=torch.float32)[:, None]
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits["labels"], dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1024]
    return list(zip(x[order].split(128), y[order].split(128), strict=True))
