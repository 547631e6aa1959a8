"""Races and sweeps by several processes: the same results as by one, and nothing lost where a worker dies."""

import dataclasses
import importlib.util
import os
import pickle
import signal
import sys

import pytest
import torch
from torch import nn

from cases import normal
from theta0 import compare
from theta0._batches import load_batches
from theta0.comparison.performing import packed
from theta0.comparison.starts import Makers
from theta0.experiments import optimizer_kind
from theta0.jobs import cluster, completed
from theta0.targets import load_target
from theta0.treatment.trials import trial_of

pytest.importorskip("joblib")
SHORT = {"starts": ("default", "lcw", "unit-variance"), "steps": 6, "seeds": 2, "optimizer": "momentum"}
CLUSTERS = [
    "loky",
    *(
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.skipif(not there, reason=f"{name} is not installed")])
        for name, there in (("dask", importlib.util.find_spec("distributed")), ("ray", importlib.util.find_spec("ray")))
    ),
]


def net():
    return nn.Sequential(nn.Linear(16, 16), nn.Sigmoid(), nn.Dropout(0.1), nn.Linear(16, 2))


def learnable():
    x = normal(8 * 16, 16)
    return list(zip(x.split(16), (x[:, 0] > 0).long().split(16), strict=True))


def timeless(found):
    """A race without its clocks."""
    standings = tuple(dataclasses.replace(s, seconds=0.0) for s in found.standings)
    candidates = tuple(dataclasses.replace(c, seconds=0.0) for c in found.candidates)
    return dataclasses.replace(found, standings=standings, candidates=candidates, seconds=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("backend", CLUSTERS)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of the clusters' own modules
def test_a_race_by_several_processes_is_that_by_one(backend, tmp_path):
    torch.manual_seed(0)
    model = net()
    alone = compare(model, learnable(), "cross_entropy", **SHORT)
    store = tmp_path / "race.jsonl"
    shared = compare(model, learnable(), "cross_entropy", **SHORT, jobs=2, backend=backend, store=store)
    assert timeless(shared) == timeless(alone)
    lines = store.read_text().splitlines()
    again = compare(model, learnable(), "cross_entropy", **SHORT, store=store)
    assert timeless(again) == timeless(alone)
    assert store.read_text().splitlines() == lines


def test_the_surrounding_configuration_of_joblib_counts():
    import joblib

    with joblib.parallel_config("threading", n_jobs=2):
        found = compare(net, learnable(), "cross_entropy", **SHORT)
    assert timeless(found) == timeless(compare(net, learnable(), "cross_entropy", **SHORT))


def dies(task):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("backend", CLUSTERS)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_worker_that_dies_loses_nothing(backend, tmp_path):
    marker = tmp_path / "marker"

    def dies_once(number):  # within the test, so that it travels by value: no worker knows this file
        if number == 1 and not marker.exists():
            marker.write_text("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return number, torch.get_num_threads()

    tasks = {str(number): number for number in range(5)}
    with cluster(backend, 2) as name:
        found = dict(completed(dies_once, tasks, jobs=2, backend=name))
    assert found == {str(number): (number, torch.get_num_threads()) for number in range(5)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_task_that_always_takes_its_worker_with_it_ends_in_a_sentence():
    with pytest.raises(RuntimeError, match="expected workers that live"):
        list(completed(dies, {"a": 1, "b": 2}, jobs=2, backend="loky"))


def test_what_cannot_be_pickled_is_refused_in_a_sentence():
    model = net()
    model[0].held = (number for number in range(3))
    with pytest.raises(ValueError, match="can be pickled"):
        compare(model, learnable(), "cross_entropy", **SHORT, jobs=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_dask_cluster_that_runs_by_its_address_and_by_the_surrounding_configuration(tmp_path):
    distributed = pytest.importorskip("distributed")
    import joblib

    torch.manual_seed(0)
    model = net()
    alone = timeless(compare(model, learnable(), "cross_entropy", **SHORT))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as local:
        address = local.scheduler_address.replace("tcp", "dask")
        assert timeless(compare(model, learnable(), "cross_entropy", **SHORT, backend=address)) == alone
        with distributed.Client(local), joblib.parallel_config("dask"):
            assert timeless(compare(model, learnable(), "cross_entropy", **SHORT)) == alone


def test_classes_of_a_target_file_travel_along(tmp_path, monkeypatch):
    """Such a module is loaded under a name by which no worker finds it."""
    path = tmp_path / "kept.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\nloss = 'cross_entropy'\n\n\nclass Net(nn.Linear):\n    pass\n\n\n"
        "def model():\n    return Net(4, 2)\n\n\n"
        "def batches():\n    return [(torch.ones(8, 4), torch.arange(8) % 2)] * 4\n"
    )
    target = load_target(str(path))
    data = load_batches(target.batches, target.model)
    trial = trial_of(data, target.loss, optimizer=optimizer_kind("sgd", target.model), rate=0.1, steps=2)
    shared = packed(Makers(target.model, trial.rest, target.loss), trial)
    monkeypatch.delitem(sys.modules, type(target.model).__module__)
    assert type(pickle.loads(shared)[0]).__name__ == "Net"
