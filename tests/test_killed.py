"""Work that is killed (SIGKILL) at random moments: files are old or new, and what goes on comes to the same result."""

import json
import multiprocessing
import random
import sys
import time

import pytest
import torch
from torch import nn

from cases import normal
from theta0 import compare, load_start_, save_start, treat
from theta0._checkpoints import read_tensors, write_tensors
from theta0.initializers import mmd_

MOMENTS = 20
FORK = multiprocessing.get_context("fork")  # children have imported already, and are killed at work
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")]


def killed(work, *arguments, after):
    """Run in a process of its own, and kill that after some seconds; whether it was still at work."""
    process = FORK.Process(target=work, args=arguments)
    process.start()
    process.join(after)
    running = process.is_alive()
    process.kill()
    process.join()
    assert running or process.exitcode == 0
    return running


def moments(seconds, seed):
    draw = random.Random(seed)
    return [draw.uniform(0.0, seconds) for _ in range(MOMENTS)]


def timed(work, *arguments):
    """Seconds that it takes in a process of its own."""
    began = time.monotonic()
    assert not killed(work, *arguments, after=300)
    return time.monotonic() - began


def net():
    torch.manual_seed(0)
    layers = [part for _ in range(5) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(16, 2))


def learnable(count=8):
    x = normal(count * 16, 16)
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16), strict=True))


def overwriting(path):
    number = 0
    while True:
        write_tensors(path, {"a": torch.full((200_000,), float(number)), "b": torch.full((9,), float(number))}, {})
        number += 1


def test_a_file_that_is_written_again_and_again_is_whole_at_every_moment(tmp_path):
    path = tmp_path / "start.safetensors"
    write_tensors(path, {"a": torch.full((200_000,), -1.0), "b": torch.full((9,), -1.0)}, {})
    for after in moments(0.5, 1):
        assert killed(overwriting, path, after=0.05 + after)
        tensors, _ = read_tensors(path)
        assert tensors["a"].unique().tolist() == tensors["b"].unique().tolist()


def treating(path):
    model = net()
    treat(model, learnable(), "cross_entropy", steps=12, with_="lcw")
    save_start(model, path, method="lcw")


def values(path):
    model = net()
    load_start_(model, path)
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_treat_leaves_the_old_start_or_the_new_one(tmp_path):
    seconds = timed(treating, tmp_path / "new.safetensors")
    new = values(tmp_path / "new.safetensors")
    path = tmp_path / "start.safetensors"
    save_start(net(), path, method="none")
    old = values(path)
    assert not same(old, new)
    found = []
    for after in moments(1.1 * seconds, 2):
        save_start(net(), path, method="none")
        running = killed(treating, path, after=after)
        now = values(path)
        found.append("new" if same(now, new) else "old" if same(now, old) else "neither")
        assert found[-1] == "new" or running
    assert "neither" not in found
    treating(path)
    assert same(values(path), new)


OPTIONS = {"starts": ("default", "lcw", "unit-variance"), "steps": 12, "seeds": 2, "optimizer": "momentum"}


def racing(store):
    return compare(net(), learnable(), "cross_entropy", **OPTIONS, store=store)


def results(found):
    return (
        [(s.start, s.rate, s.runs, s.seeds) for s in found.standings],
        [(run.start, run.rate, run.steps, run.run) for run in found.tuning_runs],
        [(c.start, c.suggested, c.rates, c.gradients, c.reason) for c in found.candidates],
        found.cost,
    )


def test_a_race_goes_on_from_its_store(tmp_path):
    seconds = timed(racing, None)
    expected, seen = results(compare(net(), learnable(), "cross_entropy", **OPTIONS)), []
    for number, after in enumerate(moments(seconds, 3)):
        store = tmp_path / f"{number % 4}.jsonl"  # each is killed five times
        before = store.read_text() if store.exists() else ""
        killed(racing, store, after=after)
        after_it = store.read_text() if store.exists() else ""
        assert after_it.startswith(before)
        seen.append(len(after_it.splitlines()))
    assert max(seen) > 0
    for number in range(4):
        assert results(racing(tmp_path / f"{number}.jsonl")) == expected


def discrepancy(path, out):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))
    mmd_(model, learnable(2), steps=16, generator=0, checkpoint=path)
    write_tensors(out, model.state_dict(), {})


def test_mmd_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    for module in ("mmd", "mmd_checkpoint"):
        monkeypatch.setattr(sys.modules[f"theta0.initializers.{module}"], "WINDOW", 4)  # steps between two writes
    seconds = timed(discrepancy, tmp_path / "once", tmp_path / "expected")
    expected, out = read_tensors(tmp_path / "expected")[0], tmp_path / "out"
    for number, after in enumerate(moments(seconds, 4)):
        path = tmp_path / f"{number % 4}.safetensors"
        killed(discrepancy, path, out, after=after)
        assert not path.exists() or read_tensors(path)[1]
    for number in range(4):
        discrepancy(tmp_path / f"{number}.safetensors", out)
        assert same(read_tensors(out)[0], expected)


def reproducing(out):
    from theta0.papers.lee2023mmd import ITEMS

    ITEMS["table1"](None, None, scale="smoke", out_dir=out, jobs=None, backend=None, progress=None)


def test_an_experiment_goes_on_from_its_store(tmp_path):
    pytest.importorskip("sklearn")
    seconds = timed(reproducing, tmp_path / "once")
    for after in moments(seconds / 3, 5):
        killed(reproducing, tmp_path / "killed", after=after)
    reproducing(tmp_path / "killed")
    once, again = (json.loads((tmp_path / name / "table1.json").read_text()) for name in ("once", "killed"))
    assert once == again
