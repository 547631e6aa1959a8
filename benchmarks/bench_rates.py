"""The suggested learning rate against a grid of twelve, on five small real problems.

`python benchmarks/bench_rates.py --out benchmarks/results/rates.json` (two minutes).

Loss is the mean over all batches in training mode, after 200 steps. A run diverges when its loss becomes non-finite or
ends above where it began. torch-lr-finder and Lightning's finder are measured beside ours where they are installed.
"""

import argparse
import json
import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from rate_problems import PROBLEMS, Problem, problem
from torch import nn

from theta0._training import OptimizerSettings, make_optimizer
from theta0.curvature import suggest_learning_rate

STEPS = 200
GRIDS = {  # twelve rates each
    "sgd": [10 ** (-3 + 4 * i / 11) for i in range(12)],
    "momentum": [10 ** (-4 + 4 * i / 11) for i in range(12)],
    "adam": [10 ** (-5 + 4.5 * i / 11) for i in range(12)],
    "rmsprop": [10 ** (-5 + 4 * i / 11) for i in range(12)],
}
LOSSES = {"cross_entropy": nn.functional.cross_entropy, "mse": nn.functional.mse_loss}


def mean_loss(model: nn.Module, batches, loss) -> float:
    with torch.no_grad():
        return sum(float(loss(model(x), y)) for x, y in batches) / len(batches)


def trained(name: str, seed: int, optimizer: str, rate: float) -> tuple[float, bool]:
    """Loss after training from the problem's start, and whether it diverged."""
    model, batches, loss_name = problem(name, seed)
    loss = LOSSES[loss_name]
    before = mean_loss(model, batches, loss)
    step_of = make_optimizer(OptimizerSettings(optimizer), model.parameters(), rate)
    for step in range(STEPS):
        x, y = batches[step % len(batches)]
        step_of.zero_grad(set_to_none=True)
        value = loss(model(x), y)
        if not torch.isfinite(value):
            return math.inf, True
        value.backward()
        step_of.step()
    after = mean_loss(model, batches, loss)
    return (after, after > before) if math.isfinite(after) else (math.inf, True)


def ours(made: Problem, optimizer: str) -> tuple[float, float]:
    model, batches, loss = made
    found = suggest_learning_rate(model, batches, loss, optimizer, generator=0)
    return found.value, found.cost


def lr_finder(made: Problem, optimizer: str) -> tuple[float, float]:
    """torch-lr-finder's range test of 100 steps from 1e-5 to 10, and the steepest descent that it suggests."""
    from torch_lr_finder import LRFinder

    model, batches, loss = made
    finder = LRFinder(
        model, make_optimizer(OptimizerSettings(optimizer), model.parameters(), 1e-5), LOSSES[loss], device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finder.range_test(Repeated(batches), end_lr=10, num_iter=100)
    rates, losses = finder.history["lr"][10:-5], finder.history["loss"][10:-5]  # what its plot leaves out
    slopes = [(losses[i + 1] - losses[i - 1]) for i in range(1, len(losses) - 1)]
    return rates[1 + min(range(len(slopes)), key=slopes.__getitem__)], float(len(finder.history["lr"]))


class Repeated(torch.utils.data.DataLoader):
    """Batches as torch-lr-finder wants them: a DataLoader whose items are batches."""

    def __init__(self, batches):
        super().__init__(batches, batch_size=None)


def lightning_finder(made: Problem, optimizer: str) -> tuple[float, float]:
    """Lightning's lr_find with its default 100 steps from 1e-8 to 1."""
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, batches, loss = made

    class Module(pl.LightningModule):
        """The problem as a LightningModule."""

        def __init__(self):
            super().__init__()
            self.model, self.lr = model, 1e-3

        def training_step(self, batch, _):
            """One loss."""
            return LOSSES[loss](self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            """The optimizer, at the rate being tried."""
            return make_optimizer(OptimizerSettings(optimizer), self.parameters(), self.lr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=100
        )
        module = Module()
        found = pl.tuner.Tuner(trainer).lr_find(module, Repeated(batches), update_attr=False)
    return found.suggestion(), float(len(found.results["lr"]))


FINDERS: dict[str, Callable[[Problem, str], tuple[float, float]]] = {
    "theta0": ours,
    "torch-lr-finder": lr_finder,
    "lightning": lightning_finder,
}


def compared(name: str, seed: int, optimizer: str) -> dict:
    grid = {rate: trained(name, seed, optimizer, rate) for rate in GRIDS[optimizer]}
    best = min(grid, key=lambda rate: grid[rate][0])
    row = {"problem": name, "seed": seed, "optimizer": optimizer, "best_rate": best, "best_loss": grid[best][0]}
    row["grid"] = [[rate, loss if math.isfinite(loss) else None] for rate, (loss, _) in grid.items()]
    for finder, suggest in FINDERS.items():
        try:
            rate, cost = suggest(problem(name, seed), optimizer)
        except ImportError as missing:
            row[finder] = {"skipped": str(missing)}
            continue
        loss, diverged = trained(name, seed, optimizer, rate)
        row[finder] = {
            "rate": rate,
            "loss": loss if math.isfinite(loss) else None,
            "diverged": diverged,
            "factor": max(rate / best, best / rate),
            "gradients": cost,
        }
    return row


def shown(row: dict) -> str:
    parts = [f"{row['problem']:26s} seed {row['seed']} {row['optimizer']:8s} best {row['best_rate']:.3g}"]
    for finder in FINDERS:
        given = row[finder]
        if "skipped" in given:
            parts.append(f"{finder}: skipped ({given['skipped']})")
            continue
        loss = "diverged" if given["diverged"] else f"{given['loss']:.3g}"
        parts.append(f"{finder}: {given['rate']:.3g} (x{given['factor']:.1f}, loss {loss})")
    return " | ".join(parts) + f" | best loss {row['best_loss']:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--optimizers", nargs="+", choices=GRIDS, default=["sgd"])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for optimizer in given.optimizers:
        for seed in range(given.seeds):
            for name in PROBLEMS:
                rows.append(compared(name, seed, optimizer))
                print(shown(rows[-1]), flush=True)
            mine = [row["theta0"] for row in rows[-len(PROBLEMS) :]]
            near, lost = sum(m["factor"] <= 3 for m in mine), sum(m["diverged"] for m in mine)
            print(
                f"{optimizer} seed {seed}: within a factor of 3 on {near} of {len(mine)}, diverged {lost}", flush=True
            )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        environment = {"torch": torch.__version__, "threads": 1, "steps": STEPS}
        given.out.write_text(json.dumps({"environment": environment, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
