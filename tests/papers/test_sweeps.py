"""Stacked training against one-by-one training in plain torch, and resuming from a store."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from theta0.papers.models import ThesisResNet, draw_kept_layers, thesis_start_
from theta0.papers.sweeps import Store, canonical, sweep, train_stacked


def half_mse(outputs, targets):
    return 0.5 * (outputs - targets).square().mean()


def problem(width=6, samples=20):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, width, generator=generator, dtype=torch.float64)
    return x, (x[:, :1] > 0).double()


def make(width, depth, batch_norm, generator):
    return thesis_start_(ThesisResNet(width, depth, batch_norm=batch_norm), generator=generator)


def train_plainly(model, x, y, rate, steps, draws=None):
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for step in range(steps + 1):
        optimizer.zero_grad()
        value = half_mse(model(x) if draws is None else model(x, draws[step]), y)
        value.backward()
        losses.append(value.item())
        optimizer.step()
    return torch.tensor(losses)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_stacked_training_equals_training_one_by_one(batch_norm, depth):
    x, y = problem()
    rates, seeds = [1e-3, 4e-3], [0, 7, 8]
    stacked = train_stacked(partial(make, 6, depth, batch_norm), x, y, half_mse, rates=rates, seeds=seeds, steps=12)
    assert stacked.shape == (2, 3, 13)
    for i, rate in enumerate(rates):
        for j, seed in enumerate(seeds):
            model = make(6, depth, batch_norm, torch.Generator().manual_seed(seed))
            torch.testing.assert_close(stacked[i, j], train_plainly(model, x, y, rate, 12), atol=1e-5, rtol=1e-5)


def test_drawn_layers_reach_every_member_of_their_seed():
    x, y = problem()
    draw = partial(draw_drawn, 4)
    stacked = train_stacked(
        partial(make, 6, 4, False), x, y, half_mse, rates=[1e-3, 2e-3], seeds=[1, 2], steps=9, draw=draw
    )
    for i, rate in enumerate((1e-3, 2e-3)):
        for j, seed in enumerate((1, 2)):
            generator = torch.Generator().manual_seed(seed)
            model = make(6, 4, False, generator)
            draws = [draw(generator).double() for _ in range(10)]
            expected = train_plainly(model, x, y, rate, 9, draws)
            torch.testing.assert_close(stacked[i, j], expected, atol=1e-5, rtol=1e-5)


def draw_drawn(depth, generator):
    return draw_kept_layers(depth, 0.5, generator=generator)


def test_a_diverging_member_is_flagged_and_leaves_the_others_alone():
    x, y = problem()
    alone = train_stacked(partial(make, 6, 2, False), x, y, half_mse, rates=[1e-3], seeds=[0, 1], steps=15)
    beside = train_stacked(partial(make, 6, 2, False), x, y, half_mse, rates=[1e3, 1e-3, 1e30], seeds=[0, 1], steps=15)
    assert torch.equal(alone[0], beside[1]) or torch.allclose(alone[0], beside[1], atol=1e-6)
    for diverged in (beside[0], beside[2]):
        assert torch.isfinite(diverged[:, 0]).all()
        assert torch.isinf(diverged[:, -1]).all()


def test_a_start_above_the_limit_is_trained():
    x, y = problem()
    losses = train_stacked(partial(make, 6, 1, False), 100 * x, y, half_mse, rates=[1e-7], seeds=[0], steps=5)
    assert losses[0, 0, 0] > 1000
    assert losses[0, 0, -1] < losses[0, 0, 0]


def test_a_rate_for_each_seed():
    x, y = problem()
    table = torch.tensor([[1e-3, 5e-3]], dtype=torch.float64)
    both = train_stacked(partial(make, 6, 2, False), x, y, half_mse, rates=table, seeds=[3, 4], steps=5)
    for column, seed in enumerate((3, 4)):
        single = train_stacked(
            partial(make, 6, 2, False), x, y, half_mse, rates=[float(table[0, column])], seeds=[seed], steps=5
        )
        torch.testing.assert_close(both[0, column], single[0, 0])


def test_the_observer_sees_each_moment():
    x, y = problem()
    steps = []
    train_stacked(
        partial(make, 6, 2, False),
        x,
        y,
        half_mse,
        rates=[1e-3],
        seeds=[0],
        steps=4,
        observe=lambda moment: steps.append((moment.step, moment.members.tolist(), len(moment.weights))),
    )
    assert steps == [(step, [0], 3) for step in range(5)]


def test_training_draws_nothing_from_the_global_generator_beyond_construction():
    x, y = problem()
    models = {seed: make(6, 2, False, torch.Generator().manual_seed(seed)) for seed in (0, 1)}
    before = torch.get_rng_state()
    train_stacked(lambda g: models[g.initial_seed()], x, y, half_mse, rates=[1e-3], seeds=[0, 1], steps=2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("rates", "seeds", "message"),
    [
        ([], [0], "at least one"),
        ([1e-3], [], "at least one"),
        ([-1.0], [0], "not negative"),
        ([float("nan")], [0], "finite"),
    ],
)
def test_rates_that_cannot_be_used(rates, seeds, message):
    x, y = problem()
    with pytest.raises(ValueError, match=message):
        train_stacked(partial(make, 6, 1, False), x, y, half_mse, rates=rates, seeds=seeds, steps=1)


def test_running_statistics_are_refused():
    x, y = problem()
    with pytest.raises(ValueError, match="track_running_stats=False"):
        train_stacked(
            lambda g: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1)), x, y, half_mse, rates=[0.1], seeds=[0], steps=1
        )


def square(configuration):
    return {"square": configuration["n"] ** 2}


def test_a_sweep_resumes_from_its_store_even_after_a_torn_line(tmp_path):
    store = Store(tmp_path / "runs" / "squares.jsonl")
    calls = []

    def counted(configuration):
        calls.append(configuration["n"])
        return square(configuration)

    assert sweep(counted, [{"n": 2}, {"n": 3}], store=store) == [{"square": 4}, {"square": 9}]
    text = store.path.read_text()
    store.path.write_text(text[: len(text) - 5])  # as if killed while writing the second
    progress = []
    again = sweep(counted, [{"n": 2}, {"n": 3}, {"n": 4}], store=store, progress=lambda *a: progress.append(a))
    assert [r["square"] for r in again] == [4, 9, 16]
    assert calls == [2, 3, 3, 4]
    assert progress == [(1, 3), (2, 3), (3, 3)]
    assert len(store.read()) == 3
    assert sum(1 for line in store.path.read_text().splitlines() if line.endswith("}}")) == 3
    assert json.loads(store.path.read_text().splitlines()[0])["configuration"] == {"n": 2}


def test_parallel_sweeps_keep_the_order(tmp_path):
    configurations = [{"n": n} for n in range(6)]
    results = sweep(square, configurations, backend="threading", jobs=2, store=Store(tmp_path / "s.jsonl"))
    assert [r["square"] for r in results] == [n * n for n in range(6)]


def test_keys_do_not_depend_on_order():
    assert canonical({"a": 1, "b": [1.5]}) == canonical({"b": [1.5], "a": 1})
    with pytest.raises(ValueError, match="plain finite JSON"):
        canonical({"path": Path()})
    with pytest.raises(ValueError, match="plain finite JSON"):
        canonical({"x": float("inf")})
