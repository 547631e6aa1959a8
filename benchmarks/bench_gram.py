"""The gradient Gram matrix against storing per-sample gradients: peak memory, cost in gradients, time.

`python benchmarks/bench_gram.py --out benchmarks/results/gram.json` (one to two minutes on one thread).

Memory is the largest sum of live allocations that torch's profiler sees, beyond what was there before; times are
medians over interleaved rounds in one process, given as multiples of one gradient (forward and backward of the whole
batch) of the same round; the error is the largest entry of the difference to the double-precision Gram matrix,
relative to its largest entry.
"""

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from theta0.measurements import gradient_gram


class Mean(nn.Module):
    """The mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def mlp() -> nn.Module:
    hidden = [part for i, o in pairwise((64, 256, 256, 256)) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(256, 10))


def cnn() -> nn.Module:
    blocks = [
        part
        for i, o in pairwise((3, 32, 64, 128))
        for part in (nn.Conv2d(i, o, 3, stride=2, padding=1), nn.GroupNorm(8, o), nn.ReLU())
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128 * 16, 10))


def transformer() -> nn.Module:
    block = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(2)]
    return nn.Sequential(nn.Embedding(65, 64), *block, Mean(), nn.Linear(64, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp, 128 samples": (mlp, lambda: torch.randn(128, 64)),
    "group-norm cnn, 64 samples": (cnn, lambda: torch.randn(64, 3, 32, 32)),
    "transformer, 64 samples of 16": (transformer, lambda: torch.randint(0, 65, (64, 16))),
}


def stored(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """G from vmap(grad), everything stored."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def value(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (x[None],)), y[None])

    found = vmap(grad(value), (None, 0, 0))(parameters, inputs, targets)
    rows = torch.cat([g.flatten(1) for g in found.values()], 1)
    return rows @ rows.T


def gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Any:
    """One forward and backward pass."""
    return torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))


def peak(function: Callable[[], Any]) -> int:
    """Bytes, of live allocations made within."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    assert profile.profiler is not None
    return max(accumulate(e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"))


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measured(make: Callable[[], nn.Module], data: Callable[[], Tensor], rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = make(), data()
    targets = torch.randint(0, 10, (len(inputs),))
    double = copy.deepcopy(model).double()
    exact = stored(double, inputs.double() if inputs.is_floating_point() else inputs, targets)
    kinds = {
        "gradient": lambda: gradient(model, inputs, targets),
        "gram": lambda: gradient_gram(model, [(inputs, targets)], "cross_entropy"),
        "stored": lambda: stored(model, inputs, targets),
    }
    result = kinds["gram"]()
    bytes_stored = 4 * len(inputs) * sum(p.numel() for p in model.parameters())
    peaks = {kind: peak(function) for kind, function in kinds.items()}
    ratios: dict[str, list[float]] = {"gram": [], "stored": []}
    for _ in range(rounds):
        times = {kind: seconds(function) for kind, function in kinds.items()}
        for kind, values in ratios.items():
            values.append(times[kind] / times["gradient"])
    return {
        "cost_in_gradients": result.cost,
        "routes": {route: list(result.routes.values()).count(route) for route in sorted(set(result.routes.values()))},
        "error": float((result.gram - exact).abs().max() / exact.abs().max()),
        "per_sample_gradients_bytes": bytes_stored,
        "peak_bytes": peaks,
        "memory_share": peaks["gram"] / bytes_stored,
        "time_in_gradients": {kind: statistics.median(values) for kind, values in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: measured(*case, arguments.rounds) for name, case in CASES.items()}
    environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    text = json.dumps({"environment": environment, "threads": 1, "results": results}, indent=2)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
