"""What a diagnosis costs, in gradients of the same model on the same batch.

One process, one thread unless asked otherwise; gradient and diagnosis in turn, the ratio pair by pair.

    python benchmarks/bench_diagnose.py --out benchmarks/results/diagnose.json
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from theta0 import diagnose


def cnn():
    """A CNN of 4.8 million parameters on 32 × 32 images, with batch normalisation."""
    torch.manual_seed(0)
    parts, width = [], 3
    for outputs in (64, 64, "pool", 128, 128, "pool", 256, 256, "pool", 512, 512):
        if outputs == "pool":
            parts.append(nn.MaxPool2d(2))
            continue
        parts += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        width = outputs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def gradient(model, x, y):
    loss = F.cross_entropy(model(x), y)
    torch.autograd.grad(loss, list(model.parameters()))


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, generator = cnn(), torch.Generator().manual_seed(0)
    x = torch.randn(arguments.batch, 3, 32, 32, generator=generator)
    y = torch.randint(10, (arguments.batch,), generator=generator)
    diagnose(model, [(x, y)], "cross_entropy")
    gradient(model, x, y)
    pairs = []
    for _ in range(arguments.rounds):
        one = seconds(lambda: gradient(model, x, y))
        whole = seconds(lambda: diagnose(model, [(x, y)], "cross_entropy"))
        pairs.append((one, whole))
    ratios = [(whole - 0.05) / one for one, whole in pairs]
    result = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch": arguments.batch,
        "gradients_beyond_50_ms": {
            "median": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
        },
        "seconds": {"gradient": [p[0] for p in pairs], "diagnose": [p[1] for p in pairs]},
        "environment": {"torch": torch.__version__, "machine": platform.machine(), "threads": arguments.threads},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
