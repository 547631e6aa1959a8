"""Tables 1 and 2: test accuracy on binary tasks of few labels, and its spread over tasks (§5)."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish_table
from theta0.papers.lee2023mmd.fine_tuning import fine_tuned_accuracies
from theta0.papers.lee2023mmd.published import ACCURACIES, LABELS, SPREADS, Row, Value, words
from theta0.papers.lee2023mmd.setting import SCALES, image_data, paired_interval, store_in
from theta0.papers.lee2023mmd.starts import made_start, make_missing, start
from theta0.papers.lee2023mmd.tasks import binary_tasks
from theta0.papers.models import Draw
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep


def tabulate_accuracies(
    name: str,
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
    """Fine-tune every start on every task.

    Args:
        name: `table1` (means over tasks) or `table2` (standard deviations over tasks).
        data: a data set or its name; None for MNIST (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where the table, its numbers and the pre-trained starts go.
        store: results kept across interruptions; None keeps them in `out_dir`.
        backend: joblib's.
        jobs: starts made or fine-tuned at once.
        progress: called with how many are done, and of how many.

    Returns:
        One line that compares with the source.

    Raises:
        ValueError: a row is to be compared that has none without pre-training beside it.
    """
    chosen, size = image_data(data, root, scale), scale_named(SCALES, scale)
    alone = [row for row in size.rows if (row[0], row[1], "none") not in size.rows]
    if alone:
        raise ValueError(f"rows: expected the row without pre-training beside each, got none for {alone[0]}")
    described = {
        (row, run): start(
            chosen, row[0], row[2], run, steps=size.steps, batch_norm=row[1], perturbations=size.perturbations
        )
        for row in size.rows
        for run in range(size.runs)
    }
    wanted = {
        (row, labels, run): {"experiment": "accuracy", "start": found, "labels": labels, "tasks": size.tasks}
        for (row, run), found in described.items()
        for labels in size.labels
    }
    folder = str(Path(out_dir) / "starts")
    make_missing(chosen, folder, list(described.values()), backend=backend, jobs=jobs, progress=progress)
    compute = partial(accuracies, chosen, folder)
    results = sweep(
        compute, wanted.values(), store=store_in(out_dir, store), backend=backend, jobs=jobs, progress=progress
    )
    found = dict(zip(wanted, results, strict=True))
    table = {
        (row, labels): np.array([found[row, labels, run] for run in range(size.runs)])
        for row in size.rows
        for labels in size.labels
    }
    numbers = [_numbers(row, labels, table) for row in size.rows for labels in size.labels]
    cell, published = (_mean, ACCURACIES) if name == "table1" else (_spread, SPREADS)
    rows = [
        [*_words(row), *(part for n in size.labels for part in (cell(table[row, n]), words(_of(published, row, n))))]
        for row in size.rows
    ]
    header = ["model", "draw", "pre-trained", *(part for n in size.labels for part in (f"N = {n}", "source"))]
    finish_table(header, rows, {"rows": numbers}, out_dir, name)
    return f"{name}, {chosen.label}, {size.steps} steps: {_sentence(name, table, size.labels[0])}"


table1 = partial(tabulate_accuracies, "table1")
table2 = partial(tabulate_accuracies, "table2")


def accuracies(data: Dataset, folder: str, configuration: Configuration) -> list[float]:
    """Test accuracies of one start on the tasks of its run.

    Args:
        data: as the networks take it.
        folder: of the pre-trained starts.
        configuration: `start`, `labels` (N) and `tasks`.

    Returns:
        Percent, one per task.
    """
    run = configuration["start"]["run"]
    tasks = binary_tasks(data, configuration["labels"], configuration["tasks"], run)
    return fine_tuned_accuracies(made_start(data, folder, configuration["start"]), tasks, data.test_x, seed=run)


Runs = Float[np.ndarray, "runs tasks"]
_Table = dict[tuple[Row, int], Runs]


def paired(table: _Table, row: Row, labels: int) -> tuple[float, float]:
    """What a start gains over no pre-training, paired over tasks and runs.

    Args:
        table: accuracies of every row.
        row: the start.
        labels: N.

    Returns:
        The mean difference in points, and half of its 95 % interval.
    """
    plain: Row = (row[0], row[1], "none")
    return paired_interval((table[row, labels] - table[plain, labels]).flatten().tolist())


def _numbers(row: Row, labels: int, table: _Table) -> dict[str, Any]:
    runs = table[row, labels]
    gain, half = paired(table, row, labels)
    return {
        "draw": row[0],
        "batch_norm": row[1],
        "method": row[2],
        "labels": labels,
        "accuracies": runs.tolist(),
        "mean": float(runs.mean()),
        "spread_over_tasks": float(runs.std(1, ddof=1).mean()),
        "gain": gain,
        "gain_half_interval": half,
        "gain_by_run": (runs - table[(row[0], row[1], "none"), labels]).mean(1).tolist(),
        "source": _of(ACCURACIES, row, labels),
        "source_spread_over_tasks": _of(SPREADS, row, labels),
    }


def _of(published: dict[Row, tuple[Value, ...]], row: Row, labels: int) -> Value | None:
    return published[row][LABELS.index(labels)] if labels in LABELS else None


def _words(row: Row) -> tuple[str, str, str]:
    return "FCN + BN" if row[1] else "FCN", row[0].capitalize(), row[2]


def _mean(runs: Runs) -> str:
    return _with_deviation(runs.mean(1))


def _spread(runs: Runs) -> str:
    return _with_deviation(runs.std(1, ddof=1))


def _with_deviation(values: Float[np.ndarray, " runs"]) -> str:
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def _sentence(name: str, table: _Table, labels: int) -> str:
    parts = []
    draws: tuple[Draw, ...] = ("xavier", "he")
    published = ACCURACIES if name == "table1" else SPREADS
    for draw in draws:
        row: Row = (draw, False, "mmd")
        plain: Row = (draw, False, "none")
        if not {(row, labels), (plain, labels)} <= table.keys():
            continue
        source = [value[0] for r in (plain, row) if (value := _of(published, r, labels)) is not None]
        if name == "table2":
            without, with_ = (float(table[r, labels].std(1, ddof=1).mean()) for r in (plain, row))
            beside = f" (source {source[0]:.2f} and {source[1]:.2f})" if source else ""
            parts.append(f"{draw}: spread over tasks {without:.2f} without, {with_:.2f} with{beside}")
            continue
        gain, half = paired(table, row, labels)
        beside = f", source {source[1] - source[0]:+.2f}" if source else ""
        parts.append(f"{draw}: {gain:+.2f} ± {half:.2f} points over no pre-training{beside}")
    return f"N = {labels}, " + "; ".join(parts)
