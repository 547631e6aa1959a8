"""What work takes beside the model is said before it is begun, and is what it takes."""

import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import theta0
from cases import normal
from states import state_of
from theta0._batches import load_batches
from theta0._progress import Announcement
from theta0._state import tensor_files
from theta0._state.tensor_files import belongs_in_a_file, free_memory
from theta0.experiments import continued, estimates, optimizer_kind, prepared, started
from theta0.experiments.estimates import VECTORS, Estimate, estimated, lacking, state_share
from theta0.experiments.probe import FACTORS

DOCS = Path(__file__).parents[2] / "docs"
GIGA = 2**30


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def learnable():
    x = normal(8 * 16, 16)
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16), strict=True))


@pytest.fixture
def unlimited(monkeypatch):
    """A folder for temporary files with room for everything."""
    monkeypatch.delenv("THETA0_SNAPSHOT", raising=False)
    usage = tensor_files.shutil.disk_usage("/")._replace(free=2**50)
    monkeypatch.setattr(tensor_files.shutil, "disk_usage", lambda folder: usage)


KINDS = {
    "sgd": ("sgd", 0.0),
    "momentum": ("momentum", 1.0),
    "adam": ("adam", 2.0),
    "a class": (torch.optim.RMSprop, 1.0),
    "factored moments": (torch.optim.Adafactor, 2 / 64),
    "a factory": (lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True), 3.0),
}


