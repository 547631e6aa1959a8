"""Suggested learning rates against a grid of twelve, on twenty small problems in two halves.

`python benchmarks/bench_rates.py grid` trains at every rate of the grid from three starts, `python
benchmarks/bench_rates.py suggest --half first` from six starts at the suggestion (and at those of torch-lr-finder and
Lightning's finder, on at most the suggestion's number of gradients, where they are installed), `… table` judges. Each
run is written to `--store` once it is done, and is not run again.

A run's loss is the mean over all batches in training mode after 200 steps. It *fails* where it is not finite or above
0.95 times the loss of the best constant predictor, although a rate of the grid does better. A rate of the grid is good
where its mean loss over the starts is within 10 % of the best. The halves were drawn before any algorithm was tried;
`suggest --half second` is for the end.

`… plain` trains plain networks on digits for 100 steps from six starts, at the suggestion and at ten rates, and counts
the starts that come below 0.7 times chance.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rate_problems import PROBLEMS, Batches, Problem, halves, plain, problem
from torch import Tensor, nn
from torch.nn import functional as F

from theta0 import suggest_learning_rate

STEPS, STARTS, GRID_STARTS, RATES = 200, 6, 3, 12
LOWEST, DECADES = {"sgd": -3, "momentum": -4, "adam": -5, "adamw": -5, "rmsprop": -5}, 4  # log10 of the least rate
LEAST, UNKNOWN = 40, 100  # gradients of another finder: as many as the suggestion took, where it has been run
SHIFT = {"regression, raw targets": -3, "value network": -2}  # of SGD's grid: the loss is in the targets' own units
LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
PLAIN: dict[str, tuple[int, type[nn.Module], bool]] = {
    f"{hidden} {kind.__name__} layers, {'raw' if raw else 'standardised'}": (hidden, kind, raw)
    for hidden, kind, raw in (
        (2, nn.ReLU, True),
        (4, nn.ReLU, True),
        (4, nn.ReLU, False),
        (4, nn.Tanh, True),
        (4, nn.Tanh, False),
        (6, nn.Tanh, False),
        (8, nn.ReLU, True),
    )
}
PLAIN_STEPS, PLAIN_RATES, REACHED = 100, 10, 0.7
Row = dict[str, Any]


def grid(name: str, optimizer: str) -> list[float]:
    lowest = LOWEST[optimizer] + (SHIFT.get(name, 0) if optimizer in ("sgd", "momentum") else 0)
    return [10 ** (lowest + DECADES * i / (RATES - 1)) for i in range(RATES)]


def loss_at(made: Problem, x: Any, y: Tensor) -> Tensor:
    outputs = made.model(*x) if isinstance(x, (tuple, list)) else made.model(x)
    return LOSSES[made.loss](outputs, y) if isinstance(made.loss, str) else made.loss(outputs, y)


def mean_loss(made: Problem) -> float:
    torch.manual_seed(1)
    return sum(float(loss_at(made, x, y).detach()) for x, y in made.batches) / len(made.batches)


def trained(made: Problem, seed: int, optimizer: str, rate: float, steps: int = STEPS) -> tuple[float, list[float]]:
    """The loss after training in place (infinite where it is no number), and at every step."""
    losses: list[float] = []
    torch.manual_seed(seed)
    step_of = OPTIMIZERS[optimizer](made.model.parameters(), lr=rate)
    for step in range(steps):
        step_of.zero_grad(set_to_none=True)
        value = loss_at(made, *made.batches[step % len(made.batches)])
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            return math.inf, losses
        value.backward()
        step_of.step()
    after = mean_loss(made)
    return (after if math.isfinite(after) else math.inf), losses


def ours(name: str, seed: int, optimizer: str, _: int) -> Row:
    made = problem(name, seed)
    found = suggest_learning_rate(made.model, made.batches, made.loss, optimizer, generator=seed)
    return {"rate": found.value, "gradients": found.cost, "reason": getattr(found, "reason", None)}


class Repeated(torch.utils.data.DataLoader):
    """Batches as the finders want them: a DataLoader whose items are batches (its tuples come out as lists)."""

    def __init__(self, batches: Batches):
        super().__init__(batches, batch_size=None)


class Unpacked(nn.Module):
    """A model of several arguments for a finder that passes one."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        """The model's outputs."""
        return self.model(*x) if isinstance(x, (tuple, list)) else self.model(x)


def lr_finder(name: str, seed: int, optimizer: str, budget: int) -> Row:
    """torch-lr-finder's range test up to 10, and the steepest descent that it suggests."""
    module = importlib.import_module("torch_lr_finder")
    made = problem(name, seed)
    torch.manual_seed(seed)
    start = OPTIMIZERS[optimizer](made.model.parameters(), lr=10.0 ** (LOWEST[optimizer] - 2))
    finder = module.LRFinder(Unpacked(made.model), start, LOSSES.get(made.loss, made.loss), device="cpu")
    with contextlib.redirect_stdout(io.StringIO()):
        finder.range_test(Repeated(made.batches), end_lr=10, num_iter=budget)
    rates, losses = finder.history["lr"][10:-5], finder.history["loss"][10:-5]  # what its plot leaves out
    slopes = [losses[i + 1] - losses[i - 1] for i in range(1, len(losses) - 1)]
    place = 1 + min(range(len(slopes)), key=slopes.__getitem__)
    return {"rate": rates[place], "gradients": len(finder.history["lr"])}


