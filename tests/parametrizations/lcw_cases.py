"""Layers, inputs and readings shared by the tests of linearly constrained weights."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

both = pytest.mark.parametrize("coordinates", ["ambient", "orthonormal"])
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(7, 5),
    "linear without bias": lambda: nn.Linear(2, 3, bias=False),
    "conv1d": lambda: nn.Conv1d(4, 6, 3, padding=1),
    "conv2d grouped": lambda: nn.Conv2d(4, 6, 3, groups=2, stride=2),
    "conv2d depthwise": lambda: nn.Conv2d(4, 4, (1, 2), groups=4),
    "conv2d channels last": lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
    "conv3d": lambda: nn.Conv3d(2, 3, (2, 1, 3)),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs_for(layer: nn.Module, batch: int = 3) -> Tensor:
    if isinstance(layer, nn.Linear):
        return random(batch, layer.in_features, seed=1)
    return random(batch, layer.in_channels, *(6 for _ in layer.kernel_size), seed=1)


def original(layer: nn.Module) -> nn.Parameter:
    return layer.parametrizations.weight.original


def imbalance(weight: Tensor) -> float:
    """The largest |1ᵀw| / ‖w‖₁ over units, summed in float64."""
    rows = weight.detach().double().flatten(1)
    return (rows.sum(1).abs() / rows.abs().sum(1)).max().item()
