"""Half of the layers are not trained

Symptom: the network learns something, then stays at a loss that a smaller network reaches too; the checkpoint misses
layers.

Cause: layers are kept in a plain Python list. `model.parameters()` does not find them, so the optimizer does not hold
them, `state_dict` does not save them, and they stay as they were initialized.

Fix: keep them in `nn.ModuleList`.
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
        layers = [nn.Linear(64, 64) for _ in range(6)]
        self.layers = nn.ModuleList(layers) if FIXED else layers
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


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
