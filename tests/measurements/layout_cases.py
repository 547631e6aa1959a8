"""Networks that compute the same kind of thing with their samples along different axes."""

import torch
from torch import nn

WIDTH = 8


class Sequences(nn.Module):
    """Linear layers over samples × length × width, or with the length first."""

    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        self.one, self.other, self.head = (nn.Linear(WIDTH, width) for width in (WIDTH, WIDTH, 3))

    def forward(self, x):
        length = x.shape[1]
        if self.layout != "batch first":
            x = x.transpose(0, 1)
        if self.layout == "folded":
            x = x.flatten(0, 1)
        x = self.other(self.one(x).tanh()).tanh()
        if self.layout == "folded":
            x = x.view(length, -1, WIDTH)
        return self.head(x.mean(1 if self.layout == "batch first" else 0))


class Attention(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=batch_first)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = self.layer(x) if self.batch_first else self.layer(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x.mean(1))


LAYOUTS = {
    "batch first": lambda: Sequences("batch first"),
    "sequence first": lambda: Sequences("sequence first"),
    "folded": lambda: Sequences("folded"),
    "attention, batch first": lambda: Attention(True),
    "attention, sequence first": lambda: Attention(False),
}


def built(layout, length, samples):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LAYOUTS[layout]().double(), torch.randn(samples, length, WIDTH, dtype=torch.float64)
