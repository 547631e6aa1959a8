"""The convolutional networks of kutsuna2019lcw, section 6.2: VGG19 with BN, and the full pre-activation ResNet18."""

from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from theta0.papers.models.perceptron import glorot_

_VGG19 = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))  # layers and channels between two poolings
_RESNET18 = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and first stride of a stage of two units


def vgg19(
    classes: int = 10,
    *,
    channels: int = 3,
    width: float = 1.0,
    dense: int | None = None,
    size: int = 32,
    dropout: float = 0.5,
    generator: Generator | None = None,
) -> nn.Sequential:
    """Sixteen convolutions in series and three dense layers with dropout, BN before each ReLU (section 6.2).

    The source does not state the width of the dense layers; 512 units, as wide as the last convolution, is usual for
    images of 32 × 32. Weights by Glorot's uniform law, biases 0.

    Args:
        classes: number of logits.
        channels: of the images.
        width: factor on all widths.
        dense: units of the first two dense layers before that factor; 512 when None.
        size: height and width of the images; each of the five poolings that still can halves them.
        dropout: share of dense units dropped in training.
        generator: source of the draws.

    Returns:
        The network, in two parts: `features` and `classifier`.

    Raises:
        ValueError: a width that leaves a layer without units.
    """
    fan_in, features = channels, nn.Sequential()
    for repeats, full in _VGG19:
        for _ in range(repeats):
            fan_out = _scaled(full, width)
            features.extend([nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.BatchNorm2d(fan_out), nn.ReLU()])
            fan_in = fan_out
        if size > 1:
            features.append(nn.MaxPool2d(2))
            size //= 2
    units = _scaled(512 if dense is None else dense, width)
    classifier = nn.Sequential(nn.Flatten())
    for inputs in (fan_in * size**2, units):
        classifier.extend([nn.Linear(inputs, units), nn.BatchNorm1d(units), nn.ReLU(), nn.Dropout(dropout)])
    classifier.append(nn.Linear(units, classes))
    model = nn.Sequential()
    model.add_module("features", features)
    model.add_module("classifier", classifier)
    glorot_(model, generator=generator)
    return model


def preactivation_resnet18(
    classes: int = 10, *, channels: int = 3, width: float = 1.0, generator: Generator | None = None
) -> nn.Sequential:
    """Eight residual units of two convolutions, each BN, ReLU, convolution (section 6.2), for small images.

    The stem is one 3 × 3 convolution, without pooling. Weights by Glorot's uniform law.

    Args:
        classes: number of logits.
        channels: of the images.
        width: factor on all widths.
        generator: source of the draws.

    Returns:
        The network.

    Raises:
        ValueError: a width that leaves a layer without units.
    """
    fan_in = _scaled(_RESNET18[0][0], width)
    model = nn.Sequential(nn.Conv2d(channels, fan_in, 3, padding=1, bias=False))
    for full, first_stride in _RESNET18:
        fan_out = _scaled(full, width)
        for stride in (first_stride, 1):
            model.append(PreactivationUnit(fan_in, fan_out, stride))
            fan_in = fan_out
    model.extend([nn.BatchNorm2d(fan_in), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()])
    model.append(nn.Linear(fan_in, classes))
    glorot_(model, generator=generator)
    return model


class PreactivationUnit(nn.Module):
    """x + conv(φ(BN(conv(φ(BN(x)))))); where the shape changes, x is replaced by a 1 × 1 convolution of φ(BN(x))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None if stride == 1 and inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Float[Tensor, "n inputs height width"]) -> Float[Tensor, "n outputs h w"]:
        """The unit's output.

        Args:
            x: the residual stream.

        Returns:
            The stream after this unit.
        """
        active = F.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        branch: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return branch + skip


def _scaled(full: int, width: float) -> int:
    units = round(full * width)
    if units < 1:
        raise ValueError(f"width {width} leaves a layer of {full} without units: choose at least {1 / full:g}")
    return units
