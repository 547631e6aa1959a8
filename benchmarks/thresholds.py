"""Where the thresholds of the findings come from: numbers at the start against what 100 steps reach.

Plain MLPs on digits, 64 units wide, activation × depth × scale of the weights × seed. For each the numbers that the
findings judge, and the held-out loss after 100 steps of momentum at the best of seven rates.

    python benchmarks/thresholds.py --out benchmarks/results/thresholds.json
"""

import argparse
import json
from itertools import product
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from theta0 import diagnose, treat
from theta0._records import by_layer
from theta0.diagnosis.chain import chain

ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU, "tanh": nn.Tanh}


def network(activation, depth, gain, seed):
    torch.manual_seed(seed)
    parts = []
    for _ in range(depth):
        layer = nn.Linear(64, 64)
        nn.init.normal_(layer.weight, std=gain / 8)
        parts += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*parts, nn.Linear(64, 10))


def data():
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32)
    x, y = (x - x.mean()) / x.std(), torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1024]
    return list(zip(x[order].split(128), y[order].split(128), strict=True))


def row(activation, depth, gain, seed, batches):
    model = network(activation, depth, gain, seed)
    links = chain(by_layer(diagnose(model, batches, "cross_entropy").records))
    hidden, norms = links[:-1], [link.backward for link in links]
    # unit-variance as the remedy is beside the point: the run of the start as given is what is wanted
    reached = treat(model, batches, "cross_entropy", with_="unit-variance", optimizer="momentum").untreated
    numbers = [link.numbers for link in hidden]
    return {
        "activation": activation,
        "depth": depth,
        "gain": gain,
        "seed": seed,
        "shift_share": hidden[-1].numbers.get("shift_share"),
        "relative_spread": hidden[-1].relative_spread,
        "backward_ratio": links[0].sensitivity / max(link.sensitivity for link in links),
        "forward_growth": max(link.rms for link in links) / hidden[0].rms,
        "backward_growth": max(norms) / norms[-1],
        "saturated_share": max(n.get("saturated_share", 0.0) for n in numbers),
        "dead_share": max(n.get("dead_share", 0.0) for n in numbers),
        "held_out": reached.held_out,
        "rate": reached.rate,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    batches, rows = data(), []
    settings = {"sigmoid": (0.6, 1.0, 4.0), "relu": (0.6, 1.0, 1.4, 2.0), "tanh": (0.6, 1.0, 2.0, 8.0)}
    for activation, gains in settings.items():
        for depth, gain, seed in product((2, 4, 6, 8, 12, 20, 30), gains, range(arguments.seeds)):
            try:
                rows.append(row(activation, depth, gain, seed, batches))
            except ValueError as error:  # a dead network cannot be rescaled: it has no row
                print(activation, depth, gain, seed, str(error)[:80])
                continue
            print({key: f"{value:.2g}" if isinstance(value, float) else value for key, value in rows[-1].items()})
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=0) + "\n")


if __name__ == "__main__":
    main()
