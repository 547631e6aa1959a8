"""Batch normalisation, or the learnable bias that stands in for it, and the start that both kinds of networks share."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import init

NORMALISED = (nn.Conv2d, nn.Linear)


class ChannelBias(nn.Module):
    """A learnable bias per channel, zero at the start: what is left of BN's affine function (yang2022nio, §B.2).

    Attributes:
        bias: one number for each channel.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n channels height width"]:
        """The shifted channels.

        Args:
            x: feature maps.

        Returns:
            Feature maps of the same shape.
        """
        return x + self.bias.view(-1, 1, 1)


def normalisation(channels: int, batch_norm: bool) -> nn.Module:
    """BN, or a bias in its place.

    Args:
        channels: how many.
        batch_norm: which.

    Returns:
        A module that keeps the shape.
    """
    return nn.BatchNorm2d(channels) if batch_norm else ChannelBias(channels)


def kaiming_start_(model: nn.Module, *, generator: torch.Generator | None = None) -> nn.Module:
    """W ~ N(0, 2/fan_in) in every convolution and dense layer, biases zero (yang2022nio, §B.2).

    Args:
        model: the network, changed in place.
        generator: source of the draws.

    Returns:
        The same network.
    """
    draw = partial(init.kaiming_normal_, nonlinearity="relu", generator=generator)
    for module in model.modules():
        if isinstance(module, NORMALISED):
            draw(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
    return model
