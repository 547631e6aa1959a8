"""The hyper-parameters of yang2022nio's appendix (§B.1-B.3) as data."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """How one network is initialised and trained in the source.

    Attributes:
        network: its name.
        data: the data set.
        batch_norm: whether it has BN; else learnable biases stand in its place.
        batch: B of the search.
        sub_batches: D.
        overlap: r.
        rate: τ of the scales.
        gamma: γ, the bound of the gradient norm.
        iterations: T; None is one pass over the training samples.
        epochs: of training.
        train_batch: samples a training step.
        optimizer: of training.
        train_rate: its first learning rate.
        weight_decay: of training.
        clip: the largest gradient norm in training; None without.
        note: where the source is doubtful.
    """

    network: str
    data: str
    batch_norm: bool
    batch: int
    sub_batches: int
    overlap: float
    rate: float
    gamma: float
    iterations: int | None
    epochs: int = 500
    train_batch: int = 128
    optimizer: str = "momentum"
    train_rate: float = 0.1
    weight_decay: float = 1e-4
    clip: float | None = None
    note: str = ""

    def keywords(self, samples: int) -> dict[str, Any]:
        """The arguments of `theta0.initializers.nio_` that follow the source.

        Args:
            samples: in the training set.

        Returns:
            Keywords; γ is absolute, τ the rate of Adam on the scales, all batches are searched on (Algorithm 3).
        """
        return {
            "sub_batches": self.sub_batches,
            "overlap": self.overlap,
            "gradient_norm_cap": self.gamma,
            "cap_unit": "absolute",
            "learning_rate": self.rate,
            "algorithm": "published",
            "steps": self.iterations or max(1, samples // self.batch),
            "max_batches": None,
        }


_DOUBT = "τ = 0.3 lies outside the grid that the source says it searched (0.01 to 0.03): likely 0.03"


def _cifar(network: str, batch_norm: bool, overlap: float, rate: float, gamma: float, note: str = "") -> Recipe:
    clip = None if batch_norm else 1.0
    return Recipe(network, "cifar10", batch_norm, 128, 2, overlap, rate, gamma, None, clip=clip, note=note)


CIFAR10 = (
    _cifar("resnet110", True, 0.6, 0.1, 5.0),
    _cifar("resnet110", False, 0.7, 0.015, 4.0),
    _cifar("densenet100", True, 0.6, 0.15, 3.0),
    _cifar("densenet100", False, 0.75, 0.015, 3.5),
    _cifar("wrn28-10", True, 0.7, 0.25, 2.0),
    _cifar("wrn28-10", False, 0.8, 0.3, 2.0, _DOUBT),
)
CIFAR100 = tuple(replace(recipe, data="cifar100", gamma=2 * recipe.gamma) for recipe in CIFAR10)

_GAMMA = "γ is three times CIFAR-10's; the source does not say which network's: taken from ResNet-110 with BN"
IMAGENET = (
    Recipe("resnet50", "imagenet", True, 64, 4, 0.2, 3e-3, 15.0, 100, epochs=100, train_batch=256, note=_GAMMA),
    Recipe(
        "swin_tiny",
        "imagenet",
        False,
        64,
        4,
        0.2,
        3e-3,
        15.0,
        100,
        epochs=300,
        train_batch=1024,
        optimizer="adamw",
        train_rate=1e-3,
        weight_decay=0.05,
        clip=5.0,
        note=_GAMMA,
    ),
)
RECIPES = (*CIFAR10, *CIFAR100, *IMAGENET)


def recipe_for(network: str, batch_norm: bool, classes: int) -> Recipe:
    """The source's recipe for a network on CIFAR, or for the one of its kind where the network is smaller than any.

    Args:
        network: such as `resnet110`; `resnet20` takes ResNet-110's recipe, `wrn10-2` WRN-28-10's.
        batch_norm: whether it has BN.
        classes: CIFAR-100's recipe for a hundred, else CIFAR-10's.

    Returns:
        The recipe.
    """
    kind = network.rstrip("-0123456789")
    recipes = CIFAR100 if classes == 100 else CIFAR10
    return next(r for r in recipes if (r.network.rstrip("-0123456789"), r.batch_norm) == (kind, batch_norm))
