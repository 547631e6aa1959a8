"""Commands on a cluster that runs, by its address: a scheduler and workers of their own, results as of one process."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import theta0

pytest.importorskip("joblib")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(theta0.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120",
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # else every other server that Ray forks for a client hangs
}
TARGET = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 16)
loss = "cross_entropy"
optimizer = "momentum"


class Net(nn.Sequential):  # which no worker can import
    pass


def model():
    return Net(*(part for _ in range(4) for part in (nn.Linear(16, 16), nn.Sigmoid())), nn.Linear(16, 2))


def batches():
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16)))
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def process(*command, log):
    """A process in a session of its own, which ends with the block and takes what it has started with it."""
    with log.open("w") as file, subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=file, stderr=file, env=ENVIRONMENT, start_new_session=True
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            for wanted in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(running.pid, wanted)
                    running.wait(20)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue


def wait_for(what, log, seconds=90):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, log.read_text()[-2000:]
        time.sleep(0.2)


def listens(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def dask(folder):
    """A scheduler and two workers, as `dask scheduler` and `dask worker` start them."""
    port = free_port()
    scheduler = "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"
    worker = "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nworkers", "2", "--nthreads", "1"
    with process(*scheduler, log=folder / "scheduler.log"):
        wait_for(lambda: listens(port), folder / "scheduler.log")
        log = folder / "worker.log"
        with process(*worker, "--no-dashboard", "--local-directory", folder, log=log):
            wait_for(lambda: log.read_text().count("Registered to") >= 2, log)
            yield f"dask://127.0.0.1:{port}"


@contextmanager
def ray(folder):
    """A head node with two processors and its client port, as `ray start --head` starts it."""
    port, log = free_port(), folder / "ray.log"
    short = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # the names of its sockets may not be long
    head = "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "2", "--include-dashboard", "false"
    ports = (
        "--node-ip-address",
        "127.0.0.1",
        "--port",
        free_port(),
        "--ray-client-server-port",
        port,
        "--temp-dir",
        short,
    )
    try:
        with process(*head, *ports, "--disable-usage-stats", log=log):
            wait_for(lambda: listens(port), log)
            yield f"ray://127.0.0.1:{port}"
    finally:
        shutil.rmtree(short, ignore_errors=True)


CLUSTERS = [
    pytest.param(start, marks=pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}"))
    for start, package in ((dask, "distributed"), (ray, "ray"))
]
each_cluster = pytest.mark.parametrize("cluster", CLUSTERS, ids=["dask", "ray"])


def command(*arguments, folder):
    done = subprocess.run(
        [sys.executable, "-m", "theta0", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def timeless(value):
    """Numbers without those of clocks."""
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if "seconds" not in key}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def lines_of(path):
    return sorted(json.dumps(timeless(json.loads(line)), sort_keys=True) for line in path.read_text().splitlines())


@each_cluster
def test_a_race_and_an_experiment_on_a_cluster_are_those_of_one_process(cluster, tmp_path):
    (tmp_path / "net.py").write_text(TARGET)
    race = "compare", "net.py", "--starts", "default,lcw", "--steps", "4", "--seeds", "1", "--json"
    figure = "reproduce", "furusho2020thesis", "fig17", "--scale", "smoke"
    alone = json.loads(command(*race, "--store", "alone.jsonl", folder=tmp_path))
    drawn = command(*figure, "--out", "alone", folder=tmp_path)
    with cluster(tmp_path) as address:
        found = json.loads(command(*race, "--store", "shared.jsonl", "--backend", address, folder=tmp_path))
        assert timeless(found) == timeless(alone)
        assert lines_of(tmp_path / "shared.jsonl") == lines_of(tmp_path / "alone.jsonl")
        kept = (tmp_path / "shared.jsonl").read_text()
        again = json.loads(command(*race, "--store", "shared.jsonl", "--backend", address, folder=tmp_path))
        assert timeless(again) == timeless(alone)
        assert (tmp_path / "shared.jsonl").read_text() == kept  # nothing was made again
        assert command(*figure, "--out", "shared", "--backend", address, folder=tmp_path).replace(
            "shared", "alone"
        ) == drawn  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "shared").iterdir())
    for name in names:
        if name.endswith(".json"):
            one, other = (json.loads((tmp_path / folder / name).read_text()) for folder in ("alone", "shared"))
            assert timeless(one) == timeless(other)
        elif name.endswith(".jsonl"):
            assert lines_of(tmp_path / "alone" / name) == lines_of(tmp_path / "shared" / name)
