import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)
x = torch.randn(200, 8)
y = (x**2).sum(1, keepdim=True)

net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
criterion = nn.MSELoss()
optimizer = optim.Adam(net.parameters(), lr=3e-2)
scheduler = optim.lr_scheduler.StepLR(optimizer, 10)
running_loss = 0.0

for epoch in range(10):
    for i in range(0, 200, 20):
        inputs, labels = x[i : i + 20], y[i : i + 20]
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        running_loss = running_loss + loss.detach()
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, running_loss / 10)
