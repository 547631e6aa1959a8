"""Starts compared: test accuracy after a fixed budget, GradCosine before and after (yang2022nio's Tables 1-2)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from theta0.papers.datasets import Dataset, load, standardize
from theta0.papers.scales import is_scale, scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep
from theta0.papers.yang2022nio.setting import PUBLISHED, SCALES, Scale
from theta0.papers.yang2022nio.training import run


def starts_table(
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
    """Every network, with and without BN, from every start: `starts.md` and `starts.json`.

    Args:
        data: a data set or its name; None for cifar10 (digits at smoke scale).
        root: where its files are.
        scale: size of the comparison.
        out_dir: where the files go; results are kept in `starts.jsonl` there, so that an interrupted run goes on.
        store: where results are kept instead.
        backend: joblib's.
        jobs: runs at once.
        progress: called with how many runs are done, and of how many.

    Returns:
        The table as Markdown.
    """
    size = scale_named(SCALES, scale)
    name = data if data is not None else ("digits" if is_scale(scale, "smoke") else "cifar10")
    chosen = _thinned(load(name, root) if isinstance(name, str) else name, size)
    wanted = configurations(chosen, size)
    kept = store or Store(Path(out_dir) / "starts.jsonl")
    results = sweep(partial(run, chosen), wanted, store=kept, backend=backend, jobs=jobs, progress=progress)
    text = f"{chosen.label}, {size.seeds} seeds, mean ± standard error\n\n{_markdown(wanted, results)}"
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "starts.md").write_text(text + "\n", encoding="utf-8")
    rows = [{"configuration": c, "result": r} for c, r in zip(wanted, results, strict=True)]
    (folder / "starts.json").write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return text


def configurations(data: Dataset, size: Scale) -> list[Configuration]:
    """What is run.

    Args:
        data: the data set.
        size: the size of the comparison.

    Returns:
        One configuration for each network, normalisation, start and seed.
    """
    epochs = 500 * len(data.train_x) // size.batch  # the source's
    return [
        {
            "experiment": "starts",
            "data": data.label,
            "classes": int(data.train_y.max()) + 1,
            "samples": [len(data.train_x), len(data.test_x)],
            "network": network,
            "batch_norm": batch_norm,
            "start": start,
            "seed": seed,
            "batch": size.batch,
            "search_steps": size.search_steps,
            "search_batches": size.search_batches,
            **({"search_samples": size.search_samples} if start == PUBLISHED else {}),
            "train_steps": size.train_steps or epochs,
            "rate": size.rate,
            "clip": None if batch_norm else 1.0,
            "augment": size.augment,
        }
        for network in size.networks
        for batch_norm in (True, False)
        for start in size.starts
        for seed in range(size.seeds)
    ]


def _thinned(data: Dataset, size: Scale) -> Dataset:
    """Standardised, and cut to the scale's number of samples at even steps through the files."""
    train, test = (
        torch.linspace(0, len(x) - 1, min(len(x), most)).round().long()
        for x, most in ((data.train_x, size.train_samples), (data.test_x, size.test_samples))
    )
    train_x, train_y, test_x, test_y = data.train_x[train], data.train_y[train], data.test_x[test], data.test_y[test]
    return standardize(replace(data, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y))


def _markdown(wanted: Sequence[Configuration], results: Sequence[Mapping[str, Any]]) -> str:
    groups: dict[tuple[str, bool, str], list[Mapping[str, Any]]] = {}
    for c, result in zip(wanted, results, strict=True):
        groups.setdefault((c["network"], c["batch_norm"], c["start"]), []).append(result)
    lines = [
        "| network | BN | start | test accuracy, % | GradCosine before | after | spread before | after | refused | "
        "gradients |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, batch_norm, start), runs in groups.items():
        cells = [_mean([100 * r["test_accuracy"] for r in runs], 1)]
        for quantity in ("gradcosine", "output_sample_std"):
            cells += [_mean([r[when].get(quantity, math.nan) for r in runs], 3) for when in ("before", "after")]
        refused = sum(r["refused"] is not None for r in runs)
        head = [name, "yes" if batch_norm else "no", start]
        cost = f"{sum(r['search_cost'] for r in runs) / len(runs):.0f}"
        lines.append(f"| {' | '.join([*head, *cells, f'{refused} of {len(runs)}', cost])} |")
    return "\n".join(lines)


def _mean(values: Sequence[float], digits: int) -> str:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
