"""The ablation that section 2 reports: biases that take away every unit's mean at the start do not train deep nets."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from theta0.initializers import weight_norm_start_
from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, new_figure
from theta0.papers.kutsuna2019lcw.training import Plan, Source, plan_of, prepared, source_of, train
from theta0.papers.kutsuna2019lcw.variants import VARIANTS, start_
from theta0.papers.models import deep_perceptron
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep

_COLOURS = {"plain": "#7a7a7a", "absorbed": "#1f5a94", "absorbed, unit variance": "#3c7d3c", "LCW": "#c1521c"}


@dataclass(frozen=True)
class Scale:
    """How large the experiment is; the source gives no settings.

    Attributes:
        depths: hidden layers.
        width: their units.
        plan: each run.
        data: the data set when none is named.
    """

    depths: tuple[int, ...]
    width: int
    plan: Plan
    data: str


_LAPTOP = Scale((5, 10, 20, 50), 256, Plan(None, 5000, 2, 10, 1e-4), "fashion-mnist")
SCALES = {
    "smoke": Scale((2, 8), 24, Plan(512, 128, 4, 4, 1e-4, batch=64), "digits"),
    "laptop": _LAPTOP,
    "paper": replace(_LAPTOP, plan=Plan(None, None, 100, 100, 1e-4), data="cifar10"),
}


def biases(
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
    """Sigmoid networks of growing depth: plain, with E[z] absorbed into the biases at the start, and with LCW.

    Args:
        data: a data set of images or its name; None for the scale's (digits, Fashion-MNIST, CIFAR-10).
        root: where its files are.
        scale: `smoke` (seconds), `laptop` (minutes; two epochs) or `paper` (the hundred epochs of section 6.1).
        out_dir: where `biases.png` and `biases.json` go.
        store: results kept across interruptions; `biases.jsonl` in `out_dir` when None.
        backend: joblib's.
        jobs: networks trained at once.
        progress: called with how many runs are done, and of how many.

    Returns:
        One line that compares with the source.

    Raises:
        ValueError: there is no such scale.
    """
    size = scale_named(SCALES, scale)
    source = source_of(data, root, size.data)
    runs = [
        {
            "experiment": "absorbed means",
            "data": source.label if isinstance(source, Dataset) else source[0],
            "width": size.width,
            "plan": size.plan.settings(),
            "start": start,
            "depth": depth,
        }
        for depth in size.depths
        for start in _COLOURS
    ]
    kept = store or Store(Path(out_dir) / "biases.jsonl")
    results = sweep(partial(run, source), runs, store=kept, backend=backend, jobs=jobs, progress=progress)
    rows = [{**c, **r} for c, r in zip(runs, results, strict=True)]
    finish(_drawn(rows), {"rows": rows}, out_dir, "biases")
    parts = [
        f"{start} " + "/".join("-" if v is None else f"{v:.0%}" for v in _accuracies(rows, start)) for start in _COLOURS
    ]
    depths = "/".join(str(depth) for depth in size.depths)
    return (
        f"biases, {rows[0]['label']}: test accuracy at {depths} hidden layers: {'; '.join(parts)} (the source: "
        "absorbing E[z] into the biases at the start does not train deep networks)"
    )


def run(source: Source, configuration: Configuration) -> dict[str, Any]:
    """Train one network from one start.

    Args:
        source: where the data is.
        configuration: `start`, `depth`, `width`, `plan`.

    Returns:
        The curves of `training.train`.
    """
    torch.set_flush_denormal(True)
    plan = plan_of(configuration)
    data = prepared(source, plan)
    generator = torch.Generator().manual_seed(0)
    inputs, classes = data.train_x[0].numel(), int(data.train_y.max()) + 1
    model: nn.Module = deep_perceptron(
        inputs, classes, depth=configuration["depth"], width=configuration["width"], generator=generator
    )
    x = data.train_x[torch.randperm(len(data.train_x), generator=generator)[: plan.batch]]
    match configuration["start"]:
        case "LCW":
            start_(model, VARIANTS["LCW"], [x])
        case "absorbed":
            absorb_means_(model, x)
        case "absorbed, unit variance":
            weight_norm_start_(model, [x])
    return {"label": data.label} | train(model, data, plan, generator)


@torch.no_grad()
def absorb_means_(model: nn.Module, x: Tensor) -> nn.Module:
    """Set every hidden unit's bias to minus the mean of its preactivation, layer by layer (section 2).

    Args:
        model: from `deep_perceptron`; changed in place.
        x: a minibatch.

    Returns:
        The model.
    """
    for name, module in model.named_children():
        if name.startswith("hidden") and isinstance(module, nn.Linear):
            module.bias.sub_(module(x).mean(0))
        x = module(x)
    return model


def _accuracies(rows: list[dict[str, Any]], start: str) -> list[float | None]:
    return [row["test_accuracy"][-1] for row in rows if row["start"] == start]


def _drawn(rows: list[dict[str, Any]]) -> Figure:
    figure = new_figure(2)
    deepest = max(row["depth"] for row in rows)
    figure.suptitle(f"Means absorbed into the biases at the start · sigmoid networks · {rows[0]['label']}", fontsize=10)
    depths = sorted({row["depth"] for row in rows})
    for start, colour in _COLOURS.items():
        found = [float("nan") if value is None else value for value in _accuracies(rows, start)]
        figure.axes[0].plot(depths, found, marker="o", markersize=4, color=colour, label=start)
        row = next(row for row in rows if row["start"] == start and row["depth"] == deepest)
        losses = [float("nan") if value is None else value for value in row["train_loss"]]
        figure.axes[1].plot(row["step"], losses, color=colour)
    figure.axes[0].set(xlabel="hidden layers", ylabel="test accuracy", xscale="log", ylim=(0, 1))
    figure.axes[0].set_xticks(depths, [str(depth) for depth in depths])
    figure.axes[0].minorticks_off()
    figure.axes[1].set(xlabel="update", ylabel=f"training loss, {deepest} hidden layers", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
