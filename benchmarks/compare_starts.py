"""Races of starting points on four networks: does a start beat the default at the default's own best rate?

A deep sigmoid MLP, a plain 30-layer ReLU net, a residual net without normalisation (all as torch draws them, on the
digits of scikit-learn) and a small transformer that looks up the third of twelve tokens. Rates of every start are
chosen by halving, every start then runs at its best rate for every seed, on batches that took no part in the choice.
One thread; minutes.

    python benchmarks/compare_starts.py [--only sigmoid,plain,residual,transformer] [--seeds 3] [--budget SECONDS]
                                        [--store DIR] [--out FILE.json]
"""

import argparse
import json
import platform
from pathlib import Path

import torch
from rich.console import Console
from sklearn.datasets import load_digits
from torch import nn

from theta0.comparison import compare
from theta0.reports import comparison_document, comparison_report

BATCHES, SIZE = 20, 64


def digits():
    found = load_digits()
    images = torch.tensor((found.data - found.data.mean()) / found.data.std(), dtype=torch.float32)
    labels = torch.tensor(found.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[: BATCHES * SIZE]
    return list(zip(images[order].split(SIZE), labels[order].split(SIZE), strict=True))


def tokens():
    found = []
    for number in range(BATCHES):
        x = torch.randint(16, (32, 12), generator=torch.Generator().manual_seed(number))
        found.append((x, x[:, 2]))
    return found


def sigmoid():
    hidden = (part for _ in range(7) for part in (nn.Linear(64, 64), nn.Sigmoid()))
    return nn.Sequential(*hidden, nn.Linear(64, 10))


def plain():
    hidden = (part for _ in range(30) for part in (nn.Linear(64, 64), nn.ReLU()))
    return nn.Sequential(*hidden, nn.Linear(64, 10))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.first, self.last):
            nn.init.kaiming_normal_(layer.weight)

    def forward(self, x):
        return x + self.last(torch.relu(self.first(torch.relu(x))))


def residual():
    return nn.Sequential(nn.Linear(64, 64), *(Residual(64) for _ in range(20)), nn.Linear(64, 10))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(16, 32), nn.Parameter(torch.randn(12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([layer, nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, x):
        x = self.words(x) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


# network, data, optimizer, starts, steps, whether a start must beat the default one
NETWORKS = {
    "sigmoid": (sigmoid, digits, "momentum", ("default", "unit-variance", "lcw", "centre"), 150, True),
    "plain": (plain, digits, "momentum", ("default", "unit-variance", "lcw", "centre"), 150, True),
    "residual": (residual, digits, "momentum", ("default", "unit-variance", "branch-scale", "branch-zero"), 150, True),
    "transformer": (Transformer, tokens, "adam", ("default", "unit-variance", "branch-zero"), 150, False),
}


def verdict(found):
    means = {standing.start: standing.mean for standing in found.standings}
    spreads = {standing.start: standing.spread for standing in found.standings}
    winner = found.winner.start
    gap = means["default"] - means[winner]
    noise = max((value for value in (spreads[winner], spreads["default"]) if value == value), default=0.0)
    return {"winner": winner, "gap": gap, "largest_spread": noise, "beaten": winner != "default" and gap > noise}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="default: each network's own")
    parser.add_argument("--budget", type=float, help="seconds for each network")
    parser.add_argument("--store", type=Path, help="folder of runs to go on from")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    console, documents = Console(width=100), {}
    for name in arguments.only.split(","):
        build, data, optimizer, starts, steps, must = NETWORKS[name]
        found = compare(
            build,
            data(),
            "cross_entropy",
            starts=starts,
            steps=arguments.steps or steps,
            seeds=arguments.seeds,
            optimizer=optimizer,
            budget_s=arguments.budget,
            store=None if arguments.store is None else arguments.store / f"{name}.jsonl",
        )
        console.print(comparison_report(found, target=name))
        documents[name] = comparison_document(found, target=name) | {"verdict": verdict(found), "required": must}
        console.print(f"{name}: {documents[name]['verdict']}{' (required)' if must else ''}\n")
    if arguments.out:
        environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        arguments.out.write_text(json.dumps({"networks": documents, "environment": environment}, indent=1) + "\n")


if __name__ == "__main__":
    main()
