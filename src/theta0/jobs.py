"""Independent computations side by side: on the cores of this machine, or on a Dask or Ray cluster, through joblib."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
_LOST = frozenset(("BrokenExecutor", "KilledWorker", "RayActorError", "WorkerCrashedError"))  # a worker, not the task
_TRIES = 3  # after which a task that takes its worker with it ends all


def completed(
    compute: Callable[[T], R], tasks: Mapping[str, T], *, jobs: int | None = None, backend: str | None = None
) -> Iterator[tuple[str, R]]:
    """Results by key, each as soon as it is there, in any order.

    Workers compute with as many threads as this process, and flush denormal numbers where it does, so that results are
    the same. Where a worker dies, what it was at is computed again.

    Args:
        compute: from a task to its result; importable by the workers, or a function that cloudpickle can take along.
        tasks: by key.
        jobs: how many run at once; None is what `joblib.parallel_config` says, else 1, or with a backend all it has.
        backend: joblib's: "loky", "threading", "dask", "ray"; None is what `joblib.parallel_config` says, else "loky".

    Yields:
        A key and its result.

    Raises:
        RuntimeError: if workers die again and again.

    Example:
        >>> dict(completed(abs, {"a": -1, "b": 2}))
        {'a': 1, 'b': 2}
    """
    jobs = processes(jobs, backend)
    if jobs == 1 or len(tasks) < 2:
        yield from ((key, compute(task)) for key, task in tasks.items())
        return
    left, failures = dict(tasks), 0
    while left:
        try:
            for key, result in _parallel(compute, left, jobs, backend):
                del left[key]
                failures = 0
                yield key, result
        except Exception as error:
            failures += 1
            if not any(kind.__name__ in _LOST for kind in type(error).__mro__):
                raise
            if failures == _TRIES:
                raise RuntimeError(
                    f"jobs: expected workers that live, but {_TRIES} times one died (out of memory, or killed) with "
                    f"{len(left)} of {len(tasks)} tasks left. What is in the store stays; run again with fewer jobs."
                ) from error


def processes(jobs: int | None, backend: str | None = None) -> int:
    """How many tasks run at once: as given, else as the surrounding `joblib.parallel_config` says, else one.

    -1, or None with a backend, is all that the backend has.

    Example:
        >>> processes(3)
        3
    """
    if jobs is not None and jobs >= 0:
        return jobs
    if jobs is None and backend is None and "joblib" not in sys.modules:  # then nobody can have configured it
        return 1
    joblib = _joblib()
    with nullcontext() if backend is None else joblib.parallel_config(backend):
        return int(joblib.effective_n_jobs(-1 if jobs is None and backend is not None else jobs))


@contextmanager
def cluster(backend: str | None, jobs: int | None = None) -> Iterator[str | None]:
    """Within the block, a cluster is connected.

    Args:
        backend: `dask://HOST:PORT` or `ray://HOST:PORT` for a cluster that runs; `dask` or `ray` for the one that this
            process is connected to, else one that is started on this machine and ended after the block; another name
            of joblib's, or None, is left as it is.
        jobs: how many workers a cluster on this machine gets; None is one for each core.

    Yields:
        The name that joblib knows it by.

    Raises:
        ValueError: if the package is not installed.

    Example:
        >>> with cluster("threading") as name:
        ...     name
        'threading'
    """
    kind, _, address = (backend or "").partition("://")
    if kind == "dask":
        with _dask(address, jobs):
            yield "dask"
    elif kind == "ray":
        with _ray(address, jobs):
            yield "ray"
    else:
        yield backend


@contextmanager
def _dask(address: str, jobs: int | None) -> Iterator[None]:
    distributed = installed("distributed", "dask")
    if not address and _connected(distributed):
        yield
        return
    local = {
        "n_workers": jobs,
        "threads_per_worker": 1,
        "dashboard_address": ":0",
    }  # any free port: another cluster may run
    with distributed.Client(f"tcp://{address}") if address else distributed.Client(**local):
        yield


def _connected(distributed: Any) -> bool:
    try:
        distributed.default_client()
    except ValueError:
        return False
    return True


@contextmanager
def _ray(address: str, jobs: int | None) -> Iterator[None]:
    ray, bridge = installed("ray", "ray"), installed("ray.util.joblib", "ray")
    bridge.register_ray()
    if ray.is_initialized():
        yield
        return
    # "local": without it Ray looks for a cluster in the environment, and for one that has run here before.
    local = {"address": "local", "num_cpus": jobs, "include_dashboard": False, "configure_logging": False}
    ray.init(**({"address": f"ray://{address}"} if address else local), log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _parallel(
    compute: Callable[[T], R], tasks: Mapping[str, T], jobs: int, backend: str | None
) -> Iterator[tuple[str, R]]:
    joblib = _joblib()
    setting = torch.get_num_threads(), _flushes_denormals()
    with nullcontext() if backend is None else joblib.parallel_config(backend):  # which finds Dask's, too
        if type(joblib.parallel.get_active_backend()[0]).__name__ == "RayBackend":
            yield from _on_ray(compute, tasks, jobs, setting)
            return
        parallel = joblib.Parallel(jobs, return_as="generator_unordered", batch_size=1)
    yield from parallel(joblib.delayed(_computed)(compute, key, task, *setting) for key, task in list(tasks.items()))


def _on_ray(
    compute: Callable[[T], R], tasks: Mapping[str, T], jobs: int, setting: tuple[int, bool]
) -> Iterator[tuple[str, R]]:
    """As Ray's own tasks: joblib's pool on Ray returns everything at the end, and waits forever for a dead worker."""
    ray = installed("ray", "ray")
    remote, common = ray.remote(max_retries=_TRIES)(_computed), ray.put(compute)
    waiting, running = list(tasks.items()), list[Any]()
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(remote.remote(common, *waiting.pop(0), *setting))
        done, running = ray.wait(running)
        yield from ray.get(done)


def _computed(compute: Callable[[T], R], key: str, task: T, threads: int, flush: bool) -> tuple[str, R]:
    before = torch.get_num_threads(), _flushes_denormals()
    _set(threads, flush)
    try:
        return key, compute(task)
    finally:
        _set(*before)  # a thread, or a worker that others use as well


def _set(threads: int, flush: bool) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(flush)


def _flushes_denormals() -> bool:
    return float(torch.tensor(1e-39, dtype=torch.float32) * 0.5) == 0.0


def _joblib() -> Any:
    return installed("joblib", "papers")


def installed(name: str, extra: str) -> Any:
    """A module of an optional group of dependencies, or a `ValueError` that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"backend: expected {name} to be installed, got {error}; install it: pip install 'theta0[{extra}]'"
        ) from error
