"""A regression on prices hardly moves

Symptom: the loss of a regression starts at 10 to the power of 11 and falls so slowly that it looks constant.

Cause: the targets are prices in the hundreds of thousands, the outputs are near 1. Adam moves each weight by about the
learning rate in a step, whatever the size of the gradient, so that the outputs would need some hundred thousand steps
to get there.

Fix: standardize the targets (and undo it when you predict).
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIXED = "--fixed" in sys.argv
digits = np.load(Path(__file__).parents[1] / "digits.npz")

torch.manual_seed(0)
x = torch.randn(1664, 6)  # area, rooms, age … , standardized
price = 300_000 + 80_000 * (x[:, 0] + 0.5 * x[:, 1] * x[:, 2] - 0.7 * x[:, 3].relu())
y = (price - price.mean()) / price.std() if FIXED else price
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(200):
    rows = torch.arange(128) + 128 * (step % 13)
    loss = nn.functional.mse_loss(model(x[rows]).squeeze(-1), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
