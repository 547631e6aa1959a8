"""ResNet, WRN and DenseNet for 32 × 32 images, of any depth and width, with BN or learnable biases in its place."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from theta0.papers.models.normalisation import kaiming_start_, normalisation

Images = Float[Tensor, "n channels height width"]
Maps = Float[Tensor, "n outputs rows columns"]


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut without parameters: every stride-th pixel, missing channels zero (he2016resnet).

    Attributes:
        conv1: the first convolution.
        conv2: the second.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = normalisation(outputs, batch_norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = normalisation(outputs, batch_norm)
        self._stride, self._missing = stride, outputs - inputs

    def forward(self, x: Images) -> Maps:
        """The block's output.

        Args:
            x: feature maps.

        Returns:
            Feature maps.
        """
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        missing = self._missing
        shortcut = F.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, missing // 2, missing - missing // 2))
        return F.relu(inner + shortcut)


class PreActivationBlock(nn.Module):
    """Normalisation and ReLU before each of two convolutions, a 1 × 1 shortcut where the shape changes (WRN).

    Attributes:
        conv1: the first convolution.
        conv2: the second.
        shortcut: the 1 × 1 convolution, or None.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.norm1 = normalisation(inputs, batch_norm)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = normalisation(outputs, batch_norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Images) -> Maps:
        """The block's output.

        Args:
            x: feature maps.

        Returns:
            Feature maps.
        """
        active = F.relu(self.norm1(x))
        inner = self.conv2(F.relu(self.norm2(self.conv1(active))))
        out: Tensor = inner + (x if self.shortcut is None else self.shortcut(active))
        return out


class DenseLayer(nn.Module):
    """k new channels from all before them, behind a 1 × 1 bottleneck of 4k channels (huang2017densenet's BC).

    Attributes:
        conv1: the bottleneck, None without one.
        conv2: the 3 × 3 convolution.
    """

    def __init__(self, inputs: int, growth: int, bottleneck: bool, batch_norm: bool) -> None:
        super().__init__()
        inner = 4 * growth if bottleneck else inputs
        self.norm1 = normalisation(inputs, batch_norm) if bottleneck else None
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False) if bottleneck else None
        self.norm2 = normalisation(inner, batch_norm)
        self.conv2 = nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: Images) -> Maps:
        """All channels, the new ones last.

        Args:
            x: feature maps.

        Returns:
            Feature maps with k more channels.
        """
        inner = x if self.conv1 is None or self.norm1 is None else self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(inner)))], 1)


class _Pooled(nn.Module):
    """Mean over positions."""

    def forward(self, x: Images) -> Float[Tensor, "n channels"]:
        return x.mean((2, 3))


def cifar_resnet(
    depth: int = 110,
    *,
    width: int = 16,
    classes: int = 10,
    channels: int = 3,
    batch_norm: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """ResNet of depth 6n + 2 with widths w, 2w, 4w and two convolutions a block, at a Kaiming start.

    Args:
        depth: 20, 32, 44, 56, 110 …
        width: of the first stage.
        classes: outputs.
        channels: of the images.
        batch_norm: BN, or biases in its place.
        generator: source of the start.

    Returns:
        The network.

    Raises:
        ValueError: if the depth is not 6n + 2.
    """
    blocks = _blocks(depth, 2, "ResNet")
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), normalisation(width, batch_norm)]
    layers += [nn.ReLU(), *_stages(BasicBlock, width, (width, 2 * width, 4 * width), blocks, batch_norm)]
    model = nn.Sequential(*layers, _Pooled(), nn.Linear(4 * width, classes))
    kaiming_start_(model, generator=generator)
    return model


def wide_resnet(
    depth: int = 28,
    widen: int = 10,
    *,
    classes: int = 10,
    channels: int = 3,
    batch_norm: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """WRN-depth-widen of depth 6n + 4 (zagoruyko2016wrn), at a Kaiming start.

    Args:
        depth: 10, 16, 22, 28, 40 …
        widen: the widening factor.
        classes: outputs.
        channels: of the images.
        batch_norm: BN, or biases in its place.
        generator: source of the start.

    Returns:
        The network.

    Raises:
        ValueError: if the depth is not 6n + 4.
    """
    blocks = _blocks(depth, 4, "WRN")
    widths = (16 * widen, 32 * widen, 64 * widen)
    stages = _stages(PreActivationBlock, 16, widths, blocks, batch_norm)
    end = [normalisation(widths[-1], batch_norm), nn.ReLU(), _Pooled(), nn.Linear(widths[-1], classes)]
    model = nn.Sequential(nn.Conv2d(channels, 16, 3, 1, 1, bias=False), *stages, *end)
    kaiming_start_(model, generator=generator)
    return model


def cifar_densenet(
    depth: int = 100,
    growth: int = 12,
    *,
    bottleneck: bool = True,
    classes: int = 10,
    channels: int = 3,
    batch_norm: bool = True,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """DenseNet of three blocks with growth k (huang2017densenet), at a Kaiming start.

    Args:
        depth: 6n + 4 with bottlenecks, 3n + 4 without.
        growth: k.
        bottleneck: bottlenecks, transitions that halve the channels and 2k channels at first (BC); else none, and 16.
        classes: outputs.
        channels: of the images.
        batch_norm: BN, or biases in its place.
        generator: source of the start.

    Returns:
        The network.

    Raises:
        ValueError: if the depth is of another form.
    """
    per_block = _blocks(depth, 4, "DenseNet", 6 if bottleneck else 3)
    count = 2 * growth if bottleneck else 16
    layers: list[nn.Module] = [nn.Conv2d(channels, count, 3, 1, 1, bias=False)]
    for block in range(3):
        if block:
            kept = count // 2 if bottleneck else count
            layers += [normalisation(count, batch_norm), nn.ReLU(), nn.Conv2d(count, kept, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            count = kept
        for _ in range(per_block):
            layers.append(DenseLayer(count, growth, bottleneck, batch_norm))
            count += growth
    end = [normalisation(count, batch_norm), nn.ReLU(), _Pooled(), nn.Linear(count, classes)]
    model = nn.Sequential(*layers, *end)
    kaiming_start_(model, generator=generator)
    return model


def _blocks(depth: int, rest: int, name: str, unit: int = 6) -> int:
    blocks, left = divmod(depth - rest, unit)
    if left or blocks < 1:
        raise ValueError(f"depth: expected {unit}n + {rest} for a {name}, got {depth}")
    return blocks


def _stages(
    block: type[BasicBlock] | type[PreActivationBlock],
    inputs: int,
    widths: tuple[int, ...],
    count: int,
    batch_norm: bool,
) -> list[nn.Module]:
    found: list[nn.Module] = []
    for stage, width in enumerate(widths):
        for number in range(count):
            found.append(block(inputs, width, 2 if stage and not number else 1, batch_norm))
            inputs = width
    return found
