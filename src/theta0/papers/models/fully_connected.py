"""The network of lee2023mmd (appendix D.1) and its two ordinary starts."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Generator, nn

Draw = Literal["xavier", "he"]


def fully_connected(
    inputs: int = 784, hidden: Sequence[int] = (392, 392, 392), classes: int = 2, *, batch_norm: bool = False
) -> nn.Sequential:
    """Linear layers with ReLU between them, over flattened inputs (lee2023mmd, FCN and FCN + BN).

    Args:
        inputs: entries of one input.
        hidden: widths of the hidden layers; the source's network has three of 392.
        classes: outputs, one logit per class.
        batch_norm: batch normalization of every hidden layer before its ReLU.

    Returns:
        The network, drawn as torch draws it; see `draw_weights_`.

    Raises:
        ValueError: if a width is below 1.
    """
    widths = (inputs, *hidden, classes)
    if min(widths) < 1:
        raise ValueError(f"fully_connected: expected widths of at least 1, got {widths}")
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, width in pairwise(widths[:-1]):
        layers += [nn.Linear(fan_in, width), *([nn.BatchNorm1d(width)] if batch_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], classes))


def draw_weights_(model: nn.Module, draw: Draw, *, generator: Generator | None = None) -> nn.Module:
    """Draw the weights of linear and convolutional layers anew; their biases become 0.

    Args:
        model: changed in place.
        draw: "xavier", uniform of variance 2/(fan-in + fan-out), or "he", normal of variance 2/fan-in.
        generator: source of the draws.

    Returns:
        The model.

    Raises:
        ValueError: if the draw is neither.
    """
    if draw not in ("xavier", "he"):
        raise ValueError(f"draw: expected 'xavier' or 'he', got {draw!r}")
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            if draw == "xavier":
                nn.init.xavier_uniform_(module.weight, generator=generator)
            else:
                nn.init.kaiming_normal_(module.weight, generator=generator)
            if module.bias is not None:
                with torch.no_grad():
                    module.bias.zero_()
    return model
