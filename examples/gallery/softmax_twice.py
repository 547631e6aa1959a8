"""The loss never falls below 1.46

Symptom: accuracy rises, but the loss stays above 1.46 however long the network trains.

Cause: the model ends in a softmax, and the cross entropy applies another one. Probabilities lie between 0 and 1, so the
second softmax can give the right class at most e / (e + 9) = 0.23 of ten classes.

Fix: remove the softmax at the end of the model; `cross_entropy` takes logits.
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
y = torch.tensor(digits["labels"], dtype=torch.long)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10), nn.Identity() if FIXED else nn.Softmax(1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for step in range(300):
    rows = torch.arange(128) + 128 * (step % 13)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
