"""A regression predicts the mean for every sample

Symptom: the loss of a regression falls to the variance of the targets and stays there; all predictions are equal.

Cause: the model's output has shape (N, 1) and the targets have shape (N,). Their difference is broadcast to (N, N):
every output is compared with every target, and the best that can be done is the mean.

Fix: give both the same shape.
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
y = torch.tensor(digits["labels"], dtype=torch.float32)
y = (y - y.mean()) / y.std()
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(200):
    rows = torch.arange(128) + 128 * (step % 13)
    outputs = model(x[rows])
    loss = ((outputs.squeeze(-1) if FIXED else outputs) - y[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
