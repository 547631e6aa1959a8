"""Training that a script begins behind the loop in which it was stopped."""

import textwrap

import pytest

from theta0 import capture, diagnose

HEAD = """
import torch
from torch import nn
net, other = nn.Linear(4, 2), nn.Linear(4, 2)
def loss_of(model):
    return model(torch.randn(8, 4)).square().mean()
def step(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
def fit(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(30):
        step(model, optimizer)
def evaluate(model):
    with torch.no_grad():
        return loss_of(model)
class Trainer:
    def __init__(self, model):
        self.model = model
    def run(self):
        for _ in range(30):
            self.optimizer.zero_grad()
            loss_of(self.model).backward()
            self.optimizer.step()
    def train(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.run()
"""
LATER = {
    "a function again": ("fit(net)\nprint(float(evaluate(net)))\nfit(other)", "fit(other)"),
    "a loop": (
        "fit(net)\nmade = torch.optim.SGD(other.parameters(), 0.1)\nfor _ in range(30):\n    step(other, made)",
        "step(other, made)",
    ),
    "in main": (
        "def main():\n    fit(net)\n    return fit(other)\nif __name__ == '__main__':\n    main()",
        "return fit(other)",
    ),
    "methods": ("Trainer(net).train()\nif True:\n    Trainer(other).train()", "Trainer(other).train()"),
    "in a branch that runs": ("if True:\n    fit(net)\nfit(other)", "fit(other)"),
}
ALONE = {
    "evaluation": "fit(net)\nprint(float(evaluate(net)))",
    "definitions": "fit(net)\ndef again():\n    fit(other)",
    "another branch": "if True:\n    fit(net)\nelse:\n    fit(other)",
    "a loop over both": "for model in (net, other):\n    fit(model)",
    "two passes in one loop": (
        "a, b = (torch.optim.SGD(m.parameters(), 0.1) for m in (net, other))\n"
        "for _ in range(30):\n    step(net, a)\n    step(other, b)"
    ),
}


def later(tmp_path, body):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(HEAD) + body + "\n")
    return capture(script).steps[0]


@pytest.mark.parametrize("name", LATER)
def test_the_line_that_trains_again_is_named(tmp_path, name):
    body, line = LATER[name]
    found = later(tmp_path, body)
    assert found.observed.later.startswith("train.py:")
    assert f": {line}; look at it with --loop 2" in found.observed.later
    said = diagnose(**found.arguments, probe_steps=0).not_measured
    assert any("The script trains again at train.py:" in text for text in said)


@pytest.mark.parametrize("name", ALONE)
def test_what_trains_once_has_none(tmp_path, name):
    assert later(tmp_path, ALONE[name]).observed.later == ""


def test_the_second_of_three_points_to_the_third(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(HEAD) + "fit(net)\nfit(other)\nfit(net)\n")
    assert "fit(net); look at it with --loop 3" in capture(script, loop=2).steps[0].observed.later
    assert capture(script, loop=3).steps[0].observed.later == ""
