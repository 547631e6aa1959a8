"""Gradients that a script never resets: each step then follows the sum of all gradients so far."""

import pytest

import theta0
from theta0.measurements.observed_training import ObservedTraining

LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
body, head = nn.Sequential(nn.Linear(8, 32), nn.Tanh()), nn.Linear(32, 3)
net = nn.Sequential(body, head)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(640, 8)
y = x[:, :3].argmax(1)
for number in range(40):
    part = slice(number * 32 % 640, number * 32 % 640 + 32)
    {before}
    loss = nn.functional.cross_entropy(net(x[part]), y[part])
    loss.backward()
    {after}
"""
ADVERSARIES = """
import torch
from torch import nn
torch.manual_seed(0)
maker, critic = nn.Linear(4, 8), nn.Linear(8, 1)
first, second = torch.optim.Adam(maker.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
for number in range(40):
    fake = maker(torch.randn(16, 4))
    second.zero_grad()
    (critic(torch.randn(16, 8)) - critic(fake.detach())).square().mean().backward()
    second.step()
    {reset}
    (1 - critic(fake)).square().mean().backward()
    first.step()
"""
STEP = "optimizer.step()"


def left_over(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    found = theta0.capture(path, batches=8)
    assert found.error is None
    return [step.observed.left_over for step in found.steps], found.steps[0]


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ("pass", STEP, 1.0),
        ("if number % 10 == 0: optimizer.zero_grad()", STEP, 1.0),  # once an epoch
        ("head.zero_grad()", STEP, 288 / 387),
        ("pass", "if number % 2: optimizer.step()", 1.0),  # accumulation without an end
        ("optimizer.zero_grad()", STEP, 0.0),
        ("optimizer.zero_grad(set_to_none=False)", STEP, 0.0),
        ("pass", f"{STEP}; net.zero_grad()", 0.0),
        ("pass", "if number % 2: optimizer.step(); optimizer.zero_grad()", 0.0),
        ("for p in net.parameters(): p.grad = None", STEP, 0.0),
    ],
)
def test_what_is_never_reset_is_an_error(tmp_path, before, after, share):
    shares, step = left_over(tmp_path, LOOP.format(before=before, after=after))
    assert shares == [pytest.approx(share)]
    found = theta0.diagnose(**step.arguments, probe_steps=0)
    said = [(f.code, f.severity) for f in found.findings if f.code == "lost-gradient"]
    assert said == ([("lost-gradient", "error")] if share >= 0.5 else [])
    if said:
        assert "zero_grad()" in found.findings[0].message


@pytest.mark.parametrize(("reset", "share"), [("first.zero_grad()", 0.0), ("pass", 1.0)])
def test_a_pass_of_another_optimizer_leaves_nothing_that_counts(tmp_path, reset, share):
    shares, _ = left_over(tmp_path, ADVERSARIES.format(reset=reset))
    assert sorted(shares) == [0.0, share]


def test_a_share_is_one():
    with pytest.raises(ValueError, match="left_over"):
        ObservedTraining(left_over=1.5)
