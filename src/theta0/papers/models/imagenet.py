"""ResNet-50 and Swin-Tiny for 224 × 224 images (yang2022nio, §B.3)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn import init

from theta0.papers.models.normalisation import kaiming_start_

Maps = Float[Tensor, "n height width channels"]


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 and 1 × 1 convolutions with BN, four times as many channels at the end (he2016resnet).

    Attributes:
        shortcut: 1 × 1 convolution and BN where the shape changes, else None.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Float[Tensor, "n inputs height width"]) -> Float[Tensor, "n outputs h w"]:
        """The block's output.

        Args:
            x: feature maps.

        Returns:
            Feature maps.
        """
        inner = F.relu(self.norm1(self.conv1(x)))
        inner = self.norm3(self.conv3(F.relu(self.norm2(self.conv2(inner)))))
        return F.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


class WindowAttention(nn.Module):
    """Attention within shifted windows, with a learned bias for each relative position (liu2021swin).

    Attributes:
        qkv: queries, keys and values at once.
        out: the output projection.
        bias_table: one row for each relative position, one column for each head.
    """

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self._heads, self._window = heads, window

    def forward(self, x: Maps, shift: int) -> Maps:
        """The attended maps.

        Args:
            x: feature maps, both sides multiples of the window.
            shift: by how many positions the windows are moved.

        Returns:
            Feature maps of the same shape.
        """
        n, height, width, channels = x.shape
        w, heads = self._window, self._heads
        rolled = x.roll((-shift, -shift), (1, 2)) if shift else x
        windows = rolled.view(n, height // w, w, width // w, w, channels).transpose(2, 3).reshape(-1, w * w, channels)
        q, k, v = self.qkv(windows).view(-1, w * w, 3, heads, channels // heads).permute(2, 0, 3, 1, 4)
        bias = self.bias_table[_relative(w, x.device)].permute(2, 0, 1)[None]
        if shift:
            bias = bias + _apart(height, width, w, shift, x).repeat(n, 1, 1)[:, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        joined = self.out(mixed.transpose(1, 2).reshape(-1, w * w, channels))
        grid: Tensor = joined.view(n, height // w, width // w, w, w, channels).transpose(2, 3).reshape(x.shape)
        return grid.roll((shift, shift), (1, 2)) if shift else grid


class SwinBlock(nn.Module):
    """Window attention and a two-layer perceptron, each behind layer normalisation and beside a shortcut.

    Attributes:
        attention: within windows.
        perceptron: over channels.
    """

    def __init__(self, channels: int, heads: int, window: int, shifted: bool, expansion: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = WindowAttention(channels, heads, window)
        inner = expansion * channels
        self.perceptron = nn.Sequential(nn.Linear(channels, inner), nn.GELU(), nn.Linear(inner, channels))
        self._window, self._shifted = window, shifted

    def forward(self, x: Maps) -> Maps:
        """The block's output.

        Args:
            x: feature maps.

        Returns:
            Feature maps of the same shape.
        """
        shift = self._window // 2 if self._shifted and x.shape[1] > self._window else 0
        x = x + self.attention(self.norm1(x), shift)
        out: Tensor = x + self.perceptron(self.norm2(x))
        return out


class PatchMerging(nn.Module):
    """Neighbouring 2 × 2 positions become one with twice the channels.

    Attributes:
        reduce: from four times to twice the channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Maps) -> Float[Tensor, "n h w twice"]:
        """The merged maps.

        Args:
            x: feature maps with even sides.

        Returns:
            Feature maps with half the sides.
        """
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        out: Tensor = self.reduce(self.norm(torch.cat(corners, -1)))
        return out


class Swin(nn.Module):
    """Shifted-window transformer (liu2021swin).

    Attributes:
        patches: the convolution that cuts the image into 4 × 4 patches.
        stages: blocks and patch mergings.
        head: the classifier.
    """

    def __init__(self, channels: int, depths: Sequence[int], head_dim: int, window: int, classes: int) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, channels, 4, 4), nn.LayerNorm(channels)
        stages: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            if stage:
                stages.append(PatchMerging(channels))
                channels *= 2
            stages += [SwinBlock(channels, channels // head_dim, window, i % 2 == 1, 4) for i in range(depth)]
        self.stages = nn.Sequential(*stages)
        self.last, self.head = nn.LayerNorm(channels), nn.Linear(channels, classes)

    def forward(self, x: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n classes"]:
        """Class scores.

        Args:
            x: images, sides 32 windows long or a multiple.

        Returns:
            One score for each class.
        """
        maps = self.norm(self.patches(x).movedim(1, -1))
        out: Tensor = self.head(self.last(self.stages(maps)).mean((1, 2)))
        return out


def resnet50(*, classes: int = 1000, generator: torch.Generator | None = None) -> nn.Sequential:
    """ResNet-50 at a Kaiming start.

    Args:
        classes: outputs.
        generator: source of the start.

    Returns:
        The network.
    """
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and not number else 1))
            inputs = 256 << stage
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    kaiming_start_(model, generator=generator)
    return model


def swin_tiny(*, classes: int = 1000, generator: torch.Generator | None = None) -> Swin:
    """Swin-Tiny: 96 channels, blocks (2, 2, 6, 2), windows of 7, heads of 32, expansion 4 (yang2022nio, §B.3).

    Args:
        classes: outputs.
        generator: source of the start: weights from a normal of deviation 0.02 cut at 2, biases zero.

    Returns:
        The network.
    """
    model = Swin(96, (2, 2, 6, 2), 32, 7, classes)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            init.trunc_normal_(module.weight, std=0.02, generator=generator)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, WindowAttention):
            init.trunc_normal_(module.bias_table, std=0.02, generator=generator)
    return model


def _relative(window: int, device: torch.device) -> Tensor:
    """The row of the bias table for each pair of positions in a window."""
    place = torch.arange(window * window, device=device)
    row, column = place // window, place % window
    return (row[:, None] - row + window - 1) * (2 * window - 1) + column[:, None] - column + window - 1


def _apart(height: int, width: int, window: int, shift: int, like: Tensor) -> Tensor:
    """-100 between positions that the shift brought into one window from opposite edges of the image."""
    sides = [torch.zeros(size, dtype=torch.long, device=like.device) for size in (height, width)]
    for side in sides:
        side[-window:], side[-shift:] = 1, 2
    regions = sides[0][:, None] * 3 + sides[1]
    cut = regions.view(height // window, window, width // window, window).transpose(1, 2).reshape(-1, window**2)
    return (cut[:, :, None] != cut[:, None]).to(like.dtype) * -100
