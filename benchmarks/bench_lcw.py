"""Forward + backward of one constrained Linear against the plain layer, in fresh processes.

`python benchmarks/bench_lcw.py --out benchmarks/results/lcw.json` (seven minutes; `--quick` one).

Within a process all kinds take turns, round after round; a round's ratio is a kind's time over the plain layer's of
the same round; a process reports the median over its rounds; the file holds the median over processes, with the least
and the largest.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from theta0.parametrizations import linearly_constrained

# (in = out, batch): rounds
CASES = {(256, 128): 400, (1024, 128): 100, (1024, 1024): 40, (4096, 128): 10}


class QRBasis(nn.Module):
    """w = B v with a stored orthonormal basis B of 1^⊥ from the QR factors of [I; -1ᵀ] (kutsuna2019lcw §3.2)."""

    basis: Tensor

    def __init__(self, fan_in: int):
        super().__init__()
        spanning = torch.cat([torch.eye(fan_in - 1), -torch.ones(1, fan_in - 1)])
        self.register_buffer("basis", torch.linalg.qr(spanning).Q)

    def forward(self, v: Tensor) -> Tensor:
        """W = V Bᵀ."""
        return v @ self.basis.T

    def right_inverse(self, weight: Tensor) -> Tensor:
        """V = W B."""
        return weight @ self.basis


KINDS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "plain": lambda layer: layer,
    "lcw_ambient": linearly_constrained,
    "lcw_orthonormal": lambda layer: linearly_constrained(layer, coordinates="orthonormal"),
    "weight_norm": weight_norm,
    "qr_basis": lambda layer: parametrize.register_parametrization(layer, "weight", QRBasis(layer.in_features)),
}


def seconds(layer: nn.Module, inputs: Tensor, upstream: Tensor) -> float:
    """One forward and backward, gradients of the input included (the layer is a hidden one)."""
    layer.zero_grad(set_to_none=True)
    inputs.grad = None
    begin = time.perf_counter()
    layer(inputs).backward(upstream)
    return time.perf_counter() - begin


def measure(width: int, batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """All kinds in turn; every round starts with the next kind, so that none always follows the same one."""
    generator = torch.Generator().manual_seed(0)
    layers = {kind: make(nn.Linear(width, width)) for kind, make in KINDS.items()}
    inputs = torch.randn(batch, width, generator=generator).requires_grad_()
    upstream = torch.randn(batch, width, generator=generator)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    order = list(KINDS)
    for turn in range(-2, rounds):  # two rounds to warm up
        for kind in order[turn % len(order) :] + order[: turn % len(order)]:
            taken = seconds(layers[kind], inputs, upstream)
            if turn >= 0:
                times[kind].append(taken)
    return {
        kind: {
            "ratio": statistics.median(t / p for t, p in zip(taken, times["plain"], strict=True)),
            "milliseconds": 1e3 * statistics.median(taken),
        }
        for kind, taken in times.items()
    }


def worker(width: int, batch: int, rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    print(json.dumps(measure(width, batch, rounds)))


def fresh_process(width: int, batch: int, rounds: int, threads: int) -> dict[str, dict[str, float]]:
    arguments = [str(x) for x in (width, batch, rounds, threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--worker", *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result: dict[str, dict[str, float]] = json.loads(done.stdout)
    return result


def over_processes(runs: list[dict[str, dict[str, float]]], kind: str) -> dict[str, float]:
    ratios = [run[kind]["ratio"] for run in runs]
    return {
        "ratio": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "milliseconds": round(statistics.median(run[kind]["milliseconds"] for run in runs), 4),
    }


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two processes, a fifth of the rounds")
    parser.add_argument("--worker", type=int, nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    processes, share = (2, 5) if given.quick else (given.processes, 1)
    results = []
    for (width, batch), rounds in CASES.items():
        runs = [fresh_process(width, batch, max(2, rounds // share), given.threads) for _ in range(processes)]
        kinds = {kind: over_processes(runs, kind) for kind in KINDS}
        results.append({"in": width, "out": width, "batch": batch, "rounds": max(2, rounds // share), "kinds": kinds})
        for kind, figures in kinds.items():
            spread = f"[{figures['ratio_min']:.3f}, {figures['ratio_max']:.3f}]"
            print(f"{width:5d}² batch {batch:4d} {kind:16s} {figures['ratio']:7.3f} {spread}", flush=True)
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "machine": platform.machine(),
        "threads": given.threads,
        "processes": processes,
        "flush_denormal": True,
        "quick": given.quick,
    }
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps({"environment": environment, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
