"""Table 1 and Figure 6: VGG19 and ResNet18 with BN, and with weights constrained or normalised (section 6.2)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish
from theta0.papers.kutsuna2019lcw.convolutional_figures import curves, points, published, sentence
from theta0.papers.kutsuna2019lcw.training import Plan, Source, plan_of, prepared, source_of, train
from theta0.papers.kutsuna2019lcw.variants import VARIANTS, start_
from theta0.papers.models import preactivation_resnet18, vgg19
from theta0.papers.scales import is_scale, scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep

MODELS: dict[str, Callable[..., nn.Module]] = {"VGG19": vgg19, "ResNet18": preactivation_resnet18}
WEIGHTS = ("plain", "LCW", "WN", "CWN", "SN")
COMPARED = ("plain", "LCW")


@dataclass(frozen=True)
class Scale:
    """How large the experiment is.

    Attributes:
        width: factor on the networks' widths.
        seeds: runs with plain weights and with LCW; the others run once.
        averaged: points at the end of a curve that a number is the mean of.
        plan: each run.
        data: the data set when none is named.
    """

    width: float
    seeds: int
    averaged: int
    plan: Plan
    data: str


SCALES = {
    "smoke": Scale(1 / 32, 2, 1, Plan(128, 64, 1, 2, 5e-4, batch=32), "digits"),
    "laptop": Scale(1 / 8, 3, 2, Plan(20_000, 5_000, 8, 8, 5e-4), "cifar10"),
    "paper": Scale(1.0, 3, 10, Plan(None, None, 300, 300, 5e-4), "cifar10"),
}
_CIFAR100 = {"epochs": 500, "points": 500}  # at paper scale
_PAPER_DATA = {"table1": ("cifar10", "cifar100"), "fig6": ("cifar100",)}


def draw_convolutional(
    name: str,
    models: tuple[str, ...],
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
    """Train the convolutional networks with each kind of weight.

    Args:
        name: of the files.
        models: names from `MODELS`.
        data: a data set of images or its name; None for the scale's: digits, CIFAR-10, at paper scale the source's
            (CIFAR-100 for Figure 6, both for Table 1, one after the other, their names in the files' names).
        root: where its files are.
        scale: `smoke` (seconds), `laptop` (half an hour with two processes) or `paper` (the source's own settings).
        out_dir: where `name.png` and `name.json` go.
        store: results kept across interruptions; `convolutional.jsonl` in `out_dir` when None, which the table and the
            figure share.
        backend: joblib's.
        jobs: networks trained at once.
        progress: called with how many runs are done, and of how many.

    Returns:
        One line that compares with the source.

    Raises:
        ValueError: there is no such scale.
    """
    scale_named(SCALES, scale)
    chosen: list[Dataset | str | None] = [data]
    if data is None and is_scale(scale, "paper"):
        chosen = list(_PAPER_DATA[name])
    lines = []
    for each in chosen:
        file = name if len(chosen) == 1 else f"{name}_{each}"
        lines.append(_draw(name, file, models, each, root, scale, Path(out_dir), store, backend, jobs, progress))
    return "; ".join(lines)


def _draw(
    name: str,
    file: str,
    models: tuple[str, ...],
    data: Dataset | str | None,
    root: str | Path | None,
    scale: str,
    folder: Path,
    store: Store | None,
    backend: str | None,
    jobs: int | None,
    progress: Progress | None,
) -> str:
    """The same on one data set."""
    size = scale_named(SCALES, scale)
    source = source_of(data, root, size.data)
    label = source.label if isinstance(source, Dataset) else source[0]
    longer = _CIFAR100 if is_scale(scale, "paper") and label == "cifar100" else {}
    configurations = [
        {
            "experiment": "convolutional",
            "data": label,
            "model": model,
            "weights": weights,
            "seed": seed,
            "width": size.width,
            "plan": size.plan.settings() | longer,
        }
        for seed in range(size.seeds)
        for model in models
        for weights in WEIGHTS
        if seed == 0 or weights in COMPARED
    ]
    compute, kept = partial(run, source), store or Store(folder / "convolutional.jsonl")
    results = sweep(compute, configurations, store=kept, backend=backend, jobs=jobs, progress=progress)
    rows = [
        {**c, **r, **averages(r, size.averaged), "source": published(c)}
        for c, r in zip(configurations, results, strict=True)
    ]
    draw = curves if name == "fig6" else points
    label = rows[0]["label"]
    finish(draw(rows, label), {"label": label, "averaged": size.averaged, "rows": rows}, folder, file)
    return f"{name}, {label}: {sentence(rows, size.averaged)}"


table1 = partial(draw_convolutional, "table1", tuple(MODELS))
fig6 = partial(draw_convolutional, "fig6", ("VGG19",))


def run(source: Source, configuration: Configuration) -> dict[str, Any]:
    """One network from its start to its end.

    Args:
        source: where the data is.
        configuration: `model`, `weights`, `seed`, `width`, `plan`.

    Returns:
        The curves of `training.train`.
    """
    torch.set_flush_denormal(True)
    plan, seed = plan_of(configuration), configuration["seed"]
    data = prepared(source, plan)
    generator = torch.Generator().manual_seed(seed)
    channels, side = data.train_x.shape[1], data.train_x.shape[2]
    options = {"size": side} if configuration["model"] == "VGG19" else {}
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # dropout draws from the global generator; put back on leaving
        model = MODELS[configuration["model"]](
            int(data.train_y.max()) + 1,
            channels=channels,
            width=configuration["width"],
            generator=generator,
            **options,
        )
        chosen = torch.randperm(len(data.train_x), generator=generator)[: plan.batch]
        start_(model, VARIANTS[configuration["weights"]], [data.train_x[chosen]])
        return {"label": data.label} | train(model, data, plan, generator)


def averages(result: dict[str, Any], points: int) -> dict[str, float]:
    """Mean over the last points of a run, as the source's table has it over the last ten epochs.

    Args:
        result: curves.
        points: how many.

    Returns:
        `accuracy` and `loss` on the test samples; not a number for a run that diverged.
    """
    last = {"accuracy": result["test_accuracy"], "loss": result["test_loss"]}
    return {key: float(np.array(values[-points:], dtype=float).mean()) for key, values in last.items()}
