"""Processes that train together: one verdict, one start, and an end where one of them does not come."""

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import theta0
from cases import normal
from ranks import needs_gloo, on_ranks
from states import state_of
from theta0 import _ranks
from theta0._ranks import from_all, from_first, meet

pytestmark = needs_gloo
WORLDS = [2, pytest.param(4, marks=pytest.mark.slow)]


def shard(rank, world, width=8, count=8, size=16):
    """Every world-th sample, as torch's DistributedSampler deals them."""
    x = normal(count * size * world, width)[rank::world]
    return list(zip(x.split(size), (x[:, 0] > 0).long().split(size), strict=True))


def deep_sigmoid(seed=0, depth=4):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = (p for _ in range(depth) for p in (nn.Linear(8, 8), nn.Sigmoid()))
        return nn.Sequential(*parts, nn.Linear(8, 2))


def train(model, rank, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(normal(4, 8, seed=7 * rank + step)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone().tolist() for p in model.parameters()]


def plain(diagnosis):
    """All that a diagnosis says."""
    return [repr(r) for r in diagnosis.records], [repr(f) for f in diagnosis.findings], diagnosis.cost, diagnosis.probe


def _everything(rank, world, options):
    torch.manual_seed(rank)  # as scripts do, so that dropout differs
    np.random.seed(rank)
    model = DistributedDataParallel(deep_sigmoid(), **options)
    train(model, rank)
    before, random = state_of(model.module), torch.get_rng_state()
    found = theta0.diagnose(model, shard(rank, world), "cross_entropy", learning_rate=0.1, probe_steps=20)
    assert state_of(model.module) == before
    assert torch.equal(torch.get_rng_state(), random)
    again = train(model, rank)
    treatment = theta0.treat(model, shard(rank, world), "cross_entropy", with_="lcw", learning_rate=0.5, steps=20)
    start = [p.tolist() for p in model.parameters()]
    trained = train(model, rank)
    theta0.remove_(model)
    return plain(found), again, (treatment.kept, treatment.reason, treatment.cost), start, trained, train(model, rank)


@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_comes_to_the_same_verdict_start_and_weights(world):
    """A step of DistributedDataParallel before, between and after; each rank has other data and random numbers."""
    first, *others = on_ranks(world, _everything, world, {})
    assert first[2][0], first[2][1]  # so that a changed start is compared
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert a == b


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}]
)
def test_every_kind_of_wrapper_goes_on_training(options):
    first, other = on_ranks(2, _everything, 2, options)
    assert first == other


def _union(rank, world):
    model = nn.Sequential(deep_sigmoid(), nn.BatchNorm1d(2))
    parts = shard(rank, world)
    together = theta0.diagnose(model, parts, "cross_entropy", probe_steps=0)
    with theta0.this_rank_only():
        whole = [batch for pair in zip(*(shard(r, world) for r in range(world)), strict=True) for batch in pair]
        alone = theta0.diagnose(model, whole, "cross_entropy", probe_steps=0)
        own = theta0.diagnose(model, parts, "cross_entropy", probe_steps=0)
    same = theta0.diagnose(model, shard(0, 1), "cross_entropy", probe_steps=0)
    return together.records == alone.records, together.records == own.records, len(same.records)


def test_what_is_measured_is_what_one_process_measures_on_the_batches_of_all():
    for as_one, as_own, records in on_ranks(2, _union, 2):
        assert as_one
        assert not as_own
        assert records


def _unlike(rank):
    """Before the wrapper every rank has drawn its own values: the wrapper will take the first rank's."""
    model = deep_sigmoid(seed=rank)
    before = state_of(model)
    found = theta0.diagnose(model, shard(rank, 2), "cross_entropy", probe_steps=0)
    assert state_of(model) == before
    assert theta0.treat(model, shard(rank, 2), "cross_entropy", with_="lcw", learning_rate=0.5, steps=20).kept
    kept = [p.tolist() for p in model.parameters()]
    refused = ""
    try:
        theta0.diagnose(nn.Linear(8, 2 + rank), shard(rank, 2), "cross_entropy")
    except ValueError as error:
        refused = str(error)
    return plain(found), kept, refused


