"""The one module at fault: smaller and smaller halves, and changes of the data or the mode."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cases import normal
from theta0._batches import load_batches
from theta0.experiments import optimizer_kind
from theta0.explanation import changes, modules
from theta0.explanation.bench import Setting

PATHS = {f"layers.{i}": [f"layers.{i}.weight"] for i in range(6)}


@dataclass
class Bench:
    """Runs that are decided by which modules are drawn anew."""

    at_fault: set[str]
    left: float = 1e9
    asked: list[str] = field(default_factory=list)

    def tried(self, change, steps):
        self.asked.append(change.words)
        chosen = {path for path in PATHS if change.words.startswith(f"`{path}`")} or set(
            list(PATHS)[: self.count(change)]
        )
        shares = 0.1 if self.at_fault & chosen else 0.9
        return trial(shares, change, steps) if self.left else None

    def count(self, change):
        return int(change.words.split()[0])


def trial(share, change=None, steps=20):
    return SimpleNamespace(
        share=lambda _=None: share, run=SimpleNamespace(losses=[share] * steps, diverged=False), change=change
    )


@pytest.mark.parametrize("fault", ["layers.0", "layers.1", "layers.2"])
def test_halves_close_in_on_the_module(fault):
    bench = Bench({fault})
    found = modules._bisected(bench, PATHS, trial(0.9), 20)
    assert bench.asked[0] == "6 modules re-initialized"
    assert all(one.share() < 0.5 for one in found)
    assert len(bench.asked) <= 5


def test_where_all_together_do_not_help_there_is_no_module():
    assert [one.share() for one in modules._bisected(Bench(set()), PATHS, trial(0.9), 20)] == [0.9]
    assert modules._bisected(Bench(set(), left=0), PATHS, trial(0.9), 20) == []


def test_modules_that_cannot_be_drawn_anew_are_said_with_why():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))

        def forward(self, x):
            return x @ self.weight

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), Own(), nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    model[4].weight = model[3].weight
    nn.utils.parametrizations.weight_norm(model[1])
    found, left = modules.units(model, keep=["3"])
    assert found == {"4": ["4.bias"]}
    assert left["0"] == "frozen"
    assert left["1"] == "parametrized"
    assert left["2"] == "Own has no initialization of its own"
    assert left["3"] == "kept, as pretrained"


def test_changes_of_mode_and_of_targets():
    model = nn.Linear(4, 1).eval()
    x = normal(32, 4)
    data = load_batches([(x, 50 + 10 * x.sum(1, keepdim=True))], model)
    setting = Setting(data, optimizer_kind("sgd", model), 0.1, (1.0, 0.0))
    changes._in_training_mode(model, setting, 0)
    assert model.training
    done = changes._standardized_targets("mse")(model, setting, 0)
    assert float(done.batches[0].targets.mean()) == pytest.approx(0, abs=1e-5)
    assert float(done.batches[0].targets.std(correction=0)) == pytest.approx(1, rel=1e-5)
    assert done.scale[0] == pytest.approx(1, rel=1e-3)  # the variance that is left to learn
