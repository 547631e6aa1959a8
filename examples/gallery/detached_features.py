"""The encoder does not learn

Symptom: the loss falls a little and stops; the weights of the encoder are the same after training as before.

Cause: the features are detached before they reach the head (`.detach()`, `.data`, `.numpy()` and
`torch.tensor(...)` all do that). The loss depends on the encoder by its value, but no gradient flows back to it.

Fix: do not detach what is to be trained.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIXED = "--fixed" in sys.argv
digits = np.load(Path(__file__).parents[1] / "digits.npz")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8), nn.ReLU())
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        features = self.encoder(x)
        if not FIXED:
            features = features.detach()
        return self.head(features)


torch.manual_seed(0)
x = torch.tensor(digits["images"], dtype=torch.float32).flatten(1) / 16
y = torch.tensor(digits["labels"], dtype=torch.long)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for step in range(200):
    rows = torch.arange(128) + 128 * (step % 13)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
