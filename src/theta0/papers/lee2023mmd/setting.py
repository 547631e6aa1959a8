"""What the tables and figures share: the data, the sizes of the experiments, and the starts."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from theta0.papers.datasets import Dataset, load, standardize
from theta0.papers.lee2023mmd.published import ACCURACIES, DEGENERATE, Row
from theta0.papers.scales import is_scale, scale_named
from theta0.papers.sweeps import Store

BATCH = 32


@dataclass(frozen=True)
class Scale:
    """How large an experiment is.

    Attributes:
        steps: of pre-training; the source's five epochs of 60,000 in batches of 32 are 9,375.
        grid_steps: of pre-training for the grid of Table 5 and Figure 3.
        perturbations: perturbed models, and uniform points, of a step.
        labels: N of Tables 1 and 2.
        tasks: per run.
        runs: of Tables 1 and 2.
        grid_runs: of Table 5 and Figure 3.
        mini_batches: over which degenerate and dead shares are averaged.
        scales: s² of the grid.
        degenerates: λ of the grid.
        cnn_steps: of pre-training of the CNN.
        points: perturbations, and samples, of a density in Figure 1.
        pairs: λ and ξ of Tables 3 and 4.
        rows: of Tables 1 and 2; a pre-trained one stands beside the one of the same draw and normalisation without.
    """

    steps: int
    grid_steps: int
    perturbations: int
    labels: tuple[int, ...]
    tasks: int
    runs: int
    grid_runs: int
    mini_batches: int
    scales: tuple[float, ...]
    degenerates: tuple[float, ...]
    cnn_steps: int
    points: int
    pairs: tuple[tuple[float, float], ...] = tuple(DEGENERATE)
    rows: tuple[Row, ...] = tuple(ACCURACIES)


_PAPER = Scale(9375, 9375, 256, (5, 10, 20, 40), 20, 4, 4, 128, (0.2, 0.5, 1.0, 2.0), (0.2, 0.4, 1.0), 9375, 1024)
SCALES: dict[str, Scale] = {
    "smoke": Scale(6, 6, 8, (5,), 2, 2, 1, 2, (0.2, 0.5), (0.4,), 6, 64),
    "laptop": replace(_PAPER, grid_steps=2500, cnn_steps=1000, labels=(5, 20), runs=2, grid_runs=1),
    "paper": _PAPER,
}


def image_data(
    data: Dataset | str | None,
    root: str | Path | None,
    scale: str,
    *,
    over: Literal["coordinate", "all"] = "coordinate",
) -> Dataset:
    """A data set as the networks take it: every pixel has mean 0 and variance 1 over the training images.

    Of the readings of §4's sentence, this is the one under which Table 4's few dead units come out.

    Args:
        data: a data set or its name; None takes MNIST, and digits at smoke scale.
        root: where its files are.
        scale: size of the experiment.
        over: "all" gives mean 0 and variance 1 to all pixels together, as convolutions need it.

    Returns:
        The data.
    """
    scale_named(SCALES, scale)
    if data is None:
        data = "digits" if is_scale(scale, "smoke") else "mnist"
    return standardize(load(data, root) if isinstance(data, str) else data, over=over)


def unlabelled(x: Float[Tensor, "n ..."]) -> DataLoader[tuple[Tensor, ...]]:
    """Bare inputs in shuffled batches of 32, the labels left behind.

    Args:
        x: all inputs.

    Returns:
        The batches; a last, smaller one is dropped.
    """
    return DataLoader(TensorDataset(x), batch_size=BATCH, shuffle=True, drop_last=True)


def store_in(out_dir: str | Path, store: Store | None) -> Store:
    """Where results are kept: these experiments take hours, so they are always kept.

    Args:
        out_dir: folder of the figures.
        store: the caller's choice.

    Returns:
        The store.
    """
    return Store(Path(out_dir) / "lee2023mmd.jsonl") if store is None else store


def paired_interval(differences: list[float]) -> tuple[float, float]:
    """The mean of paired differences and half of its 95 % interval, by Student's t.

    Args:
        differences: one per pair, at least two.

    Returns:
        Mean and half width.
    """
    from scipy import stats

    count = len(differences)
    mean = sum(differences) / count
    deviation = math.sqrt(sum((d - mean) ** 2 for d in differences) / (count - 1))
    return mean, float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
