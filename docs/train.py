import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(256, 8)
y = x.sum(1)

for epoch in range(20):
    for i in range(0, 256, 32):
        optimizer.zero_grad()
        loss = ((model(x[i : i + 32]) - y[i : i + 32]) ** 2).mean()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.2f}")
