"""`seconds=` and `--budget`: work ends in the time given, says what it was doing, and leaves the model as it was."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import theta0
from cases import normal
from ranks import needs_gloo, on_ranks
from states import randomness, state_of
from theta0._batches import load_batches
from theta0._progress import countdown, require_time, time_ended, time_limit
from theta0.experiments import suggest_learning_rate, verify_learning_rate
from theta0.experiments.halving import Search
from theta0.experiments.runs import PausedRun, prepared
from theta0.treatment.searches import SEARCHES

TICK = 1.0  # what one forward pass takes
TRAINED = {"optimizer": "momentum", "learning_rate": 0.1, "steps": 8}


class Clock(nn.Module):
    """The identity; a clock goes on where it is called."""

    seconds = 0.0

    def forward(self, x):
        Clock.seconds += TICK
        return x


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time that goes on with forward passes only."""
    Clock.seconds = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: Clock.seconds)


def deep(depth=6, width=16):
    """Sigmoid layers, dropout and running statistics: training changes all that a model has."""
    torch.manual_seed(0)
    hidden = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Sigmoid())]
    return nn.Sequential(Clock(), *hidden, nn.Dropout(0.1), nn.BatchNorm1d(width, affine=False), nn.Linear(width, 3))


def learnable(count=8):
    x = normal(count * 16, 16)
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16), strict=True))


def untouched(verb):
    """What a verb returns, with what it took, where it leaves the model and the random states bit for bit."""
    model = deep()
    before, drawn, Clock.seconds = state_of(model), randomness(), 0.0
    found = verb(model)
    assert state_of(model) == before
    assert randomness() == drawn
    return found, Clock.seconds


def test_a_limit_holds_within_its_block_and_the_nearer_one_counts():
    assert not time_ended()
    with time_limit(5.0):
        left = countdown(3.0)
        with time_limit(100.0):
            Clock.seconds += 4.0
            require_time()
            assert left() == -1.0
            Clock.seconds += 2.0
            with pytest.raises(Exception, match="the time given ended"):
                require_time()
        assert time_ended()
    assert not time_ended()


def treated(seconds, **options):
    return lambda model: theta0.treat(
        model, learnable(), "cross_entropy", seconds=seconds, generator=0, **TRAINED | options
    )


def test_a_treatment_ends_wherever_it_is_and_says_where():
    began = {}
    whole = treated(None, progress=lambda text, share: began.setdefault(str(text), Clock.seconds))(deep())
    taken = Clock.seconds
    assert whole.kept
    stages = [text for text in began if text.startswith(("training", "trying", "proving"))]
    assert len(stages) > 3
    for text in stages:
        limit = began[text] + 2 * TICK
        found, took = untouched(treated(limit))
        assert not found.kept
        assert f"the time given ended while {text}; nothing was proven. The model is as it was." in found.reason
        assert limit <= took < limit + 6 * TICK < taken  # a diagnosis of four batches, or what is verified of a run
        unfinished = [(a.remedy, a.reason) for a in found.attempts if a.run is None]
        name = text.removeprefix("trying ")
        assert unfinished == ([(name, "not finished: the time given ended")] if name != text else [])
    assert found.reason.endswith(f"Tried before: {', '.join(a.remedy for a in whole.attempts)}.")
    assert found.untreated is not None
    assert found.cost < whole.cost
    assert treated(taken + TICK)(deep()).kept  # enough time changes nothing


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_that_is_a_remedy_ends_too(name, monkeypatch):
    monkeypatch.setattr(Clock, "forward", lambda self, x: x)  # within a transformed forward pass: count steps
    seen = []

    def stepped():
        seen.append(None)
        if len(seen) > 5:
            Clock.seconds = 100.0

    for module in ("theta0.initializers.scale_search", "theta0.initializers.mmd", "theta0.initializers.random_labels"):
        monkeypatch.setattr(f"{module}.require_time", lambda: (stepped(), require_time()))
    found, _ = untouched(treated(50.0, with_=name))
    assert len(seen) == 6
    assert not found.kept
    assert found.remedy == name
    assert [(a.remedy, a.reason) for a in found.attempts] == [(name, "not finished: the time given ended")]
    assert f"the time given ended while applying {name}" in found.reason


def rated(seconds, **options):
    return lambda model: suggest_learning_rate(
        model, learnable(), "cross_entropy", "momentum", seconds=seconds, generator=0, **options
    )


