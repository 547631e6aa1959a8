"""The first loss is fine, the second is NaN

Symptom: the loss of the first step is an ordinary number; from the second step on it is NaN.

Cause: the loss takes the root of a squared distance that is exactly zero for some samples. The root of 0 is 0, but its
slope there is infinite, and infinity times 0 is NaN: the backward pass spoils all weights although the forward pass was
fine.

Fix: add a small number inside the root.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIXED = "--fixed" in sys.argv
digits = np.load(Path(__file__).parents[1] / "digits.npz")

torch.manual_seed(0)
x = torch.tensor(digits["images"], dtype=torch.float32).flatten(1) / 16
x[::50] = 0.0  # some images are blank
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for layer in (model[0], model[2]):
    nn.init.zeros_(layer.bias)

for step in range(150):
    rows = torch.arange(128) + 128 * (step % 13)
    squared = (model(x[rows]) - x[rows]).square().sum(1)
    loss = (squared + 1e-8 if FIXED else squared).sqrt().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