@pytest.mark.parametrize(("optimizer", "share"), KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("accumulate", [1, 4])
def test_what_an_optimizer_keeps_is_what_it_keeps_of_a_model(optimizer, share, accumulate):
    kind = optimizer_kind(optimizer, net(), accumulate=accumulate, clip_norm=1.0)
    drawn = torch.get_rng_state()
    assert state_share(kind) == pytest.approx(share, abs=0.01)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_an_instance_is_mirrored_and_left_alone():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert state_share(optimizer_kind(optimizer, model)) == 1.0
    assert not optimizer.state


class Refusing(torch.optim.Adam):
    def step(self, closure=None):
        raise RuntimeError("only for embeddings")


def test_one_that_cannot_step_a_matrix_counts_by_its_kind():
    assert state_share(optimizer_kind(Refusing, net())) == 2.0


def test_sizes_follow_the_formula_in_memory_and_in_files(unlimited):
    small = nn.Linear(99, 10, device="meta")  # 1000 numbers of 4 bytes
    small.register_buffer("mean", torch.empty(500, device="meta"))
    assert estimated(small) == Estimate(6_000 + 4_000, 0)  # the snapshot, and the sum of the gradients
    assert estimated(small, snapshots=3, state=2.0, waiting=2) == Estimate(3 * 6_000 + 2 * 8_000 + 3 * 4_000, 0)
    assert estimated(small, vectors=10) == Estimate(6_000 + 40_000, 0)
    frozen = nn.Linear(99, 10, device="meta").requires_grad_(False)
    assert estimated(frozen, snapshots=2, state=2.0, waiting=5) == Estimate(2 * 4_000, 0)
    large = nn.Linear(2**14, 2**14, bias=False, device="meta")  # 1 GiB
    assert estimated(large) == Estimate(0, 2 * GIGA)  # the snapshot and the sum of the gradients
    assert estimated(large, snapshots=7, state=2.0, waiting=5) == Estimate(3 * GIGA, (1 + 7 + 10) * GIGA)
    half = nn.Linear(2**14, 2**14, bias=False, device="meta", dtype=torch.bfloat16)
    assert estimated(half, state=2.0) == Estimate(3 * GIGA // 2, GIGA // 2 + GIGA)  # gradients are summed in float32


def test_without_room_for_files_everything_is_in_memory(monkeypatch):
    monkeypatch.setenv("THETA0_SNAPSHOT", "memory")
    large = nn.Linear(2**14, 2**14, bias=False, device="meta")
    assert estimated(large, snapshots=2, state=2.0, waiting=1) == Estimate((2 + 2 + 3) * GIGA, 0)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_a_run_that_waits_in_a_file_goes_on_as_one_that_waits_in_memory(optimizer, monkeypatch):
    found, held = {}, {}
    for where in ("memory", "disk"):
        monkeypatch.setenv("THETA0_SNAPSHOT", where)
        model = net()
        kind = optimizer_kind(optimizer, model)
        experiment = prepared(model, load_batches(learnable(), model), "cross_entropy", kind.make)
        run = continued(experiment, started(experiment, 0.01), until=3)
        other = continued(experiment, started(experiment, 0.1), until=3)
        states = [t for state in run.optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
        held[where] = sum(t.untyped_storage().nbytes() for t in states)
        found[where] = [continued(experiment, paused, until=6).losses for paused in (run, other)]
        assert sum(t.untyped_storage().nbytes() for t in states) == (held["memory"] if where == "memory" else 0)
    assert found["memory"] == found["disk"]
    assert held["memory"] > 0 == held["disk"]


def test_a_run_that_diverged_keeps_no_state():
    model = net()
    experiment = prepared(model, load_batches(learnable(), model), "cross_entropy", optimizer_kind("adam", model).make)
    run = continued(experiment, started(experiment, 1e30), until=6)
    assert run.diverged
    assert not run.optimizer.state


TRAINED = {"optimizer": "adam", "learning_rate": 1e-2}
VERBS = {
    "diagnose": lambda tell: theta0.diagnose(net(), learnable(), "cross_entropy", **TRAINED, progress=tell),
    "treat": lambda tell: theta0.treat(net(), learnable(), "cross_entropy", **TRAINED, steps=5, progress=tell),
    "explain": lambda tell: theta0.explain(net(), learnable(), "cross_entropy", **TRAINED, budget=30, progress=tell),
    "rate": lambda tell: theta0.suggest_learning_rate(
        net(), learnable(), "cross_entropy", "adam", steps=60, progress=tell
    ),
}
each_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())


class Told(list):
    """What is reported, and how many gradients were taken before."""

    def __call__(self, text, share=math.nan):
        self.append(text)

    @property
    def announced(self):
        return [str(text) for text in self if isinstance(text, Announcement)]


@each_verb
def test_memory_is_announced_once_and_before_any_pass(verb, monkeypatch):
    monkeypatch.setattr(estimates, "SAID", 1000)
    told, passes = Told(), []
    forward = nn.Linear.forward

    def counted(self, x):
        passes.append(len(told.announced))
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", counted)
    verb(told)
    assert len(told.announced) == 1
    assert told.announced[0].startswith("Beside the model this takes up to about 0.0 GB of memory")
    assert "only" not in told.announced[0]
    read_ahead = passes.index(1)  # the batches are read, and the model is tried, before
    assert read_ahead <= 4
    assert set(passes[read_ahead:]) == {1}


@each_verb
def test_what_is_more_than_is_free_is_said_with_what_to_do(verb, monkeypatch):
    monkeypatch.setattr(estimates, "SAID", 1000)
    monkeypatch.setattr(estimates, "free_memory", lambda device: 10.0)
    told = Told()
    verb(told)
    assert "; only 0.0 GB of memory are free: " in told.announced[0]


@pytest.fixture
def no_memory(monkeypatch):
    """Whatever is done is large, and nothing is free."""
    monkeypatch.setattr(estimates, "SAID", 1000)
    monkeypatch.setattr(estimates, "free_memory", lambda device: 10.0)
    steps = []
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: steps.append(self))
    yield
    assert {len(one.param_groups[0]["params"]) for one in steps} <= {1}  # the matrix on which a state is measured


WHY = "up to about 0.0 GB of memory would be taken, and only 0.0 GB of memory are free"


def test_a_diagnosis_leaves_out_what_does_not_fit_into_memory(no_memory):
    found = theta0.diagnose(net(), learnable(), "cross_entropy", **TRAINED)
    assert found.records
    assert (found.probe, found.learning_rate) == (None, None)
    assert f"Whether training lowers the loss was not tried: {WHY}." in found.not_measured
    assert f"The largest stable learning rate, by the curvature: {WHY}." in found.not_measured


def test_a_rate_is_not_sought_where_nothing_fits_into_memory(no_memory):
    found = theta0.suggest_learning_rate(net(), learnable(), "cross_entropy", "adam")
    assert (found.value, found.runs, found.reason) == (None, (), WHY)
    assert found.not_measured == (f"λ at the start: {WHY}.", f"Short runs: {WHY}.")


@pytest.mark.parametrize("with_", ["auto", "lcw", "standardize-input"])
def test_a_treatment_leaves_a_model_whose_runs_do_not_fit_into_memory(with_, no_memory):
    torch.manual_seed(0)
    hidden = [part for _ in range(8) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    model = nn.Sequential(*hidden, nn.Linear(16, 2))
    before = state_of(model)
    found = theta0.treat(model, learnable(), "cross_entropy", **TRAINED, with_=with_)
    assert (found.kept, found.healthy, found.attempts) == (False, False, ())
    assert found.reason == f"Nothing was tried: {WHY}. The model is as it was."
    assert state_of(model) == before


def test_what_is_much_of_the_free_memory_is_a_file(unlimited, monkeypatch):
    for free, size, there in ((2**30, 2**27, True), (2**30, 2**25, False), (2**33, 2**28, False), (0.0, 2**20, False)):
        monkeypatch.setattr(tensor_files, "free_memory", lambda device, free=free: free)
        assert belongs_in_a_file(size) == there


@pytest.mark.parametrize(("free", "room", "fits"), [(5, 99, True), (5, 2, False), (99, 2, True), (2, 99, False)])
def test_what_finds_no_room_for_files_has_to_fit_into_memory(free, room, fits, monkeypatch):
    """A gigabyte of parameters: three of gradients and state, eight of copies in files."""
    monkeypatch.delenv("THETA0_SNAPSHOT", raising=False)
    monkeypatch.setattr(estimates, "estimated", lambda model, **options: Estimate(3 * GIGA, 8 * GIGA))
    monkeypatch.setattr(estimates, "free_memory", lambda device: float(free * GIGA))
    usage = tensor_files.shutil.disk_usage("/")._replace(free=room * GIGA)
    monkeypatch.setattr(tensor_files.shutil, "disk_usage", lambda folder: usage)
    large = nn.Linear(2**14, 2**14, bias=False, device="meta")
    assert lacking(large, snapshots=8, kind=optimizer_kind("adam", large)).startswith("up to about") is not fits


@each_verb
def test_small_work_announces_nothing(verb):
    told = Told()
    verb(told)
    assert told.announced == []


class Slow(nn.Linear):
    """A layer for which a clock goes on."""


def slow_net():
    torch.manual_seed(0)
    return nn.Sequential(Slow(16, 16), nn.Tanh(), nn.Linear(16, 2))


@pytest.fixture
def slowly(monkeypatch):
    """Time that goes on only where a slow layer is called."""
    seconds = [0.0]
    forward = nn.Linear.forward

    def later(self, x):
        seconds[0] += 5.0
        return forward(self, x)

    monkeypatch.setattr(Slow, "forward", later)
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])


