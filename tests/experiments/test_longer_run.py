"""A longer run ends at its goal, at its last step, or where it diverges, and leaves the model as it was."""

import pytest
import torch
from torch import nn

from cases import normal
from states import state_of
from theta0._batches import load_batches
from theta0.experiments import optimizer_kind
from theta0.experiments.longer_run import longer_run

X = normal(64, 6)
PARTS = [(x, x.sum(1, keepdim=True)) for x in X.split(16)]


@pytest.mark.parametrize(
    ("rate", "goal", "most", "outcome", "steps"),
    [(0.1, 0.5, 40, "trains", 10), (1e-6, 0.5, 15, "undecided", 15), (1e30, 0.5, 40, "diverges", None)],
)
def test_it_ends_at_its_goal_its_last_step_or_where_it_diverges(rate, goal, most, outcome, steps):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(6, 1)
    before, kind = state_of(model), optimizer_kind("sgd", model)
    run = longer_run(model, load_batches(PARTS, model), "mse", kind, rate, goal=goal, most=most)
    assert (run.outcome, run.rate) == (outcome, rate)
    assert steps is None or len(run.losses) == steps
    assert (run.final < goal) == (outcome == "trains")
    assert state_of(model) == before


def test_where_training_raises_there_is_none():
    class Once(nn.Linear):
        calls = 0

        def forward(self, x):
            Once.calls += 1
            if Once.calls > 3:
                raise RuntimeError("no more")
            return super().forward(x)

    model = Once(6, 1)
    data = load_batches(PARTS, model)
    assert longer_run(model, data, "mse", optimizer_kind("sgd", model), 0.1, goal=0.0, most=40) is None
