"""CWN, SL and WN in the fifty sigmoid layers of Figure 5 at several rates and in several readings of the source."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import nn

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, finish_table, new_figure, paler
from theta0.papers.kutsuna2019lcw.deep_mlp import network
from theta0.papers.kutsuna2019lcw.deep_mlp_figure import is_idle, is_lost
from theta0.papers.kutsuna2019lcw.training import Plan, Source, plan_of, prepared, source_of, train
from theta0.papers.kutsuna2019lcw.variants import SETTINGS, normalised_layers
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep

Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large the experiment is.

    Attributes:
        depth: hidden layers.
        width: their units.
        seeds: of the starts.
        variants: names from `SETTINGS`.
        rates: first learning rates, each of which falls a hundred times.
        plan: each run.
        data: the data set when none is named.
    """

    depth: int
    width: int
    seeds: int
    variants: tuple[str, ...]
    rates: tuple[float, ...]
    plan: Plan
    data: str


_RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
SCALES = {
    "smoke": Scale(6, 24, 1, tuple(SETTINGS), (0.1,), Plan(256, 128, 2, 2, 1e-4, batch=64), "digits"),
    "laptop": Scale(50, 256, 1, tuple(SETTINGS), _RATES, Plan(None, 5000, 3, 14, 1e-4), "fashion-mnist"),
    "paper": Scale(50, 256, 3, tuple(SETTINGS), _RATES, Plan(None, None, 100, 100, 1e-4), "cifar10"),
}


