"""Figure 5's panels and its line against the source."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from theta0.papers.drawing import new_figure, paler
from theta0.papers.kutsuna2019lcw.variants import VARIANTS

Row = dict[str, Any]
_CURVES = {"train_loss": 0, "test_loss": 1, "train_accuracy": 3, "test_accuracy": 4}
_STARTS = {"gradient_variance": 2, "shift_share": 5}


def drawn(rows: list[Row], title: str) -> Figure:
    """Training and test curves as in the source, and beside them the starts.

    Args:
        rows: configurations with their results.
        title: of the figure.

    Returns:
        The figure.
    """
    figure = new_figure(3, 2)
    figure.suptitle(title + paler(rows), fontsize=10)
    for row in (row for row in rows if row["trained"]):
        style: dict[str, Any] = {
            "color": VARIANTS[row["variant"]].colour,
            "linewidth": 2.4 if row["variant"] == "BN" else 1.2,  # BN+SN lies on it
            "alpha": 1.0 if row["seed"] == 0 else 0.45,
        }
        style["linestyle"] = "--" if "BN" in row["variant"] else "-"
        label = row["variant"] if row["seed"] == 0 else None
        for curve, panel in _CURVES.items():
            figure.axes[panel].plot(row["step"], np.array(row[curve], dtype=float), label=label, **style)
        if row["seed"] == 0:
            for quantity, panel in _STARTS.items():
                _start(figure.axes[panel], row["start"][quantity], style)
    for curve, panel in _CURVES.items():
        figure.axes[panel].set(xlabel="update", ylabel=curve.replace("_", " "))
    figure.axes[0].set_ylim(0, 2.6)
    figure.axes[1].set_ylim(0, 2.6)
    figure.axes[2].set(xlabel="hidden layer", ylabel="gradient variance at the start", yscale="log", ylim=(1e-25, None))
    figure.axes[5].set(xlabel="hidden layer", ylabel="share of activation shift at the start")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=7, fontsize=8)
    return figure


def _start(axes: Axes, values: list[float], style: dict[str, Any]) -> None:
    shown = np.array(values, dtype=float)
    axes.plot(np.arange(1, len(shown) + 1), np.where(shown > 0, shown, np.nan), **style)


def sentence(rows: list[Row]) -> str:
    """What the source claims of Figure 5, and what was found.

    Args:
        rows: configurations with their results.

    Returns:
        One line.
    """
    trained = [row for row in rows if row["trained"]]
    first = [row for row in trained if row["seed"] == 0]
    idle, lost = ([row["variant"] for row in first if judged(row)] for judged in (is_idle, is_lost))
    source = " (source: WN and SN)" if trained[0]["activation"] == "sigmoid" else ""
    ends = "; ".join(
        f"{variant} {_mean(trained, variant, 'train_loss')} / {_mean(trained, variant, 'test_loss')}"
        for variant in dict.fromkeys(row["variant"] for row in trained)
        if variant not in (*idle, *lost)
    )
    return (
        f"stay at chance for all {trained[0]['updates']} updates: {', '.join(idle) or 'none'}{source}; "
        f"diverge: {', '.join(lost) or 'none'}; training / test loss at the end: {ends}; "
        f"{_paired(trained)}; {_starts(rows)}"
    )


def is_idle(row: Row) -> bool:
    """Whether a run never left chance.

    Args:
        row: a trained run.

    Returns:
        True if no point of the curve reaches 1.5 times the accuracy of a guess among equally frequent classes.
    """
    reached = [value for value in row["train_accuracy"] if value is not None]
    return not is_lost(row) and bool(max(reached) < 1.5 / row["classes"])


def is_lost(row: Row) -> bool:
    """Whether a run ended in a loss that is not finite.

    Args:
        row: a trained run.

    Returns:
        True if its last point is missing.
    """
    return row["train_loss"][-1] is None


def _values(rows: list[Row], variant: str, curve: str) -> list[float]:
    return [np.nan if row[curve][-1] is None else row[curve][-1] for row in rows if row["variant"] == variant]


def _mean(rows: list[Row], variant: str, curve: str) -> str:
    values = _values(rows, variant, curve)
    spread = f"±{np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def _paired(rows: list[Row]) -> str:
    plain, constrained = (np.array(_values(rows, variant, "test_loss")) for variant in ("BN", "BN+LCW"))
    lower = int((constrained < plain).sum())
    gap = plain - constrained
    spread = f" ± {gap.std(ddof=1):.3f}" if len(gap) > 1 else ""
    return (
        f"test loss of BN+LCW below BN's in {lower} of {len(gap)} seeds, by {gap.mean():.3f}{spread}"
        f"{' (source: it is lower)' if rows[0]['activation'] == 'sigmoid' else ''}"
    )


def _starts(rows: list[Row]) -> str:
    parts = []
    for row in rows:
        if row["seed"] == 0 and row["variant"] in ("plain", "unit variance", "LCW"):
            gradients, shares = row["start"]["gradient_variance"], row["start"]["shift_share"]
            ratio = gradients[0] / gradients[-1] if gradients[-1] else float("nan")
            parts.append(f"{row['variant']} ({row['depth']} layers) {ratio:.2g}, {shares[-1]:.2f}")
    return (
        "at the start, gradient variance of the first over the last hidden layer and the last one's shift share: "
        + ("; ".join(parts))
    )
