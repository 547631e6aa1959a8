"""What a step of a search for scales costs, in gradients: NIO, GradInit and the `gradinit` package on one network.

`python benchmarks/bench_nio.py --out benchmarks/results/nio.json` (about two minutes on one thread).

A gradient is one forward and backward pass over the batch of 128. Costs are given twice: by floating-point operations
of convolutions and matrix products, as torch's counter sees them, and by time: medians over interleaved rounds in one
process. `gradinit` (0.1.1) is left out where it is not installed: `pip install --no-deps gradinit`.
"""

import argparse
import copy
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from theta0._batches import Batch
from theta0._state import functorch_safe
from theta0.initializers import gradinit, nio
from theta0.initializers.scaled_network import scaled_network
from theta0.measurements import gradient_gram
from theta0.papers.models import cifar_resnet

NEVER, ALWAYS = 1e9, 1e-9  # caps under which the objective or the norm is descended
Step = Callable[[], Any]


def steps_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Step]:
    batch = Batch(inputs, targets, len(inputs))
    network = scaled_network(model, "cross_entropy", batch)

    def slope(function: Callable[..., Any], cap: float, **options: Any) -> Step:
        return lambda: network.slopes(function(network, batch, cap, **options).derivative)

    two, four = (partial(nio._equal_cuts, parts=d, overlap=r) for d, r in ((2, 0.6), (4, 0.2)))
    aligned = partial(slope, nio._slope, statistic="max", research=False)
    stepped = partial(slope, gradinit._slope, optimizer="sgd", step_size=0.1)
    return {
        "gradient": lambda: torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters())),
        "nio, D = 2, r = 0.6": aligned(NEVER, cuts=two, joint=True),
        "nio, D = 2, r = 0.6, above the cap": aligned(ALWAYS, cuts=two, joint=True),
        "nio, D = 2, r = 0.6, each part on its own (as under BN)": aligned(NEVER, cuts=two, joint=False),
        "nio, D = 2, r = 0.6, one pass of the whole batch": aligned(NEVER, cuts=two, joint=False, whole=True),
        "nio, D = 4, r = 0.2": aligned(NEVER, cuts=four, joint=False),
        "theta0's gradinit": stepped(NEVER),
        "theta0's gradinit, above the cap": stepped(ALWAYS),
    }


def packaged(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[dict[str, Step], Step]:
    """The package's loop as its README has it; without `loss after a step`: it descends the loss itself."""
    if importlib.util.find_spec("gradinit") is None:
        return {}, lambda: None
    from gradinit import GradInitWrapper

    model = copy.deepcopy(model)
    wrapper = GradInitWrapper(model)
    scales = [p for name, p in model.named_parameters() if "gradinit" in name]

    def step(gamma: float) -> None:
        value = wrapper.grad_loss(F.cross_entropy(model(inputs), targets), norm=2, gamma=gamma)
        for p in scales:
            p.grad = None
        value.backward()
        wrapper.clamp_scales()

    steps = {"gradinit package": lambda: step(NEVER), "gradinit package, above the cap": lambda: step(ALWAYS)}
    return steps, wrapper.detach  # undone at the end: its destructor fails at the interpreter's exit


def operations(step: Step) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = cifar_resnet(20, batch_norm=False)
    inputs, targets = torch.randn(arguments.samples, 3, 32, 32), torch.randint(0, 10, (arguments.samples,))
    others, done = packaged(model, inputs, targets)
    gram = gradient_gram(model, [(inputs[:64], targets[:64])], "cross_entropy")
    with functorch_safe(model):
        kinds = steps_of(model, inputs, targets) | others
        counted = {kind: operations(step) for kind, step in kinds.items()}
        ratios: dict[str, list[float]] = {kind: [] for kind in kinds if kind != "gradient"}
        for _ in range(arguments.rounds):
            times = {kind: seconds(step) for kind, step in kinds.items()}
            for kind, values in ratios.items():
                values.append(times[kind] / times["gradient"])
    done()
    document = {
        "environment": {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()},
        "threads": 1,
        "network": f"ResNet-20 without BN, {arguments.samples} images of 3 × 32 × 32",
        "by_operations": {kind: counted[kind] / counted["gradient"] for kind in ratios},
        "by_time": {kind: statistics.median(values) for kind, values in ratios.items()},
        "gradcosine_by_gram_64_samples": {"cost_in_gradients": gram.cost},
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