def settings(
    data: Dataset | str | None = None,
    root: str | Path | None = None,
    *,
    scale: str = "laptop",
    out_dir: str | Path = ".",
    store: Store | None = None,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Train each reading at each rate.

    Args:
        data: a data set of images or its name; None for the scale's (digits, Fashion-MNIST, CIFAR-10).
        root: where its files are.
        scale: `smoke` (seconds), `laptop` (an hour and more) or `paper` (days).
        out_dir: where `settings.md`, `settings.png` and `settings.json` go.
        store: results kept across interruptions; `settings.jsonl` in `out_dir` when None.
        backend: joblib's.
        jobs: networks trained at once.
        progress: called with how many runs are done, and of how many.

    Returns:
        One line that compares with the source.
    """
    size = scale_named(SCALES, scale)
    source = source_of(data, root, size.data)
    wanted = [
        {
            "experiment": "settings",
            "data": source.label if isinstance(source, Dataset) else source[0],
            "activation": "sigmoid",
            "depth": size.depth,
            "width": size.width,
            "plan": replace(size.plan, rate=rate, floor=rate / 100).settings(),
            "variant": variant,
            "seed": seed,
        }
        for variant in size.variants
        for rate in size.rates
        for seed in range(size.seeds)
    ]
    kept = store or Store(Path(out_dir) / "settings.jsonl")
    results = sweep(partial(run, source), wanted, store=kept, backend=backend, jobs=jobs, progress=progress)
    rows = [{**c, **r} for c, r in zip(wanted, results, strict=True)]
    numbers = {"rows": rows, "source": "CWN and SL train at rate 0.1, WN does not (section 6.1)"}
    cells = [[variant, *(_cell(rows, variant, rate) for rate in size.rates)] for variant in size.variants]
    header = ["weights", *(f"rate {rate:g}" for rate in size.rates)]
    finish(_drawn(rows), numbers, out_dir, "settings")
    finish_table(header, cells, numbers, out_dir, "settings")
    return f"settings, {rows[0]['label']}, {size.depth} sigmoid layers, {rows[0]['updates']} updates: {_sentence(rows)}"


def run(source: Source, configuration: Configuration) -> dict[str, Any]:
    """Train one reading at one rate.

    Args:
        source: where the data is.
        configuration: `variant`, `seed`, `depth`, `width`, `activation`, `plan`.

    Returns:
        The curves of `training.train`, and `stretch` at the start and at the end, from `stretch`.
    """
    torch.set_flush_denormal(True)
    plan = plan_of(configuration)
    data = prepared(source, plan)
    generator = torch.Generator().manual_seed(configuration["seed"])
    model = network(SETTINGS[configuration["variant"]], configuration, data, generator)
    before = stretch(model)
    curves = train(model, data, plan, generator)
    return {"label": data.label, "classes": int(data.train_y.max()) + 1, "activation": "sigmoid", **curves} | {
        "stretch": [before, stretch(model)]
    }


def stretch(model: nn.Module) -> float | None:
    """How many times farther a step moves normalised weights across their direction than plain ones at the same rate.

    For w = g · v / ‖v‖ a gradient step of rate η moves w, across v, by η (g / ‖v‖)² times the gradient by w.

    Args:
        model: with weights normalised, or not.

    Returns:
        (g / ‖v‖)², the median over all normalised units; None where there are none, or it is not finite.
    """
    found = []
    for layer in normalised_layers(model):
        weights = layer.parametrizations.weight
        lengths = weights.original1.detach().flatten(1).norm(dim=1)  # CWN's v sums to zero from the start, and stays so
        found.append((weights.original0.detach().flatten() / lengths).square())
    value = float(torch.cat(found).median()) if found else float("nan")
    return value if np.isfinite(value) else None


def outcome(row: Row) -> str:
    """What became of a run: "lost" (not finite), "chance", "fell back" (left chance, ended there) or "trains"."""
    if is_lost(row):
        return "lost"
    if is_idle(row):
        return "chance"
    return "trains" if row["test_accuracy"][-1] >= 1.5 / row["classes"] else "fell back"


def _of(rows: list[Row], variant: str, rate: float) -> list[Row]:
    return [row for row in rows if row["variant"] == variant and row["plan"]["rate"] == rate]


def _cell(rows: list[Row], variant: str, rate: float) -> str:
    """Test accuracy and test loss at the end where runs trained, else what became of them."""
    found = _of(rows, variant, rate)
    outcomes = list(dict.fromkeys(outcome(row) for row in found))
    if outcomes != ["trains"]:
        return ", ".join(outcomes)
    values = [np.array([row[key][-1] for row in found]) for key in ("test_accuracy", "test_loss")]
    spreads = [f" ± {v.std(ddof=1):.3f}" if len(v) > 1 else "" for v in values]
    return f"{values[0].mean():.3f}{spreads[0]}, {values[1].mean():.3f}{spreads[1]}"


def _sentence(rows: list[Row]) -> str:
    parts = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        good = sorted({row["plan"]["rate"] for row in mine if outcome(row) == "trains"})
        stretches = [row["stretch"][0] for row in mine if row["stretch"][0] is not None]
        words = f"trains at {', '.join(f'{rate:g}' for rate in good)}" if good else "trains at none of the rates"
        parts.append(f"{variant} {words}" + (f" (stretch {np.median(stretches):.2g})" if stretches else ""))
    return "; ".join(parts) + "; source: CWN and SL train at 0.1, WN does not"


def _drawn(rows: list[Row]) -> Figure:
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    rates = sorted({row["plan"]["rate"] for row in rows})
    figure = new_figure(3, -(-len(variants) // 3), height=2.4)
    figure.suptitle(
        f"{rows[0]['depth']} sigmoid layers at several rates · {rows[0]['label']}{paler(rows)}", fontsize=10
    )
    for axes, variant in zip(figure.axes, variants, strict=False):
        for row in (row for row in rows if row["variant"] == variant):
            shade = rates.index(row["plan"]["rate"]) / max(len(rates) - 1, 1)
            label = f"{row['plan']['rate']:g}" if row["seed"] == 0 else None
            values = np.array(row["train_loss"], dtype=float)
            alpha = 1.0 if row["seed"] == 0 else 0.4
            axes.plot(
                row["step"], values, color=colormaps["viridis"](0.9 * shade), label=label, marker=".", alpha=alpha
            )
        axes.set(xlabel="update", ylabel="training loss", ylim=(0, 3))
        axes.set_title(variant, fontsize=9)
    for axes in figure.axes[len(variants) :]:
        axes.axis("off")
    named = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = sorted(named, key=float)
    lines, style = [named[label] for label in labels], {"fontsize": 8, "title": "first rate"}
    figure.legend(lines, labels, loc="outside lower center", ncols=len(rates), **style)
    return figure
