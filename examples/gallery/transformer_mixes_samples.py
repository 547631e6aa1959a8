"""A transformer reads other samples

Symptom: training is slow, and predictions for one sample change with the other samples in the batch.

Cause: `nn.TransformerEncoderLayer` expects (sequence, batch, features) unless `batch_first=True` is given. The data are
(batch, sequence, features), so that attention runs over the samples of the batch instead of the tokens of one sample.

Fix: `batch_first=True`.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

FIXED = "--fixed" in sys.argv
digits = np.load(Path(__file__).parents[1] / "digits.npz")


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 32)
        self.position = nn.Parameter(0.02 * torch.randn(8, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=FIXED)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, rows):
        return self.head(self.encoder(self.embed(rows) + self.position).mean(1))


torch.manual_seed(0)
x = torch.tensor(digits["images"], dtype=torch.float32) / 16  # eight rows of eight pixels: tokens
y = torch.tensor(digits["labels"], dtype=torch.long)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for step in range(150):
    rows = torch.arange(128) + 128 * (step % 13)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
