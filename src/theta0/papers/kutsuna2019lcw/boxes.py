"""The sigmoid perceptrons of kutsuna2019lcw's Figures 2-4, what flows through them, and its box plots."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Float64
from matplotlib.axes import Axes
from torch import Generator, Tensor, nn

from theta0.papers.datasets import Dataset
from theta0.papers.kutsuna2019lcw.training import Plan, prepared, source_of
from theta0.papers.kutsuna2019lcw.variants import VARIANTS, start_
from theta0.papers.models import deep_perceptron
from theta0.papers.scales import scale_named

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
# Ten of the hundred epochs of section 6.1, whose rate falls by 0.95 an epoch.
_TEN_EPOCHS = Plan(None, None, 10, 10, 1e-4, decay=0.95**0.1)


@dataclass(frozen=True)
class Scale:
    """How large the experiment is; the source gives the depths and samples, the width is that of section 6.1.

    Attributes:
        width: units of a hidden layer.
        plan: the training of Fig. 2(b).
        data: the data set when none is named.
    """

    width: int
    plan: Plan
    data: str


SCALES = {
    "smoke": Scale(32, replace(_TEN_EPOCHS, train=512, test=128, epochs=2, points=2, batch=64), "digits"),
    "laptop": Scale(256, _TEN_EPOCHS, "cifar10"),
    "paper": Scale(256, _TEN_EPOCHS, "cifar10"),
}


def scaled_data(data: Dataset | str | None, root: str | Path | None, scale: str) -> tuple[Dataset, Scale]:
    """The data set of a scale, channels standardised.

    Args:
        data: a data set or its name; None for the scale's.
        root: where its files are.
        scale: `smoke`, `laptop` or `paper`.

    Returns:
        The data and the scale.

    Raises:
        ValueError: there is no such scale.
    """
    size = scale_named(SCALES, scale)
    return prepared(source_of(data, root, size.data), size.plan), size


def perceptron(
    variant: str, data: Dataset, depth: int, width: int, *, samples: int = 128, seed: int = 0
) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A sigmoid perceptron at its start, and the minibatch that the start was taken on.

    Args:
        variant: a name from `VARIANTS`.
        data: from `scaled_data`.
        depth: hidden layers.
        width: their units.
        samples: of the minibatch.
        seed: of weights and minibatch.

    Returns:
        The network and the minibatch's inputs and classes.
    """
    generator: Generator = torch.Generator().manual_seed(seed)
    classes = int(data.train_y.max()) + 1
    model = deep_perceptron(data.train_x[0].numel(), classes, depth=depth, width=width, generator=generator)
    chosen = torch.randperm(len(data.train_x), generator=generator)[:samples]
    batch = (data.train_x[chosen], data.train_y[chosen])
    return start_(model, VARIANTS[variant], [batch[0]]), batch


def flow(
    model: nn.Module, x: Tensor
) -> tuple[Float[Tensor, "n classes"], list[Float[Tensor, "n width"]], list[Float[Tensor, "n width"]]]:
    """What flows through a deep perceptron.

    Args:
        model: from `deep_perceptron`.
        x: inputs.

    Returns:
        The logits, and the preactivations and activations of the hidden layers.
    """
    preactivations, activations = [], []
    for name, module in model.named_children():
        x = module(x)
        if name.startswith("hidden"):
            preactivations.append(x)
        elif name.startswith("activation"):
            activations.append(x)
    return x, preactivations, activations


def quantiles(values: Float[Tensor, "n columns"]) -> Float64[Tensor, "columns 5"]:
    """The source's whiskers, box and median of every column.

    Returns:
        The quantiles 1, 25, 50, 75 and 99 %.
    """
    return torch.quantile(values.detach().double(), torch.tensor(QUANTILES, dtype=torch.float64), dim=0).T


def draw_boxes(axes: Axes, rows: Sequence[Sequence[float]], colour: str) -> None:
    """Box plots from quantiles.

    Args:
        axes: where.
        rows: five quantiles for each box.
        colour: of the boxes.
    """
    keys = ("whislo", "q1", "med", "q3", "whishi")
    axes.bxp(
        [dict(zip(keys, row, strict=True)) for row in rows],
        showfliers=False,
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": colour, "alpha": 0.55, "linewidth": 0.6},
        medianprops={"color": "black", "linewidth": 1.2},
        whiskerprops={"linewidth": 0.7},
        capprops={"linewidth": 0.7},
    )
    step = 1 if len(rows) <= 10 else 5
    shown = [n for n in range(1, len(rows) + 1) if n == 1 or n % step == 0]
    axes.set_xticks(shown, [str(n) for n in shown])
