"""A physics-informed network for u'' = -sin(x), with a closure for LBFGS."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)
x = torch.linspace(0, 3.14159, 40).view(-1, 1).requires_grad_(True)
ends = torch.tensor([[0.0], [3.14159]])


def closure():
    optimizer.zero_grad()
    u = net(x)
    (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
    (ddu,) = torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)
    loss = (ddu + torch.sin(x)).pow(2).mean() + net(ends).pow(2).mean()
    loss.backward()
    return loss


for step in range(20):
    optimizer.step(closure)
