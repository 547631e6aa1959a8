"""Short runs around a suggestion."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from states import state_of
from theta0.experiments import suggest_learning_rate, verify_learning_rate
from theta0.reports import rate_document, rate_report

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
BATCHES = [(X, X @ torch.ones(8, 1))]


def test_a_quadratic_falls_below_its_bound_and_not_above_it():
    model = nn.Linear(8, 1, bias=False)
    before = state_of(model)
    found = suggest_learning_rate(model, BATCHES, "mse", steps=0)
    runs = verify_learning_rate(model, BATCHES, "mse", found, factors=(0.5, 1.0, 8.0), steps=100)
    assert [run.rate / found.value for run in runs] == pytest.approx([0.5, 1.0, 8.0])
    assert [run.held_out < run.held_out_start for run in runs] == [True, True, False]
    assert state_of(model) == before


def test_a_step_count_is_needed():
    model = nn.Linear(8, 1)
    found = suggest_learning_rate(model, BATCHES, "mse", steps=0)
    with pytest.raises(ValueError, match="steps: expected at least 1, got 0"):
        verify_learning_rate(model, BATCHES, "mse", found, steps=0)


def test_without_a_rate_there_is_nothing_to_verify():
    model = nn.Linear(8, 1)
    nothing = dataclasses.replace(suggest_learning_rate(model, BATCHES, "mse", steps=0), value=None)
    with pytest.raises(ValueError, match="suggestion: expected a rate, got none"):
        verify_learning_rate(model, BATCHES, "mse", nothing)


def test_report_and_document_say_the_same():
    from rich.console import Console

    model = nn.Linear(8, 1)
    found = suggest_learning_rate(model, BATCHES, "mse", certify=(0.1, 0.01), steps=0)
    runs = verify_learning_rate(model, BATCHES, "mse", found, factors=(1.0, 1e4), steps=30)
    document = rate_document(found, runs, target="t.py")
    assert document["learning_rate"]["value"] == found.value
    assert document["cost_in_gradients"] > found.cost
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - closed with the console
    console.print(rate_report(found, runs, target="[bold]t.py"))
    console.file.close()
    text = console.export_text()
    assert "[bold]t.py: Train with sgd" in text
    assert "certificate" in text
    assert "diverged" in text
    assert not math.isfinite(runs[1].held_out)
    assert max(map(len, text.splitlines())) <= 80


class Slope(nn.Module):
    """A derivative inside the forward pass."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        u = self.body(x).square()
        return torch.autograd.grad(u.sum(), x, create_graph=True)[0].sum(1, keepdim=True)


def test_gradients_inside_forward_and_the_users_own_optimizer():
    torch.manual_seed(0)
    model = Slope()
    before = state_of(model)
    theirs = torch.optim.NAdam(model.parameters(), lr=1e-2)
    found = suggest_learning_rate(model, BATCHES, "mse", theirs, generator=0)
    runs = verify_learning_rate(model, BATCHES, "mse", found, optimizer=theirs, factors=(1.0,))
    assert runs[0].optimizer == "NAdam"
    assert runs[0].held_out < runs[0].held_out_start
    assert state_of(model) == before
    assert not theirs.state