@pytest.mark.slow
def test_unlike_ranks_are_judged_by_the_first_ones_values_and_other_models_are_refused():
    first, other = on_ranks(2, _unlike)
    for a, b in zip(first, other, strict=True):
        assert a == b
    assert "got another on rank 1" in first[2]


class Failing(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.at, self.linear = at, nn.Linear(8, 2)

    def forward(self, x):
        if distributed.get_rank() == self.at:
            raise RuntimeError("no memory left here")
        return self.linear(x)


def _failing(rank):
    def told(call):
        try:
            call()
        except (ValueError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    model, data = deep_sigmoid(), shard(rank, 2)
    broken = [(x.fill_(float("nan")) if rank else x, y) for x, y in shard(rank, 2)]
    found = [
        told(lambda: theta0.diagnose(Failing(1), data, "cross_entropy", probe_steps=0)),
        told(lambda: theta0.diagnose(model, broken, "cross_entropy", probe_steps=0)),
        told(lambda: theta0.diagnose(model, [] if rank else data, "cross_entropy", probe_steps=0)),
        told(lambda: meet("here" if rank else "there")),
        told(lambda: theta0.diagnose(model, data, "cross_entropy", probe_steps=0)),
    ]
    assert from_first(rank) == 0
    assert from_all(rank) == [0, 1]
    os.environ["THETA0_RANK_TIMEOUT"] = "0.5"
    if rank == 0:
        found.append(told(lambda: theta0.diagnose(model, data, "cross_entropy", probe_steps=0)))
    return found


def test_what_fails_on_one_rank_ends_on_all_and_a_rank_that_does_not_come_is_named():
    first, other = on_ranks(2, _failing)
    assert "no memory left here" in other[0]
    assert first[0].startswith("RankError: rank 1: batch 0: the model's forward raised RuntimeError: no memory left")
    assert "expected finite numbers" in other[1]
    assert "expected finite numbers" in first[1]
    assert first[2] == other[2] == ""  # the other rank's data are enough
    assert "rank 1 is at here" in first[3]
    assert first[4] == other[4] == ""
    assert "got nothing of rank 1; call it on every rank" in first[5]


def _sharded(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    second, tensors = deep_sigmoid(), deep_sigmoid()
    fully_shard(second[0], mesh=mesh)
    fully_shard(second, mesh=mesh)
    parallelize_module(tensors, mesh, {"0": ColwiseParallel()})
    models = [FullyShardedDataParallel(deep_sigmoid(), device_id=torch.device("cpu")), second, tensors]
    models.append(nn.Sequential(nn.Linear(8, 8), models[0]))  # a part alone
    calls = [theta0.diagnose, theta0.treat, theta0.explain, theta0.suggest_learning_rate, theta0.compare]
    calls += [theta0.measurements.signals, theta0.initializers.nio_, theta0.initializers.unit_variance_]
    calls += [lambda model, *data: theta0.parametrize_(model, "lcw"), theta0.top_eigenvalue]
    told = []
    for model in models:
        for call in calls:
            try:
                call(model, [], "cross_entropy")
                told.append("nothing")
            except ValueError as error:
                told.append(str(error))
    return told


def test_sharded_models_are_refused_in_one_sentence_before_any_work():
    """FSDP1, FSDP2 and tensor parallelism, in all verbs and in the observations and remedies."""
    for told in on_ranks(2, _sharded):
        assert all("got one sharded over processes" in text and "before it is sharded" in text for text in told), told


class Nested(nn.Module):
    """Tied across wrappers: the encoder has a wrapper of its own, whose weight the head applies too."""

    def __init__(self):
        super().__init__()
        self.encoder = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8, bias=False)))
        self.head = nn.Linear(8, 2)
        self.tied = self.encoder.module[2]

    def forward(self, x):
        return self.head(self.tied(self.encoder(x)))