def lightning_finder(name: str, seed: int, optimizer: str, budget: int) -> Row:
    """Lightning's lr_find with its default range, 1e-8 to 1."""
    pl = importlib.import_module("lightning.pytorch")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    made = problem(name, seed)
    torch.manual_seed(seed)

    class Module(pl.LightningModule):
        """The problem as a LightningModule."""

        def __init__(self):
            super().__init__()
            self.model, self.lr = made.model, 1e-3

        def training_step(self, batch: tuple[Any, Tensor], _: int) -> Tensor:
            """One loss."""
            return loss_at(made, *batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """The optimizer, at the rate being tried."""
            return OPTIMIZERS[optimizer](self.parameters(), lr=self.lr)

    shown = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory() as folder:  # for the start that it saves and loads again
        trainer = pl.Trainer(accelerator="cpu", max_epochs=-1, default_root_dir=folder, **shown)
        tuner, batches = pl.tuner.Tuner(trainer), Repeated(made.batches)
        found = tuner.lr_find(Module(), batches, update_attr=False, num_training=budget)
    return {"rate": found.suggestion(), "gradients": len(found.results["lr"])}


FINDERS: dict[str, Callable[[str, int, str, int], Row]] = {
    "theta0": ours,
    "torch-lr-finder": lr_finder,
    "lightning": lightning_finder,
}


def pairs(names: list[str]) -> list[tuple[str, str]]:
    return [(name, optimizer) for name in names for optimizer in PROBLEMS[name][1]]


def kept(store: Path) -> dict[str, Row]:
    return json.loads(store.read_text())["runs"] if store.exists() else {}


def written(store: Path, runs: dict[str, Row]) -> None:
    environment = {"torch": torch.__version__, "threads": 1, "steps": STEPS}
    beside = store.with_suffix(".part")
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(json.dumps({"environment": environment, "runs": runs}, indent=0) + "\n")
    os.replace(beside, store)


def grid_runs(store: Path, names: list[str]) -> None:
    runs = kept(store)
    for name, optimizer in pairs(names):
        key = f"{name} | {optimizer}"
        if key in runs:
            continue
        losses = [
            [trained(problem(name, s), s, optimizer, rate)[0] for rate in grid(name, optimizer)]
            for s in range(GRID_STARTS)
        ]
        runs[key] = {"rates": grid(name, optimizer), "losses": [[finite(v) for v in row] for row in losses]}
        written(store, runs)
        print(key, flush=True)


def suggestions(store: Path, names: list[str], finder: str) -> None:
    runs = kept(store)
    for name, optimizer in pairs(names):
        for seed in range(STARTS):
            key = f"{name} | {optimizer} | {seed} | "
            if key + finder in runs:
                continue
            budget = int(runs.get(key + "theta0", {}).get("gradients", UNKNOWN))
            try:
                row = FINDERS[finder](name, seed, optimizer, max(LEAST, budget))
            except ImportError:
                raise
            except Exception as error:  # a finder that raises has found nothing, which is a result
                row = {"rate": None, "gradients": None, "reason": f"{type(error).__name__}: {error}"[:200]}
            row["loss"] = finite(trained(problem(name, seed), seed, optimizer, row["rate"])[0]) if row["rate"] else None
            runs[key + finder] = row
            written(store, runs)
            print(key + finder, row, flush=True)


def plain_start(name: str, seed: int) -> Problem:
    hidden, kind, raw = PLAIN[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return plain(hidden, kind, raw=raw)


def plain_suggestion(name: str, seed: int, optimizer: str) -> Row:
    made = plain_start(name, seed)
    found = suggest_learning_rate(made.model, made.batches, made.loss, optimizer, generator=seed)
    loss = trained(made, seed, optimizer, found.value, PLAIN_STEPS)[0] if found.value else math.inf
    return {"rate": found.value, "gradients": found.cost, "loss": finite(loss), "reason": found.reason}


def plain_best(name: str, seed: int, optimizer: str) -> Row:
    """The least loss at ten rates."""
    rates = [10 ** (LOWEST[optimizer] + DECADES * i / (PLAIN_RATES - 1)) for i in range(PLAIN_RATES)]
    losses = [trained(plain_start(name, seed), seed, optimizer, rate, PLAIN_STEPS)[0] for rate in rates]
    best = min(range(PLAIN_RATES), key=losses.__getitem__)
    return {"rate": rates[best], "loss": finite(losses[best])}


def plain_cases(store: Path) -> None:
    """Run what is not in the store, and print how many starts reach 0.7 times chance."""
    runs, limit = kept(store), REACHED * math.log(10)
    for name, optimizer in ((name, optimizer) for name in PLAIN for optimizer in ("sgd", "momentum")):
        rows: dict[str, list[Row]] = {"theta0": [], "best": []}
        for seed in range(STARTS):
            for kind, run in (("theta0", plain_suggestion), ("best", plain_best)):
                key = f"plain | {name} | {optimizer} | {seed} | {kind}"
                if key not in runs:
                    runs[key] = run(name, seed, optimizer)
                    written(store, runs)
                rows[kind].append(runs[key])
        ours, best = ([row["loss"] if row["loss"] is not None else math.inf for row in rows[kind]] for kind in rows)
        shown = " ".join(f"{a:.2g}/{b:.2g}" for a, b in zip(ours, best, strict=True))
        rates = " ".join("none" if row["rate"] is None else f"{row['rate']:.2g}" for row in rows["theta0"])
        print(
            f"{name:28s} {optimizer:8s} {sum(v < limit for v in ours)} of {sum(v < limit for v in best)} starts | loss "
            f"(ours/best of ten) {shown} | {rates} | {max(row['gradients'] for row in rows['theta0']):.0f} gradients "
            "at most",
            flush=True,
        )


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def judged(grid_row: Row, row: Row, constant: float) -> Row:
    """Whether a suggestion fails, and its factor from the nearest good rate of the grid."""
    means = [
        sum(math.inf if v is None else v for v in column) / GRID_STARTS
        for column in zip(*grid_row["losses"], strict=True)
    ]
    best, limit = min(means), 0.95 * constant
    good = [rate for rate, mean in zip(grid_row["rates"], means, strict=True) if mean <= 1.1 * best]
    attainable = any(v is not None and v <= limit for column in grid_row["losses"] for v in column)
    loss = math.inf if row["loss"] is None else row["loss"]
    if row["rate"] is None:  # right where nothing trains
        return {"fails": attainable, "factor": math.inf if attainable else 1.0, "best": best, "good": good}
    factor = min((max(rate / row["rate"], row["rate"] / rate) for rate in good), default=math.inf)
    return {"fails": attainable and not loss <= limit, "factor": factor, "best": best, "good": good}


def table(store: Path, names: list[str], finder: str) -> list[Row]:
    """One row for each problem and optimizer, printed, and the counts under them."""
    runs, everything = kept(store), []
    for name, optimizer in pairs(names):
        constant = problem(name).constant
        rows = [runs.get(f"{name} | {optimizer} | {seed} | {finder}") for seed in range(STARTS)]
        if f"{name} | {optimizer}" not in runs or None in rows:
            print(f"{name:40s} {optimizer:8s} not run")
            continue
        found = [judged(runs[f"{name} | {optimizer}"], row, constant) for row in rows]
        everything += [verdict | {"gradients": row["gradients"]} for verdict, row in zip(found, rows, strict=True)]
        rates = " ".join("none" if row["rate"] is None else f"{row['rate']:.2g}" for row in rows)
        losses = " ".join("inf" if row["loss"] is None else f"{row['loss']:.3g}" for row in rows)
        good, costs = found[0]["good"], [row["gradients"] or 0 for row in rows]
        print(
            f"{name:40s} {optimizer:8s} fails {sum(v['fails'] for v in found)}, within 3: "
            f"{sum(v['factor'] <= 3 for v in found)}, 10: {sum(v['factor'] <= 10 for v in found)} | {rates} | good "
            f"{min(good, default=0):.2g}-{max(good, default=0):.2g} | loss {losses} (best {found[0]['best']:.3g}, "
            f"constant {constant:.3g}) | {max(costs):.0f} gradients at most"
        )
    count = max(1, len(everything))
    costs = sorted(v["gradients"] or 0 for v in everything)
    print(
        f"{finder}: {len(everything)} runs, {sum(v['fails'] for v in everything) / count:.1%} fail, "
        f"{sum(v['factor'] <= 3 for v in everything) / count:.1%} within 3, "
        f"{sum(v['factor'] <= 10 for v in everything) / count:.1%} within 10, gradients "
        f"{costs[len(costs) // 2] if costs else 0:.0f} (median) {costs[-1] if costs else 0:.0f} (most)"
    )
    return everything


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["grid", "suggest", "table", "plain"])
    parser.add_argument("--half", choices=["first", "second", "both"], default="both")
    parser.add_argument("--finder", choices=FINDERS, default="theta0")
    parser.add_argument("--store", type=Path, default=Path("benchmarks/results/rates.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    first, second = halves()
    names = {"first": first, "second": second, "both": [*first, *second]}[given.half]
    if given.what == "plain":
        plain_cases(given.store)
    elif given.what == "grid":
        grid_runs(given.store, names)
    elif given.what == "suggest":
        suggestions(given.store, names, given.finder)
    else:
        table(given.store, names, given.finder)


if __name__ == "__main__":
    main()
