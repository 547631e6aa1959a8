"""Weights that a script changes between its optimizer's steps: what takes the steps back, and what leaves them."""

import pytest
import torch

import theta0
from theta0.measurements.taken_back import StepValues, way_back

LOOP = """
import copy
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
target = copy.deepcopy(net).requires_grad_(False)
mean = {{name: value.clone() for name, value in net.state_dict().items()}}
optimizer = torch.optim.{optimizer}(net.parameters(), 1e-2)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)

def follow(one, other, share):
    with torch.no_grad():
        for p, q in zip(one.parameters(), other.parameters()):
            p.mul_(1 - share).add_(q, alpha=share)

def average():
    for name, value in net.state_dict().items():
        mean[name].mul_(0.99).add_(value, alpha=0.01)

def drawn():
    for layer in net[::2]:
        nn.init.xavier_uniform_(layer.weight)

for number in range(10):
    part = slice(number * 32, number * 32 + 32)
    loss = nn.functional.cross_entropy(net(x[part]), y[part])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
ILL = {
    "the wrong way round": ("follow(net, target, 0.995)", "error", "p.mul_(1 - share)"),
    "slowly the wrong way round": ("follow(net, target, 0.01)", "warning", "p.mul_(1 - share)"),
    "averages loaded": ("average(), net.load_state_dict(mean)", "error", "net.load_state_dict(mean)"),
    "initialized again": ("drawn()", "error", "xavier_uniform_"),
    "data set": (
        "[setattr(p, 'data', q.data.clone()) for p, q in zip(net.parameters(), target.parameters())]",
        "error",
        "",
    ),
}
HEALTHY = {
    "target follows": "follow(target, net, 0.995)",
    "averages kept": "average()",
    "clipped": "[p.data.clamp_(-0.05, 0.05) for p in net.parameters()]",
    "normalized": "net[0].weight.data.div_(net[0].weight.data.norm(dim=1, keepdim=True))",
    "decayed": "[p.data.mul_(0.99) for p in net.parameters()]",
    "pruned": "[p.data.mul_((torch.arange(p.numel()) % 2).reshape(p.shape)) for p in net.parameters()]",
    "noise": "[p.data.add_(1e-3 * torch.randn_like(p)) for p in net.parameters()]",
    "averaged for a look": "old = copy.deepcopy(net.state_dict()); net.load_state_dict(mean); net.load_state_dict(old)",
}


def found(tmp_path, optimizer, after):
    path = tmp_path / "train.py"
    path.write_text(LOOP.format(optimizer=optimizer, after=after))
    (step,) = theta0.capture(path).steps
    findings = theta0.diagnose(**step.arguments, probe_steps=0).findings
    return [f for f in findings if f.code == "lost-gradient"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", ILL)
def test_steps_that_are_taken_back_are_found_with_their_line(name, optimizer, tmp_path):
    after, severity, line = ILL[name]
    (finding,) = found(tmp_path, optimizer, after)
    assert finding.severity == severity
    assert "0.weight" in finding.message
    assert line in finding.source_line
    assert finding.source_line.startswith("train.py:")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", HEALTHY)
def test_changes_that_lead_elsewhere_are_no_finding(name, optimizer, tmp_path):
    assert found(tmp_path, optimizer, HEALTHY[name]) == []


def test_the_way_back_is_measured_to_the_nearest_reference():
    start, before, after = torch.ones(8), torch.arange(8.0), torch.arange(8.0) ** 2
    assert way_back([start, before], after, after)[0] == 0
    assert way_back([start], after, after + 0.5 * (start - after))[0] == pytest.approx(0.5)
    assert way_back([start, before], after, before)[0] == pytest.approx(1)
    assert way_back([start, before], after, 3 * after) == (0.0, True)
    assert way_back([torch.zeros(8)], after, 0.9 * after)[0] == 0  # decay, of what started at zero
    assert way_back([torch.ones(1)], torch.zeros(1), torch.ones(1)) == (0.0, False)


def test_one_change_is_no_habit():
    values, p = StepValues(), torch.ones(8)
    for _ in range(2):
        values.begins([p])
        p = p + torch.arange(8.0)
        values.ends([p])
        p = torch.ones(8)
    assert values.taken_back(["p"], [""]) == ()
    values.begins([p])
    (one,) = values.taken_back(["p"], ["line"])
    assert (one.parameter, one.share, one.overwritten, one.weight, one.line) == ("p", 1.0, True, 1.0, "line")
