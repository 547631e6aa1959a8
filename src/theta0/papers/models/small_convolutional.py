"""A small convolutional classifier, for what the sources left out."""

from torch import nn


def small_cnn(side: int, *, channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Two 3x3 convolutions of 16 and 32 channels, ReLU and 2x2 max pooling behind each, then 64 units and the logits.

    Args:
        side: height and width of the images.
        channels: of the images.
        classes: logits.

    Returns:
        The network, drawn as torch draws it; see `draw_weights_`.

    Raises:
        ValueError: if the images are smaller than 4 pixels a side.
    """
    if side < 4:
        raise ValueError(f"small_cnn: expected images of at least 4 pixels a side, got {side}")
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (side // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