LIMITED = {
    "diagnose": lambda tell, limit: theta0.diagnose(
        slow_net(), learnable(), "cross_entropy", **TRAINED, seconds=limit, progress=tell
    ),
    "explain": lambda tell, limit: theta0.explain(
        slow_net(), learnable(), "cross_entropy", **TRAINED, budget=60, seconds=limit, progress=tell
    ),
    "compare": lambda tell, limit: theta0.compare(
        slow_net(), learnable(), "cross_entropy", starts=["default"], optimizer="sgd", steps=8, seeds=2,
        budget_s=limit, progress=tell,
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", LIMITED.values(), ids=LIMITED.keys())
def test_work_that_does_not_fit_into_the_time_given_is_said_beforehand(verb, slowly):
    told = Told()
    verb(told, 150.0)
    assert len(told.announced) == 1
    assert "are left: what does not fit is left out." in told.announced[0]


@pytest.mark.parametrize("verb", LIMITED.values(), ids=LIMITED.keys())
def test_long_work_without_a_limit_is_said_beforehand(verb, slowly):
    told = Told()
    verb(told, None)
    assert len(told.announced) == 1
    assert "gradients of" in told.announced[0]
    assert told.announced[0].endswith("minutes.")


def test_free_memory_is_that_of_the_machine_or_of_the_control_group(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  4000 kB\n",
        "/sys/fs/cgroup/memory.max": "max\n",
        "/sys/fs/cgroup/memory.current": "700000\n",
        "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 100000\n",
    }
    monkeypatch.setattr(tensor_files, "_text", lambda path: files.get(str(path), ""))
    assert free_memory(torch.device("cpu")) == 4000 * 1024
    files["/sys/fs/cgroup/memory.max"] = "1000000\n"
    assert free_memory(torch.device("cpu")) == 400_000
    files.clear()
    assert free_memory(torch.device("cpu")) == math.inf


MEASURED = """
import ctypes, gc, json, sys, torch
from pathlib import Path
from torch import nn
import theta0
from theta0._training import steps_from
from theta0._batches import load_batches

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(float(line.split()[1]) for line in lines if line.startswith(field))

def growth(function):
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    function()
    return resident("VmHWM") - before

torch.set_num_threads(1)
width = 1536
make = lambda width: nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())])
data = lambda width: [(torch.randn(4, width), torch.randint(width, (4,))) for _ in range(2)]
options = {"optimizer": "adam", "learning_rate": 1e-4} if sys.argv[1] == "rate" else {}
steps = 0 if sys.argv[1] == "passes" else 24
run = lambda model, data: theta0.diagnose(model, data, "cross_entropy", probe_steps=steps, **options)
run(make(8), data(8))  # libraries are warm
model, batches = make(width), data(width)
print(json.dumps(growth(lambda: run(model, batches))))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("work", ["passes", "runs", "rate"])
def test_a_diagnosis_takes_no_more_memory_than_was_estimated(work, monkeypatch):
    """A model of 38 MB, everything that can be in files."""
    monkeypatch.setenv("THETA0_SNAPSHOT", "disk")
    environment = os.environ | {"PYTHONPATH": str(Path(theta0.__file__).parents[1])}
    environment["MALLOC_MMAP_THRESHOLD_"] = "1000000"  # what is freed goes back at once
    command = [sys.executable, "-c", MEASURED, work]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    grown = json.loads(done.stdout)
    model = nn.Sequential(*[nn.Linear(1536, 1536, device="meta") for _ in range(4)])
    options = {
        "passes": {},
        "runs": {"state": 2.0, "waiting": 5},
        "rate": {"state": 2.0, "waiting": 5, "vectors": VECTORS},
    }[work]
    found = estimated(model, snapshots=7, **options)
    layer = 1536 * 1537 * 4
    assert found.memory / 3 < grown < found.memory + 3 * layer  # and what a step's temporaries take


def llama(layers=32, width=4096, inner=11008, words=32000):
    """The parameters of LLaMA 7 B, on the meta device."""
    linear = partial(nn.Linear, bias=False, device="meta")
    block = [
        part
        for _ in range(layers)
        for part in (
            *(linear(width, width) for _ in range(4)),
            *(linear(width, inner), linear(width, inner), linear(inner, width)),
            *(nn.RMSNorm(width, device="meta") for _ in range(2)),
        )
    ]
    ends = nn.Embedding(words, width, device="meta"), nn.RMSNorm(width, device="meta"), linear(width, words)
    return nn.ModuleList([*block, *ends])


def test_the_table_of_a_model_of_seven_billion_parameters_is_what_is_estimated(unlimited):
    model = llama()
    assert sum(p.numel() for p in model.parameters()) == 6_738_415_616
    page = (DOCS / "scale.md").read_text()
    runs = {"snapshots": len(FACTORS) + 2, "state": 2.0, "waiting": len(FACTORS)}
    rows = {
        "without short runs": {},
        "with short runs, Adam": runs,
        "with a given rate and short runs, Adam": runs | {"vectors": VECTORS},
    }
    for words, options in rows.items():
        found = [estimated(change(model), **options) for change in (nn.Module.float, nn.Module.bfloat16)]
        sizes = [size for one in found for size in (one.memory, one.files)]
        assert f"| {words} | {' | '.join(f'{size / 1e9:.0f} GB' for size in sizes)} |" in page


@pytest.mark.slow
def test_the_library_has_a_model_of_this_size():
    transformers = pytest.importorskip("transformers")
    try:
        with torch.device("meta"):
            found = transformers.LlamaForCausalLM(transformers.LlamaConfig())
    except ModuleNotFoundError as error:  # where its torchvision is of another build
        pytest.skip(str(error))
    sizes, own = (sorted(p.numel() for p in model.parameters()) for model in (found, llama()))
    assert sizes == own
