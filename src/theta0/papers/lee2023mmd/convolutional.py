"""Beyond the source: does the MMD start help a small CNN on all classes at few labels per class?"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish_table
from theta0.papers.lee2023mmd.fine_tuning import fine_tuned_accuracies
from theta0.papers.lee2023mmd.published import Method
from theta0.papers.lee2023mmd.setting import SCALES, image_data, paired_interval, store_in
from theta0.papers.lee2023mmd.starts import made_start, make_missing, start
from theta0.papers.lee2023mmd.tasks import whole_tasks
from theta0.papers.scales import is_scale, scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep

METHODS: tuple[Method, ...] = ("none", "mmd", "random labels")
EPOCHS = (10, 100)  # the source's, after which a CNN at 50 labels has made ten updates, and enough to fit


def cnn(
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
    """Fine-tune a small CNN on all classes from He's start, from the MMD start and from random labels.

    Args:
        data: a data set or its name; None for digits.
        root: where its files are.
        scale: size of the experiment.
        out_dir: where the table, its numbers and the pre-trained starts go.
        store: results kept across interruptions; None keeps them in `out_dir`.
        backend: joblib's.
        jobs: starts made or fine-tuned at once.
        progress: called with how many are done, and of how many.

    Returns:
        One line of paired differences.
    """
    chosen = image_data(data or "digits", root, scale, over="all")
    size, folder = scale_named(SCALES, scale), str(Path(out_dir) / "starts")
    described = {
        (method, run): start(
            chosen, "he", method, run, steps=size.cnn_steps, convolutional=True, perturbations=size.perturbations
        )
        for method in METHODS
        for run in range(size.runs)
    }
    make_missing(chosen, folder, list(described.values()), backend=backend, jobs=jobs, progress=progress)
    labels = (5,) if is_scale(scale, "smoke") else (5, 10, 20, 40)
    wanted = {
        (method, run, count, epochs): {
            "experiment": "cnn",
            "start": found,
            "labels": count,
            "tasks": size.tasks,
            "epochs": epochs,
        }
        for (method, run), found in described.items()
        for count in labels
        for epochs in EPOCHS
    }
    compute = partial(cnn_accuracies, chosen, folder)
    results = sweep(
        compute, wanted.values(), store=store_in(out_dir, store), backend=backend, jobs=jobs, progress=progress
    )
    found = dict(zip(wanted, results, strict=True))
    numbers = [_numbers(found, size.runs, count, epochs) for count in labels for epochs in EPOCHS]
    header = ["labels per class", "epochs", "He", "MMD", "random labels", "MMD - He", "random labels - He"]
    finish_table(header, [_cells(row) for row in numbers], {"data": chosen.label, "rows": numbers}, out_dir, "cnn")
    gains = "; ".join(
        f"{row['labels']} labels, {row['epochs']} epochs {row['mmd'][0]:+.2f} ± {row['mmd'][1]:.2f}" for row in numbers
    )
    return f"cnn, {chosen.label}, {size.cnn_steps} steps: points of the MMD start over He's: {gains}; not in the source"


def cnn_accuracies(data: Dataset, folder: str, configuration: Configuration) -> list[float]:
    """Test accuracies of one start over draws of the labelled samples.

    Args:
        data: as the network takes it.
        folder: of the pre-trained starts.
        configuration: `start`, `labels` per class, `tasks` (draws) and `epochs`.

    Returns:
        Percent, one per draw.
    """
    run = configuration["start"]["run"]
    tasks = whole_tasks(data, configuration["labels"], configuration["tasks"], run)
    model = made_start(data, folder, configuration["start"])
    return fine_tuned_accuracies(model, tasks, data.test_x, epochs=configuration["epochs"], seed=run)


def _numbers(found: dict[tuple[Method, int, int, int], Any], runs: int, labels: int, epochs: int) -> dict[str, Any]:
    values: dict[Method, Float[np.ndarray, "runs tasks"]] = {
        method: np.array([found[method, run, labels, epochs] for run in range(runs)]) for method in METHODS
    }
    gains: dict[str, Any] = {m: paired_interval((values[m] - values["none"]).flatten().tolist()) for m in METHODS[1:]}
    means: dict[str, Any] = {f"mean {method}": float(runs.mean()) for method, runs in values.items()}
    by_run = (values["mmd"] - values["none"]).mean(1).tolist()
    return {"labels": labels, "epochs": epochs, **means, **gains, "mmd gain by run": by_run}


def _cells(row: dict[str, Any]) -> list[str]:
    means = [f"{row[f'mean {method}']:.2f}" for method in METHODS]
    gains = ["{:+.2f} ± {:.2f}".format(*row[method]) for method in METHODS[1:]]
    return [str(row["labels"]), str(row["epochs"]), *means, *gains]
