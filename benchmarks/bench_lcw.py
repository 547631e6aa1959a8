"""What a constrained weight costs: lone Linear layers, ResNet-18, and the 50-layer network of kutsuna2019lcw Fig. 5.

`python benchmarks/bench_lcw.py --out benchmarks/results/lcw.json` (half an hour on one core; `--quick` takes a fifth;
`--case mlp50` one case, may be given several times).

A lone layer's time is forward and backward, a network's is a whole training step: forward, backward and an SGD step.
Within a process all kinds take turns, round after round; a round's ratio is a kind's time over the plain one's of the
same round; a process reports the median over its rounds; the file holds the median over processes, with the least and
the largest. One thread, denormals flushed, and networks that start from weights under which nothing vanishes: the same
zero-sum weights for all kinds.
"""

import argparse
import copy
import functools
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

from theta0.initializers import unit_variance_
from theta0.papers.models import deep_perceptron, preactivation_resnet18
from theta0.parametrizations import linearly_constrained, parametrize_, remove_

Step = Callable[[], None]
# lone layers: in = out, batch; rounds
LAYERS = {"256x128": 400, "1024x128": 100, "1024x1024": 40, "4096x128": 10}
NETWORKS = {"mlp50": 30, "resnet18": 3}
CASES = {**LAYERS, **NETWORKS}


@functools.cache
def qr_basis(fan_in: int) -> Tensor:
    """An orthonormal basis of 1^⊥ from the QR factors of [I; -1ᵀ] (kutsuna2019lcw App. B)."""
    return torch.linalg.qr(torch.cat([torch.eye(fan_in - 1), -torch.ones(1, fan_in - 1)])).Q


class QRBasis(nn.Module):
    """w = B v with a stored basis B, as in the source."""

    basis: Tensor

    def __init__(self, weight: Tensor):
        super().__init__()
        self.shape = weight.shape
        self.register_buffer("basis", qr_basis(weight[0].numel()))

    def forward(self, v: Tensor) -> Tensor:
        """W = V Bᵀ."""
        return (v @ self.basis.T).reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """V = W B."""
        return weight.flatten(1) @ self.basis


def with_qr_basis(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", QRBasis(layer.weight))  # type: ignore[arg-type]


KINDS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda layer: layer,
    "lcw_ambient": linearly_constrained,
    "lcw_orthonormal": lambda layer: linearly_constrained(layer, coordinates="orthonormal"),
    "weight_norm": weight_norm,
    "qr_basis": with_qr_basis,
}


def every_layer(model: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    for layer in [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]:
        make(layer)
    return model


def lone_layers(width: int, batch: int) -> dict[str, Step]:
    """One forward and backward, gradients of the input included (the layer is a hidden one)."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(batch, width, generator=generator).requires_grad_()
    upstream = torch.randn(batch, width, generator=generator)

    def step(layer: nn.Module) -> None:
        layer.zero_grad(set_to_none=True)
        inputs.grad = None
        layer(inputs).backward(upstream)

    return {kind: functools.partial(step, make(nn.Linear(width, width))) for kind, make in KINDS.items()}


def networks(name: str) -> dict[str, Step]:
    """One training step of each kind, from the same zero-sum start of unit variance."""
    torch.manual_seed(0)
    if name == "mlp50":  # kutsuna2019lcw Fig. 5
        model, inputs = deep_perceptron(784, 10), torch.randn(128, 784)
    else:
        model, inputs = preactivation_resnet18(10), torch.randn(64, 3, 32, 32)
    targets = torch.randint(0, 10, (len(inputs),))
    parametrize_(model, "lcw")
    if name == "mlp50":
        unit_variance_(model, [inputs])
    remove_(model)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    steps: dict[str, Step] = {}
    for kind, make in KINDS.items():
        net = every_layer(copy.deepcopy(model), make)
        steps[kind] = functools.partial(
            step, net, torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
        )
    return steps


def measure(steps: dict[str, Step], rounds: int) -> dict[str, dict[str, float]]:
    """All kinds in turn; every round starts with the next kind, so that none always follows the same one."""
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    order = list(steps)
    for turn in range(-1 if rounds < 10 else -2, rounds):  # the first rounds warm up
        for kind in order[turn % len(order) :] + order[: turn % len(order)]:
            begin = time.perf_counter()
            steps[kind]()
            if turn >= 0:
                times[kind].append(time.perf_counter() - begin)
    return {
        kind: {
            "ratio": statistics.median(t / p for t, p in zip(taken, times["plain"], strict=True)),
            "milliseconds": 1e3 * statistics.median(taken),
        }
        for kind, taken in times.items()
    }


def worker(case: str, rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    steps = lone_layers(*map(int, case.split("x"))) if case in LAYERS else networks(case)
    print(json.dumps(measure(steps, rounds)))


def fresh_process(case: str, rounds: int, threads: int) -> dict[str, dict[str, float]]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--worker", case, str(rounds), str(threads)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case; may be repeated")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two processes, a fifth of the rounds")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.worker:
        worker(given.worker[0], int(given.worker[1]), int(given.worker[2]))
        return
    processes, share = (2, 5) if given.quick else (given.processes, 1)
    results = []
    for case in given.case or CASES:
        rounds = max(2, CASES[case] // share)
        runs = [fresh_process(case, rounds, given.threads) for _ in range(processes)]
        kinds = {kind: over_processes(runs, kind) for kind in KINDS}
        results.append({"case": case, "rounds": rounds, "kinds": kinds})
        for kind, figures in kinds.items():
            spread = f"[{figures['ratio_min']:.3f}, {figures['ratio_max']:.3f}]"
            print(f"{case:10s} {kind:16s} {figures['ratio']:7.3f} {spread}", flush=True)
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
