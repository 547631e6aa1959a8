"""Figure 1: a random weight matrix times a random activation matrix has stripes (kutsuna2019lcw, section 2)."""

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, new_figure
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Progress, Store
from theta0.papers.verdicts import verdict
from theta0.theory import expected_preactivation

_SIZES = {"smoke": 40, "laptop": 100, "paper": 100}
_LIMIT = 3.0  # colours span this many standard deviations of Z


def fig1(
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
    """W ~ U(-1, 1), A ~ U(0, 1), Z = WA, and beside the source's three panels Z with zero-sum rows of W.

    Args:
        data: not used: the figure is of random numbers.
        root: not used.
        scale: `smoke` (40 × 40), `laptop` or `paper` (the source's 100 × 100).
        out_dir: where `fig1.png` and `fig1.json` go.
        store: not used: it takes no time.
        backend: not used.
        jobs: not used.
        progress: called once it is done.

    Returns:
        One line that compares with the source.

    Raises:
        ValueError: there is no such scale.
    """
    size, generator = scale_named(_SIZES, scale), torch.Generator().manual_seed(0)
    weight = 2 * torch.rand(size, size, generator=generator, dtype=torch.float64) - 1
    activations = torch.rand(size, size, generator=generator, dtype=torch.float64)
    constrained = weight - weight.mean(1, keepdim=True)
    z, flat = weight @ activations, constrained @ activations
    expected = expected_preactivation(weight, torch.full((size,), 0.5)).value
    numbers = {
        "size": size,
        "shift_share": _share(z),
        "shift_share_expected": 0.75,  # γ² / E[a²] with γ = 1/2, E[a²] = 1/3, in the limit of many columns
        "shift_share_zero_sum": _share(flat),
        "correlation_of_row_means_with_proposition_1": float(torch.corrcoef(torch.stack([z.mean(1), expected]))[0, 1]),
    }
    finish(_drawn([weight, activations, z, flat]), numbers, out_dir, "fig1")
    if progress is not None:
        progress(1, 1)
    stripes = verdict(numbers["shift_share"] > 0.5, "there are stripes")
    return (
        f"fig1: {numbers['shift_share']:.0%} of the variance of Z lies between its rows ({stripes}; expected: 75 %), "
        f"{numbers['shift_share_zero_sum']:.1%} when the rows of W sum to zero; row means correlate with Proposition 1 "
        f"by {numbers['correlation_of_row_means_with_proposition_1']:.3f}"
    )


def _share(z: Tensor) -> float:
    return float(z.mean(1).var(correction=0) / z.var(correction=0))


def _drawn(matrices: list[Tensor]) -> Figure:
    figure = new_figure(4, height=3.2)
    titles = ("(a) W, uniform on (-1, 1)", "(b) A, uniform on (0, 1)", "(c) Z = WA", "Z, rows of W summing to zero")
    limit = _LIMIT * float(matrices[2].std())
    ranges: list[tuple[float, float]] = [(-1, 1), (0, 1), (-limit, limit), (-limit, limit)]
    for axes, matrix, title, (low, high) in zip(figure.axes, matrices, titles, ranges, strict=True):
        style: dict[str, Any] = {"cmap": "viridis" if low == 0 else "RdBu_r", "interpolation": "nearest"}
        image = axes.imshow(matrix.numpy(), vmin=low, vmax=high, **style)
        figure.colorbar(image, ax=axes, shrink=0.8)
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="unit" if matrix is matrices[0] else "sample", ylabel="unit")
    return figure
