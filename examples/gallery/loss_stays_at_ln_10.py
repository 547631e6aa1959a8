"""The loss stays at 2.30

Symptom: ten classes, and the loss stays at 2.30 = ln 10 from the first step to the last, at every learning rate.

Cause: twenty sigmoid layers with PyTorch's default initialization. A sigmoid's output has mean 0.5, not 0. Each layer
multiplies this mean by the sum of its weights, so that after a few layers nearly all of the signal is the same for
every sample (activation shift), and the gradient vanishes.

Fix: constrain the weights of each unit to sum to zero (LCW) and rescale each layer to unit variance. `theta0 treat`
does both; here the two lines under `if FIXED`.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIXED = "--fixed" in sys.argv
digits = np.load(Path(__file__).parents[1] / "digits.npz")

torch.manual_seed(0)
x = torch.tensor(digits["images"], dtype=torch.float32).flatten(1)
x = (x - x.mean()) / x.std()
y = torch.tensor(digits["labels"], dtype=torch.long)

hidden = [part for _ in range(20) for part in (nn.Linear(64, 64), nn.Sigmoid())]
model = nn.Sequential(*hidden, nn.Linear(64, 10))
if FIXED:
    import theta0

    theta0.parametrize_(model, "lcw")
    theta0.initializers.unit_variance_(model, [x[:256]])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for step in range(150):
    rows = torch.arange(128) + 128 * (step % 13)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