def test_a_search_for_a_rate_ends_and_gives_the_best_that_is_proven():
    whole, taken = untouched(rated(None))
    assert whole.proven
    values = []
    for limit in (TICK, 0.1 * taken, 0.3 * taken, 0.6 * taken, 0.9 * taken, taken + TICK):
        found, took = untouched(rated(limit))
        assert took <= limit + 30 * TICK  # before the first step: the first losses, of the constant, a first gradient
        ended = any("the time given ended" in sentence for sentence in found.not_measured)
        assert ended or (found.value, found.reason) == (whole.value, whole.reason)
        assert found.proven == (found.value is not None)
        if found.value is None:
            assert "the time given ended after" in found.reason
        else:
            run = next(run for run in found.runs if run.rate == found.value)
            assert run.outcome == "trains"
        assert found.cost <= whole.cost + 1
        values.append(found.value)
    assert values[0] is None
    assert len({value is None for value in values}) == 2


def test_a_curvature_alone_ends_too():
    found, _ = untouched(rated(2 * TICK, steps=0))
    assert found.value is None
    assert found.reason == "the time given ended"
    assert "λ at the start: the time given ended." in found.not_measured


def test_runs_around_a_suggestion_end_too():
    suggestion = rated(None)(deep())
    options = {"factors": (0.5, 1.0, 2.0), "steps": 10}
    runs, took = untouched(
        lambda m: verify_learning_rate(m, learnable(), "cross_entropy", suggestion, seconds=18.0, **options)
    )
    assert len(runs) == 1
    assert took < 18.0 + 3 * TICK


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), True])
def test_a_time_is_positive(seconds, unchecked):
    for verb in (treated(seconds), rated(seconds)):
        with pytest.raises(ValueError, match="seconds: expected a positive number"):
            verb(deep())


TARGET = """
import time, torch
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)

def model():
    torch.manual_seed(0)
    return nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(8, 8), nn.Sigmoid())], Slow(8, 2))

def batches():
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16)))

loss, optimizer, learning_rate = "cross_entropy", "momentum", 0.1
"""


@pytest.mark.parametrize("verb", ["treat", pytest.param("rate", marks=pytest.mark.slow)])
def test_a_command_ends_within_its_budget(verb, tmp_path):
    target = tmp_path / "target.py"
    target.write_text(TARGET)
    command = [sys.executable, "-m", "theta0", verb, str(target), "--budget", "0.5", "--steps", "100000"]
    environment = os.environ | {"PYTHONPATH": str(Path(theta0.__file__).parents[1]), "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    assert "the time given ended" in done.stdout
    assert "Traceback" not in done.stderr


def _ended_on(rank):
    """The first rank's clock decides; the other's stands still."""
    now = [0.0]
    time.monotonic = lambda: now[0]
    forward = nn.Linear.forward

    def later(self, x):
        now[0] += TICK * (rank == 0)
        return forward(self, x)

    nn.Linear.forward = later
    model, data = deep(), learnable()
    before = state_of(model)
    found = theta0.treat(model, data, "cross_entropy", seconds=200.0, **TRAINED)
    rate = suggest_learning_rate(model, data, "cross_entropy", "momentum", seconds=300.0)
    return found.kept, found.reason, rate.value, rate.not_measured, state_of(model) == before


@needs_gloo
def test_all_ranks_end_where_the_first_does():
    first, second = on_ranks(2, _ended_on)
    assert first == second
    kept, reason, _, missing, same = first
    assert not kept
    assert same
    assert "the time given ended" in reason
    assert any("the time given ended" in sentence for sentence in missing)


def test_a_run_that_diverges_later_is_not_the_best_of_the_rung_before():
    """It had the least loss there: λ may grow past its bound afterwards, when the time ends."""
    model = nn.Linear(4, 1)
    experiment = prepared(model, load_batches([(normal(8, 4), normal(8, 1))], model), "mse", None)
    runs = {
        0: PausedRun(0.1, tuple(1 - 0.01 * k for k in range(10)), None, experiment.restore),
        1: PausedRun(0.3, (*(1 - 0.05 * k for k in range(12)), 1e4), None, experiment.restore, diverged=True),
    }
    search = Search(experiment, 0.1, 3.0, 10.0, 1.0, 1.0, runs, stopped=True)
    assert search.leader(10) == 0
