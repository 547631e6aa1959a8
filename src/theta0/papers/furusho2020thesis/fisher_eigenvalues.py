"""Figures 16 and 21: eigenvalues of the expected Fisher matrix against Theorems 6-8 (§4.3.2, §B.4.3)."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, new_figure
from theta0.papers.furusho2020thesis.eigenvalues import mean_eigenvalue, output_gradients, top_eigenvalue_of
from theta0.papers.furusho2020thesis.setting import (
    COLOURS,
    SCALES,
    SURVIVAL,
    WIDTH_SWEEP_DEPTH,
    Kind,
    Scale,
    fisher_bounds,
    layer_draw,
    make_network,
    two_class_data,
    whitened,
)
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep

Variant = Literal["resnet", "batch_norm", "batch_norm_constant", "exactly", "bernoulli"]

VARIANTS: dict[Variant, tuple[Kind, str, str, str]] = {  # network, label, colour, marker
    "resnet": ("resnet", "ResNet", COLOURS["resnet"], "o"),
    "batch_norm": ("batch_norm", "with BN", COLOURS["batch_norm"], "s"),
    "batch_norm_constant": ("batch_norm", "with BN, statistics held constant", "#e8a35c", "D"),
    "exactly": ("stochastic_depth", "stochastic depth, exactly pL kept", COLOURS["stochastic_depth"], "^"),
    "bernoulli": ("stochastic_depth", "stochastic depth, independent drops", "#8cba5f", "v"),
}
AXES = {"depth": "depth L", "survival": "survival probability p", "width": "width D"}


def draw_eigenvalues(
    name: str,
    thesis_data: str,
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
    """Mean and largest eigenvalue over depth, survival probability and width, with their closed forms.

    Args:
        name: of the files.
        thesis_data: the thesis's data set.
        data: a data set or its name; None for the thesis's (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where `name.png` and `name.json` go.
        store: results kept across interruptions.
        backend: joblib's.
        jobs: shapes measured at once.
        progress: called with how many shapes are done, and of how many.

    Returns:
        One line that compares with the thesis.
    """
    chosen, size = two_class_data(data, root, scale, thesis_data), scale_named(SCALES, scale)
    points = [point for axis in AXES for point in _points(axis, size)]
    configurations = [
        {
            "experiment": "expected Fisher matrix",
            "data": chosen.label,
            "samples": len(chosen.train_x),
            "starts": size.starts,
            **{key: point[key] for key in ("variant", "depth", "width")},
            "survival": point["survival"] if point["variant"] in {"exactly", "bernoulli"} else 1.0,
        }
        for point in points
    ]
    compute = partial(expected_fisher, chosen)
    results = sweep(compute, configurations, store=store, backend=backend, jobs=jobs, progress=progress)
    rows = [{**point, **result} for point, result in zip(points, results, strict=True)]
    finish(_drawn(rows, chosen.label), {"data": chosen.label, "rows": rows}, out_dir, name)
    return f"{name}, {chosen.label}: {_sentence(rows)}"


fig16 = partial(draw_eigenvalues, "fig16", "mnist")
fig21 = partial(draw_eigenvalues, "fig21", "cifar10")


def expected_fisher(data: Dataset, configuration: Configuration) -> dict[str, float]:
    """The Fisher matrix averaged over starts, and over drops where layers are dropped.

    Args:
        data: two classes, not yet whitened.
        configuration: `variant`, `depth`, `width`, `survival`, `starts`.

    Returns:
        Mean eigenvalue, its standard error over starts, the largest eigenvalue of the average, the average of the
        starts' own largest, and the closed form's mean and upper bound.
    """
    variant, depth, width = configuration["variant"], configuration["depth"], configuration["width"]
    survival, kind = configuration["survival"], VARIANTS[configuration["variant"]][0]
    exactly = variant == "exactly"
    x, _ = whitened(data, width)
    draw = layer_draw(kind, depth, survival, exactly=exactly)
    gradients = []
    for seed in range(configuration["starts"]):
        generator = torch.Generator().manual_seed(seed)
        model = make_network(kind, width, depth, generator)
        kept = draw(generator) if draw else None
        gradients.append(output_gradients(model, x, kept, constant_statistics=variant == "batch_norm_constant"))
    means = torch.tensor([mean_eigenvalue(rows) for rows in gradients])
    tops = [top_eigenvalue_of(rows) for rows in gradients]
    bounds = fisher_bounds(kind, depth, width, survival, exactly=exactly)
    return {
        "mean": float(means.mean()),
        "mean_error": float(means.std()) / len(means) ** 0.5,
        "top_of_average": top_eigenvalue_of(torch.cat(gradients)),
        "average_top": sum(tops) / len(tops),
        "theory_mean": bounds.mean,
        "theory_upper": bounds.upper,
    }


def _points(axis: str, size: Scale) -> list[dict[str, Any]]:
    deepest = max(depth for depth in size.depths if depth <= 4)
    shapes = {
        "depth": [(depth, size.width, SURVIVAL) for depth in size.depths],
        "survival": [(deepest, size.width, survival) for survival in size.survivals],
        "width": [(WIDTH_SWEEP_DEPTH, width, SURVIVAL) for width in size.widths],
    }
    return [
        {"axis": axis, "variant": variant, "depth": depth, "width": width, "survival": survival}
        for depth, width, survival in shapes[axis]
        for variant in VARIANTS
        if variant != "exactly" or float(survival * depth).is_integer()
    ]


def _sentence(rows: list[dict[str, Any]]) -> str:
    parts = []
    for variant, (_, label, _, _) in VARIANTS.items():
        found = [row for row in rows if row["variant"] == variant]
        ratios = [row["mean"] / row["theory_mean"] for row in found]
        shares = [row["top_of_average"] / row["theory_upper"] for row in found]
        inside = sum(row["theory_mean"] <= row["top_of_average"] <= row["theory_upper"] for row in found)
        off = max(abs(row["mean"] - row["theory_mean"]) / row["mean_error"] for row in found)
        parts.append(
            f"{label}: mean {min(ratios):.2f}-{max(ratios):.2f} of theory (up to {off:.1f} s.e. off), "
            f"largest within the bounds in {inside}/{len(found)} ({min(shares):.2f}-{max(shares):.2f} of the upper one)"
        )
    return "; ".join(parts)


def _drawn(rows: list[dict[str, Any]], label: str) -> Figure:
    figure = new_figure(3, 2, height=3.2)
    figure.suptitle(f"Expected Fisher matrix at the start · {label}", fontsize=10)
    for column, (axis, title) in enumerate(AXES.items()):
        mean, top = figure.axes[column], figure.axes[column + 3]
        for variant in VARIANTS:
            found = [row for row in rows if row["axis"] == axis and row["variant"] == variant]
            if found:
                _draw_variant(mean, top, axis, variant, found)
        first = next(row for row in rows if row["axis"] == axis)
        fixed = {"depth": f"L = {first['depth']}", "survival": "p = 0.5", "width": f"D = {first['width']}"}
        mean.set_title(", ".join(text for key, text in fixed.items() if key != axis), fontsize=9)
        for axes in (mean, top):
            axes.set_yscale("log")
            axes.set_xlabel(title)
            axes.set_xticks(sorted({row[axis] for row in rows if row["axis"] == axis}))
    figure.axes[0].set_ylabel("mean eigenvalue")
    figure.axes[3].set_ylabel("largest eigenvalue")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    line = Line2D([], [], color="black", linewidth=1)
    labels = [*map(str, labels), "theory (upper panels), its upper bound (lower panels)"]
    figure.legend([*handles, line], labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _draw_variant(mean: Axes, top: Axes, axis: str, variant: Variant, found: list[dict[str, Any]]) -> None:
    _, label, colour, marker = VARIANTS[variant]
    where = [row[axis] for row in found]
    error = [2 * row["mean_error"] for row in found]
    points: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "linestyle": "none"}
    mean.errorbar(where, [row["mean"] for row in found], error, capsize=3, label=label, **points)
    top.plot(where, [row["top_of_average"] for row in found], **points)
    if variant != "batch_norm_constant":  # its theory is that of the other
        mean.plot(where, [row["theory_mean"] for row in found], color=colour, linewidth=1)
        top.plot(where, [row["theory_upper"] for row in found], color=colour, linewidth=1)
