"""What Figures 15-24 share: three networks, their data, their bounds and the sizes of the experiments."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from theta0.papers.datasets import Dataset, load, pca_whiten, two_classes
from theta0.papers.models import ThesisResNet, draw_kept_layers, thesis_start_
from theta0.papers.scales import is_scale, scale_named
from theta0.theory import FisherBounds, batch_norm_resnet_bounds, resnet_bounds, stochastic_depth_bounds

Kind = Literal["resnet", "batch_norm", "stochastic_depth"]

KINDS: tuple[Kind, ...] = ("resnet", "batch_norm", "stochastic_depth")
TITLES = {"resnet": "ResNet", "batch_norm": "ResNet with BN", "stochastic_depth": "ResNet with stochastic depth"}
COLOURS = {"resnet": "#1f5a94", "batch_norm": "#c1521c", "stochastic_depth": "#3c7d3c"}
SURVIVAL = 0.5
SPEED_DEPTH = 4
WIDTH_SWEEP_DEPTH = 2


@dataclass(frozen=True)
class Scale:
    """How large an experiment is; the thesis gives the networks, updates and runs, not the grids.

    Attributes:
        samples: most training samples used.
        width: D where it is not swept.
        depths: L where it is swept.
        widths: D where it is swept.
        survivals: p where it is swept.
        rates: number of learning rates of a map.
        runs: starts per map.
        speed_runs: starts per curve of the loss.
        starts: starts that an expected Fisher matrix averages over.
        steps: updates per run.
    """

    samples: int
    width: int
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    survivals: tuple[float, ...]
    rates: int
    runs: int
    speed_runs: int
    starts: int
    steps: int


_LAPTOP = Scale(300, 50, (1, 2, 4, 6, 8), (10, 20, 30, 40, 50), (0.25, 0.5, 0.75, 1.0), 25, 5, 10, 20, 50)
SCALES: dict[str, Scale] = {
    "smoke": Scale(120, 20, (1, 2), (10, 20), (0.5, 1.0), 8, 2, 2, 3, 10),
    "laptop": _LAPTOP,
    "paper": replace(
        _LAPTOP,
        samples=1000,
        depths=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        widths=(10, 20, 30, 40, 50, 60, 70, 80, 90, 100),
        survivals=(0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0),
        rates=49,
    ),
}


def two_class_data(data: Dataset | str | None, root: str | Path | None, scale: str, thesis_data: str) -> Dataset:
    """Classes 0 and 1 of a data set, thinned to the scale's number of samples at even steps through the files.

    Args:
        data: a data set or its name; None takes the thesis's, and digits at smoke scale.
        root: where its files are.
        scale: size of the experiment.
        thesis_data: the thesis's data set for this figure.

    Returns:
        The data, not yet whitened.
    """
    most = scale_named(SCALES, scale).samples
    if data is None:
        data = "digits" if is_scale(scale, "smoke") else thesis_data
    chosen = load(data, root) if isinstance(data, str) else data
    chosen = two_classes(chosen, 0, 1)
    train, test = (_even(len(x), most) for x in (chosen.train_x, chosen.test_x))
    return replace(
        chosen,
        train_x=chosen.train_x[train],
        train_y=chosen.train_y[train],
        test_x=chosen.test_x[test],
        test_y=chosen.test_y[test],
    )


def whitened(data: Dataset, width: int) -> tuple[Float[Tensor, "n width"], Float[Tensor, "n 1"]]:
    """Training inputs whitened to a width, and the targets 0 and 1.

    Args:
        data: two classes of a data set.
        width: number of principal components D.

    Returns:
        Inputs and targets.
    """
    ready = pca_whiten(data, width)
    return ready.train_x, ready.train_y.float().unsqueeze(1)


def make_network(kind: Kind, width: int, depth: int, generator: Generator) -> ThesisResNet:
    """One of the three networks at the thesis's start (eq. 26).

    Args:
        kind: which.
        width: D.
        depth: L.
        generator: source of the weights.

    Returns:
        The network; stochastic depth differs from the plain one by what `layer_draw` passes to it.
    """
    return thesis_start_(ThesisResNet(width, depth, batch_norm=kind == "batch_norm"), generator=generator)


def layer_draw(
    kind: Kind, depth: int, survival: float, *, exactly: bool = False
) -> Callable[[Generator], Tensor] | None:
    """How a network draws the layers it keeps.

    Args:
        kind: which network.
        depth: L.
        survival: p.
        exactly: keep exactly p·L layers.

    Returns:
        A function of a generator, None for networks that keep all.
    """
    if kind != "stochastic_depth":
        return None
    return partial(_draw, depth, survival, exactly)


def fisher_bounds(kind: Kind, depth: int, width: int, survival: float, *, exactly: bool = False) -> FisherBounds:
    """The closed form of one of the three networks (Theorems 6-8).

    Args:
        kind: which.
        depth: L.
        width: D.
        survival: p of stochastic depth.
        exactly: Theorem 8's exactly p·L layers instead of independent drops.

    Returns:
        Mean eigenvalue and bounds of the largest.
    """
    if kind == "resnet":
        return resnet_bounds(depth, width)
    if kind == "batch_norm":
        return batch_norm_resnet_bounds(depth, width)
    return stochastic_depth_bounds(depth, width, survival, dropping="exactly" if exactly else "bernoulli")


def thesis_bounds(kind: Kind, depth: int, width: int, survival: float) -> FisherBounds | None:
    """The same as the thesis states it: Theorem 8 for stochastic depth, None where p·L is not whole."""
    if kind != "stochastic_depth":
        return fisher_bounds(kind, depth, width, survival)
    kept = survival * depth
    return fisher_bounds(kind, depth, width, survival, exactly=True) if abs(kept - round(kept)) < 1e-9 else None


def half_squared_error(outputs: Float[Tensor, "n 1"], targets: Float[Tensor, "n 1"]) -> Float[Tensor, ""]:
    """The mean of ½(f - y)², the loss whose curvature is the Fisher matrix (furusho2020thesis, §2.4).

    Args:
        outputs: f.
        targets: y.

    Returns:
        The loss.
    """
    return 0.5 * (outputs - targets).square().mean()


def _draw(depth: int, survival: float, exactly: bool, generator: Generator) -> Float[Tensor, " depth"]:
    return draw_kept_layers(depth, survival, exactly=exactly, generator=generator)


def _even(size: int, most: int) -> Tensor:
    return torch.linspace(0, size - 1, min(size, most)).round().long()
