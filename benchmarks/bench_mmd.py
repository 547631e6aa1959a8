"""One step of the label-free initialization on the paper's network, against explicit perturbations.

`python benchmarks/bench_mmd.py --out benchmarks/results/mmd.json` (five minutes; `--quick` one).

The network is lee2023mmd's (784-392-392-392-2, ReLU), the batch 32 images, 256 perturbations; a step is forward,
backward and Adam. Within a process all kinds take turns, round after round; a round's ratio is a rival's time over
ours in the same round, and the file holds the median of the ratios. Peak memory is that of a fresh process for each
kind, less what it held before its first step. The breakdown times our step's parts one by one.
"""

import argparse
import itertools
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from theta0._state import twice_differentiable
from theta0.initializers.mmd import Weights, mmd_terms
from theta0.measurements import simplex_discrepancy
from theta0.measurements.degeneracy import degenerate_loss
from theta0.measurements.output_jacobian import detachment_loss
from theta0.measurements.perturbation_noise import _factor, noise_from, normal
from theta0.measurements.perturbed_outputs import neighbourhood, sampled

BATCH, PERTURBATIONS, SCALE = 32, 256, math.sqrt(0.5)
MEMORY = 2**30
Step = Callable[[int], float]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    sizes = [784, 392, 392, 392, 2]
    parts: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layer = nn.Linear(fan_in, fan_out)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def naive_discrepancy(points: Tensor, uniform: Tensor) -> Tensor:
    """MMD² as one would write it: distance matrices of all samples at once, nine exponentials, torch's median."""

    def squares(a: Tensor, b: Tensor) -> Tensor:
        return (a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None] - 2 * a @ b.mT).clamp_min(0)

    count, others = points.shape[1], uniform.shape[1]
    parts = squares(points, points), squares(points, uniform), squares(uniform, uniform)
    rows, columns = torch.triu_indices(count, count, 1)
    pairs = [parts[0][:, rows, columns], parts[1].flatten(1), parts[2][:, rows, columns]]
    median = torch.cat(pairs, 1).detach().median(1).values[:, None, None]
    one, cross, two = (sum(torch.exp(-p / (2 * 4.0**i * median)) for i in range(-4, 5)) for p in parts)
    off = 1 - torch.eye(count)
    return (
        (one * off).sum((1, 2)) / (count * (count - 1))
        + (two * off).sum((1, 2)) / (others * (others - 1))
        - 2 * cross.mean((1, 2))
    )


def loss_of(model: nn.Module, logits: Tensor, inputs: Tensor, *, naive: bool) -> Tensor:
    probabilities = logits.softmax(-1)
    generator = torch.Generator().manual_seed(0)
    uniform = simplex_discrepancy.uniform_simplex(len(inputs), PERTURBATIONS, logits.shape[-1], generator)
    measure = naive_discrepancy if naive else simplex_discrepancy.discrepancy
    uniformity = measure(probabilities.transpose(0, 1), uniform).mean()
    return uniformity + 0.4 * degenerate_loss(probabilities) + detachment_loss(model, inputs)


def deviations(model: nn.Module) -> dict[str, float]:
    return {n: SCALE / math.sqrt(p.shape[-1] if p.dim() > 1 else p.numel()) for n, p in model.named_parameters()}


def drawn(model: nn.Module) -> dict[str, Tensor]:
    stds = deviations(model)
    return {n: p + stds[n] * torch.randn(PERTURBATIONS, *p.shape) for n, p in model.named_parameters()}


def vmap_logits(model: nn.Module, inputs: Tensor) -> Tensor:
    return vmap(lambda parameters: functional_call(model, parameters, (inputs,)))(drawn(model))


def baddbmm_logits(model: nn.Module, inputs: Tensor) -> Tensor:
    parameters = drawn(model)
    rows = inputs.expand(PERTURBATIONS, -1, -1)
    names = [n.removesuffix(".weight") for n in parameters if n.endswith("weight")]
    for name in names:
        rows = torch.baddbmm(parameters[f"{name}.bias"][:, None], rows, parameters[f"{name}.weight"].mT)
        rows = rows if name == names[-1] else rows.relu()
    return rows


def steps(kinds: list[str], inputs: Tensor) -> dict[str, Step]:
    return {kind: step_of(kind, inputs) for kind in kinds}


def step_of(kind: str, inputs: Tensor) -> Step:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 2e-4)
    around = neighbourhood(model, inputs, SCALE) if kind == "theta0" else None

    def loss(seed: int) -> Tensor:
        if around is not None:
            weights = Weights(1.0, 0.4, 1.0)
            return mmd_terms(around, inputs, weights, seed, perturbations=PERTURBATIONS, memory=MEMORY).loss
        torch.manual_seed(seed)
        logits = vmap_logits(model, inputs) if kind.startswith("vmap") else baddbmm_logits(model, inputs)
        return loss_of(model, logits, inputs, naive=kind.endswith("naive kernel"))

    def step(seed: int) -> float:
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss(seed).backward()
        optimizer.step()
        return time.perf_counter() - begin

    return step


