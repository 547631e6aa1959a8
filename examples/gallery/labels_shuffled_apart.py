"""Labels were shuffled without their inputs

Symptom: the loss falls to ln 10 and then only as fast as the network can memorize; validation accuracy stays at chance.

Cause: inputs and labels were shuffled by two different permutations, so that each image has another image's label.

Fix: use one permutation for both.
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
order = torch.randperm(len(x))
x = x[order]
y = y[order if FIXED else torch.randperm(len(x))]
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for step in range(200):
    rows = torch.arange(128) + 128 * (step % 13)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
