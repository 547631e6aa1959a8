"""A siamese network: one embedding called twice, and a contrastive loss."""

import torch
from torch import nn
from torch.nn import functional as F


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x):
        return self.body(x)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=1.0):
        super().__init__()
        self.margin = margin

    def forward(self, a, b, same):
        distance = F.pairwise_distance(a, b)
        return (same * distance**2 + (1 - same) * F.relu(self.margin - distance) ** 2).mean()


torch.manual_seed(3)
net, loss_fn = Embedding(), ContrastiveLoss()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05)
left, right = torch.randn(320, 10), torch.randn(320, 10)
same = torch.rand(320).round()
for epoch in range(2):
    for i in range(0, 320, 32):
        a, b = net(left[i : i + 32]), net(right[i : i + 32])
        loss = loss_fn(a, b, same[i : i + 32])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