KINDS = ["theta0", "vmap, naive kernel", "baddbmm, naive kernel", "vmap, our kernel", "baddbmm, our kernel"]


def speed(rounds: int) -> dict[str, dict[str, float]]:
    inputs = torch.randn(BATCH, 784, generator=torch.Generator().manual_seed(1))
    taking = steps(KINDS, inputs)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(-1, rounds):  # one round to warm up
        for kind in KINDS[turn % len(KINDS) :] + KINDS[: turn % len(KINDS)]:
            taken = taking[kind](turn + 1)
            if turn >= 0:
                times[kind].append(taken)
    found = {}
    for kind, taken_by in times.items():
        ratios = [t / ours for t, ours in zip(taken_by, times["theta0"], strict=True)]
        found[kind] = {
            "milliseconds": round(1e3 * statistics.median(taken_by), 1),
            "ratio": round(statistics.median(ratios), 2),
            "ratio_min": round(min(ratios), 2),
            "ratio_max": round(max(ratios), 2),
        }
    return found


def peak(kind: str) -> float:
    """MiB above what was held before the first step."""
    inputs = torch.randn(BATCH, 784, generator=torch.Generator().manual_seed(1))
    step = step_of(kind, inputs)
    network()(inputs).sum().backward()  # libraries' own buffers
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(2):
        step(seed)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def breakdown(rounds: int) -> dict[str, float]:
    """Milliseconds of the parts of our step, each alone; forward and backward where there is a derivative."""
    inputs = torch.randn(BATCH, 784, generator=torch.Generator().manual_seed(1))
    model = network()
    around = neighbourhood(model, inputs, SCALE)
    seeds = torch.arange(PERTURBATIONS)
    hidden = torch.randn(PERTURBATIONS, BATCH, 392).relu()
    points = torch.randn(BATCH, PERTURBATIONS, 2).softmax(-1).requires_grad_()
    uniform = simplex_discrepancy.uniform_simplex(BATCH, PERTURBATIONS, 2, torch.Generator().manual_seed(0))
    pairs = torch.rand(PERTURBATIONS * (2 * PERTURBATIONS - 1))

    def numbers() -> None:
        noise = noise_from(around.deviations, seeds)
        for _ in range(3):
            normal(noise, (BATCH, 392), hidden)
        normal(noise, (2, 393), hidden)

    def medians() -> None:
        for _ in range(BATCH):
            simplex_discrepancy._median(pairs)

    parts: dict[str, Callable[[], object]] = {
        "whole step": (lambda step: lambda: step(0))(step_of("theta0", inputs)),
        "perturbed outputs": lambda: sampled(around, inputs, seeds).logits.sum().backward(),
        "of these random numbers": numbers,
        "of these Gram matrices and Cholesky factors (forward)": lambda: [
            _factor(hidden, 0.04, 0.04, "") for _ in range(2)
        ],
        "of these products with the mean weights": lambda: (
            [hidden.flatten(0, 1) @ around_weight(model).mT for _ in range(6)]
        ),
        "kernel with its median": lambda: simplex_discrepancy.discrepancy(points, uniform).sum().backward(),
        "of these medians": medians,
        "degenerate softmax": lambda: degenerate_loss(points.transpose(0, 1)).backward(),
        "Jacobian": lambda: detachment_loss(model, inputs).backward(),
    }
    return {name: round(timed(part, rounds), 2) for name, part in parts.items()}


def around_weight(model: nn.Module) -> Tensor:
    return model[2].weight.detach()  # type: ignore[index, union-attr, operator]


def timed(part: Callable[[], object], rounds: int) -> float:
    part()
    taken = []
    for _ in range(rounds):
        begin = time.perf_counter()
        part()
        taken.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(taken)


def worker(task: str, rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    with twice_differentiable(nn.Identity()):
        result = speed(rounds) if task == "speed" else breakdown(rounds) if task == "breakdown" else peak(task)
    print(json.dumps(result))


def fresh_process(task: str, rounds: int, threads: int) -> object:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--worker", task, "--rounds", str(rounds), "--threads", str(threads)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    rounds = 3 if given.quick else given.rounds
    if given.worker:
        worker(given.worker, rounds, given.threads)
        return
    results = {
        "speed": fresh_process("speed", rounds, given.threads),
        "breakdown_milliseconds": fresh_process("breakdown", rounds, given.threads),
        "peak_mebibytes": {kind: fresh_process(kind, rounds, given.threads) for kind in KINDS},
    }
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "threads": given.threads,
        "rounds": rounds,
        "flush_denormal": True,
    }
    text = json.dumps({"environment": environment, **results}, indent=1)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