def _nested(rank):
    torch.manual_seed(0)
    model = Nested()
    train(model, rank, 1)
    before = state_of(model)
    found = theta0.diagnose(model, shard(rank, 2), "cross_entropy", learning_rate=0.1, probe_steps=20)
    assert state_of(model) == before
    train(model, rank)
    theta0.treat(model, shard(rank, 2), "cross_entropy", with_="lcw", learning_rate=0.1, steps=20)
    assert model.tied is model.encoder.module[2]
    train(model, rank)
    closure = DistributedDataParallel(deep_sigmoid())
    step = {"step": lambda model, batch: nn.functional.cross_entropy(closure(batch[0]), batch[1])}
    theta0.diagnose(closure, shard(rank, 2), probe_steps=0, **step)
    return plain(found), train(closure, rank)


@pytest.mark.slow
def test_wrappers_inside_a_model_and_in_a_step_of_the_users_go_on_training():
    first, other = on_ranks(2, _nested)
    assert first == other


TARGET = """
from torch import nn
import torch
from torch import distributed
torch.manual_seed(0)
loss, learning_rate = "cross_entropy", 0.1
def model():
    parts = (p for _ in range(8) for p in (nn.Linear(8, 8), nn.Sigmoid()))
    return nn.Sequential(*parts, nn.Linear(8, 2))
def batches():
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(RANK))
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16)))
"""


def command(world, *arguments):
    """What every rank prints and its exit code, started as `torchrun` starts processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "theta0", *arguments], env=os.environ | common | {"RANK": str(rank)}, **pipes
        )
        for rank in range(world)
    ]
    return [(*process.communicate(timeout=200), process.returncode) for process in started]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_the_command_line_prints_once_and_leaves_every_rank_with_one_exit_code(world, tmp_path):
    target, out = tmp_path / "target.py", tmp_path / "start.safetensors"
    target.write_text("import os\nRANK = int(os.environ['RANK'])\n" + TARGET)
    (report, _, code), *others = command(world, "diagnose", str(target), "--no-probe", "--json")
    assert report.count('"schema"') == 1
    for printed, errors, other in others:
        assert (printed, errors, other) == ("", "", code)
    results = command(world, "treat", str(target), "--with", "lcw", "--steps", "10", "--out", str(out))
    assert len({code for *_, code in results}) == 1
    assert out.exists() == (results[0][2] == 0)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_a_script_of_several_processes_is_captured_on_each(world):
    """Its gradients are means over the ranks, and it ends its process group when it is stopped."""
    script = Path(__file__).parents[1] / "examples" / "ddp.py"
    (report, errors, code), *others = command(world, "diagnose", str(script), "--no-probe")
    assert "gradients equal the script's" in errors
    assert "batches read 4" in report
    assert code == 0
    assert all(printed == "" and "theta0" not in told and left == 0 for printed, told, left in others)


@pytest.mark.slow
def test_torchrun_shows_the_whole_report_once_where_there_are_findings(tmp_path):
    """It ends the other ranks as soon as one has left with exit code 1: the report is out by then."""
    target = tmp_path / "target.py"
    target.write_text("import os\nRANK = int(os.environ['RANK'])\n" + TARGET)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "-m", "theta0"]
    arguments = ["diagnose", str(target), "--no-probe", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, *arguments], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1
    assert any(finding["severity"] == "error" for finding in json.loads(done.stdout)["findings"])


def test_a_batch_is_sent_without_the_rest_of_the_data_that_it_was_cut_from():
    whole = torch.randn(1000, 8)
    for part in (whole.split(10)[3], whole[30:40].T, whole[30:40]):
        sent = _ranks._sent(part)
        assert torch.equal(sent, part)
        assert len(pickle.dumps(sent)) < 2000
    own = torch.randn(10, 8)
    assert _ranks._sent(own) is own
