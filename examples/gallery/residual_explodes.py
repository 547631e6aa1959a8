"""A residual network without normalization explodes

Symptom: the first loss is in the thousands, or infinite; training starts with huge steps.

Cause: each of 24 residual blocks adds a branch with the same variance as its input, so that the variance doubles from
block to block: 2 to the power of 24 at the end.

Fix: scale the end of each of L branches by 1 / √L (branch scaling), as `theta0 treat` does; or add normalization.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIXED = "--fixed" in sys.argv
digits = np.load(Path(__file__).parents[1] / "digits.npz")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(torch.relu(x))))


torch.manual_seed(0)
x = torch.tensor(digits["images"], dtype=torch.float32).flatten(1)
x = (x - x.mean()) / x.std()
y = torch.tensor(digits["labels"], dtype=torch.long)
model = nn.Sequential(*(Block(64) for _ in range(24)), nn.ReLU(), nn.Linear(64, 10))
for layer in model.modules():
    if isinstance(layer, nn.Linear):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
if FIXED:
    with torch.no_grad():
        for block in model[:24]:
            block.second.weight /= 24**0.5
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

for step in range(150):
    rows = torch.arange(128) + 128 * (step % 13)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
