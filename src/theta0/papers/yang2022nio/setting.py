"""Networks, starts and sizes of the comparison of starting points."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, nn

from theta0.papers.models import cifar_densenet, cifar_resnet, wide_resnet

Build = Callable[..., nn.Module]

NETWORKS: dict[str, Build] = {
    "resnet8": lambda **options: cifar_resnet(8, width=4, **options),
    "resnet20": lambda **options: cifar_resnet(20, **options),
    "resnet32": lambda **options: cifar_resnet(32, **options),
    "wrn10-2": lambda **options: wide_resnet(10, 2, **options),
    "densenet22": lambda **options: cifar_densenet(22, **options),
    "resnet110": lambda **options: cifar_resnet(110, **options),
    "wrn28-10": lambda **options: wide_resnet(28, 10, **options),
    "densenet100": lambda **options: cifar_densenet(100, **options),
}
PUBLISHED = "published nio"
STARTS = ("kaiming", "nio", PUBLISHED, "gradinit", "lsuv")


@dataclass(frozen=True)
class Scale:
    """How large the comparison is.

    Attributes:
        networks: names in `NETWORKS`.
        seeds: of the start and the order of samples.
        batch: samples a step, in search and training.
        search_steps: of NIO and GradInit; None takes one pass over the training samples.
        search_batches: from which they are taken.
        search_samples: that the published NIO's one pass goes over; None for all training samples.
        train_steps: updates before the test; None trains the source's epochs.
        rate: the first learning rate, cosine annealed (momentum 0.9, weight decay 1e-4, gradients clipped at norm 1
            without BN).
        train_samples: most training samples.
        test_samples: most test samples.
        augment: crop, flip and cutout.
        starts: which are compared; "nio" is this library's default, "published nio" the source's Algorithm 3.
    """

    networks: tuple[str, ...]
    seeds: int
    batch: int
    search_steps: int | None
    search_batches: int
    search_samples: int | None
    train_steps: int | None
    rate: float
    train_samples: int
    test_samples: int
    augment: bool
    starts: tuple[str, ...] = STARTS


SCALES: dict[str, Scale] = {
    "smoke": Scale(("resnet8",), 1, 32, 4, 4, 128, 6, 0.1, 400, 100, False),
    "laptop": Scale(
        ("resnet20", "resnet32", "wrn10-2", "densenet22"), 3, 64, 30, 12, 5_000, 150, 0.1, 20_000, 2_000, False
    ),
    "paper": Scale(("resnet110", "densenet100", "wrn28-10"), 4, 128, None, 390, None, None, 0.1, 50_000, 10_000, True),
}


def network(name: str, channels: int, classes: int, batch_norm: bool, seed: int) -> nn.Module:
    """A network at its Kaiming start.

    Args:
        name: in `NETWORKS`.
        channels: of the images.
        classes: outputs.
        batch_norm: BN, or biases in its place.
        seed: of the start.

    Returns:
        The network.
    """
    generator: Generator = torch.Generator().manual_seed(seed)
    return NETWORKS[name](channels=channels, classes=classes, batch_norm=batch_norm, generator=generator)
