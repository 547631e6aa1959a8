"""Gradient accumulation over four micro-batches, a loss scale, clipping and a warm-up."""

import torch
from torch import nn

ACCUMULATE, SCALE = 4, 1024.0
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
criterion = nn.CrossEntropyLoss()
data = torch.randn(960, 12)
labels = data[:, :3].argmax(1)

model.train()
for micro, (x, y) in enumerate(zip(data.split(16), labels.split(16), strict=True)):
    loss = criterion(model(x), y) / ACCUMULATE
    (loss * SCALE).backward()
    if (micro + 1) % ACCUMULATE == 0:
        for p in model.parameters():
            p.grad /= SCALE
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
