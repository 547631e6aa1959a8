"""What is drawn of the convolutional networks' runs, and their line against Table 1."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from theta0.papers.drawing import new_figure, paler
from theta0.papers.kutsuna2019lcw.variants import VARIANTS

Row = dict[str, Any]
_COLUMNS = ("cifar10", "cifar100")
PUBLISHED = {  # Table 1: CIFAR-10 and CIFAR-100, test accuracy and loss each
    ("VGG19", "plain"): ((0.936, 0.354), (0.732, 1.788)),
    ("VGG19", "LCW"): ((0.938, 0.332), (0.741, 1.569)),
    ("VGG19", "WN"): ((0.931, 0.391), (0.725, 1.914)),
    ("VGG19", "CWN"): ((0.934, 0.372), (0.727, 1.827)),
    ("VGG19", "SN"): ((0.936, 0.358), (0.733, 1.644)),
    ("ResNet18", "plain"): ((0.952, 0.204), (0.769, 0.978)),
    ("ResNet18", "LCW"): ((0.952, 0.187), (0.770, 0.955)),
    ("ResNet18", "WN"): ((0.951, 0.206), (0.777, 0.947)),
    ("ResNet18", "CWN"): ((0.948, 0.216), (0.781, 0.949)),
    ("ResNet18", "SN"): ((0.952, 0.206), (0.780, 1.015)),
}


def curves(rows: list[Row], label: str) -> Figure:
    """Training loss and accuracy over updates, as in Figure 6.

    Args:
        rows: configurations with their results.
        label: of the data.

    Returns:
        The figure.
    """
    figure = new_figure(2)
    figure.suptitle(f"VGG19 with BN, width × {rows[0]['width']:g} · {label}{paler(rows)}", fontsize=10)
    for row in rows:
        for axes, curve in zip(figure.axes, ("train_loss", "train_accuracy"), strict=True):
            axes.plot(
                row["step"],
                np.array(row[curve], dtype=float),
                color=VARIANTS[row["weights"]].colour,
                alpha=1.0 if row["seed"] == 0 else 0.4,
                label=_named(row) if row["seed"] == 0 else None,
            )
            axes.set(xlabel="update", ylabel=curve.replace("_", " "))
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    return figure


def points(rows: list[Row], label: str) -> Figure:
    """Test accuracy and loss of every run, a column for each kind of weight, and the source's values at full size.

    Args:
        rows: configurations with their results.
        label: of the data.

    Returns:
        The figure.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = new_figure(2, len(models), height=2.6)
    figure.suptitle(f"Table 1 at width × {rows[0]['width']:g} · {label} · diamonds: the source", fontsize=10)
    for line, model in enumerate(models):
        chosen = [row for row in rows if row["model"] == model]
        names = list(dict.fromkeys(_named(row) for row in chosen))
        for axes, key in zip(figure.axes[2 * line : 2 * line + 2], ("accuracy", "loss"), strict=True):
            for row in chosen:
                axes.plot(names.index(_named(row)), row[key], "o", color=VARIANTS[row["weights"]].colour, markersize=6)
            for row in {row["weights"]: row for row in chosen}.values():
                if (value := published(row)) is not None:
                    axes.plot(names.index(_named(row)), value[key], "D", color="black", markerfacecolor="none")
            axes.set_xticks(range(len(names)), names, fontsize=7, rotation=20)
            axes.set_ylabel(f"test {key}")
    return figure


def published(row: Row) -> dict[str, float] | None:
    """The source's test accuracy and loss of a network and its weights; None for data that it does not have.

    Args:
        row: a configuration.

    Returns:
        `accuracy` and `loss`.
    """
    if row["data"] not in _COLUMNS:
        return None
    accuracy, loss = PUBLISHED[row["model"], row["weights"]][_COLUMNS.index(row["data"])]
    return {"accuracy": accuracy, "loss": loss}


def sentence(rows: list[Row], averaged: int) -> str:
    """The table in one line, and what the source claims of it.

    Args:
        rows: configurations with their results.
        averaged: points that a number is the mean of.

    Returns:
        One line.
    """
    parts = []
    for model in dict.fromkeys(row["model"] for row in rows):
        plain, constrained = (_values(rows, model, weights, "loss") for weights in ("plain", "LCW"))
        gap = plain - constrained
        spread = f" ± {gap.std(ddof=1):.3f}" if len(gap) > 1 else ""
        published = [
            f"{a[1] - b[1]:.3f}" for a, b in zip(PUBLISHED[model, "plain"], PUBLISHED[model, "LCW"], strict=True)
        ]
        cells = ", ".join(
            f"{_named({'model': model, 'weights': weights})} "
            f"{_values(rows, model, weights, 'accuracy').mean():.3f}/{_values(rows, model, weights, 'loss').mean():.3f}"
            for weights in dict.fromkeys(row["weights"] for row in rows)
        )
        parts.append(
            f"{cells}; LCW lowers the test loss in {int((gap > 0).sum())} of {len(gap)} seeds, by "
            f"{gap.mean():.3f}{spread} (source: {published[0]} on CIFAR-10, {published[1]} on CIFAR-100)"
        )
    return f"test accuracy/loss, mean of the last {averaged} points: " + "; ".join(parts)


def _values(rows: list[Row], model: str, weights: str, key: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([row[key] for row in rows if row["model"] == model and row["weights"] == weights], dtype=float)


def _named(row: Row) -> str:
    return str(row["model"]) if row["weights"] == "plain" else f"{row['model']}+{row['weights']}"
