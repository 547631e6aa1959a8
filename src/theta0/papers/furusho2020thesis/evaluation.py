"""The loss of many stacked networks as they are evaluated, not as they are trained (furusho2020thesis, §2.4)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from theta0.papers.furusho2020thesis.setting import Kind, make_network
from theta0.papers.models import ThesisResNet
from theta0.papers.sweeps import Weights


class Evaluation(nn.Module):
    """A network as it is evaluated: statistics of the training set, each layer scaled by its survival probability.

    Attributes:
        network: the trained network.
    """

    def __init__(self, network: ThesisResNet, survival: float | None) -> None:
        super().__init__()
        self.network = network
        self._survival = survival

    def forward(self, x: Float[Tensor, "m width"], train_x: Float[Tensor, "n width"]) -> Float[Tensor, "m 1"]:
        """Outputs for inputs that need not be the training set.

        Args:
            x: inputs.
            train_x: the training set, for its statistics.

        Returns:
            One output per input.
        """
        kept = None if self._survival is None else torch.full((len(self.network.blocks),), self._survival)
        outputs: Tensor = self.network(x, kept, self.network.batch_statistics(train_x, kept))
        return outputs


def evaluation_losses(
    kind: Kind, depth: int, width: int, survival: float
) -> Callable[[Weights, Tensor, Tensor, Tensor], Float[Tensor, " members"]]:
    """A function that evaluates stacked networks of one shape.

    Args:
        kind: which network.
        depth: L.
        width: D.
        survival: p of stochastic depth.

    Returns:
        `(weights, x, targets, training x) -> mean of ½(f - y)² of each member`.
    """
    survival_or_none = survival if kind == "stochastic_depth" else None
    template = Evaluation(make_network(kind, width, depth, torch.Generator()), survival_or_none)

    def losses(weights: Weights, x: Tensor, targets: Tensor, train_x: Tensor) -> Float[Tensor, " members"]:
        named = {f"network.{key}": weight for key, weight in weights.items()}
        outputs: Tensor = vmap(lambda member: functional_call(template, member, (x, train_x)))(named)
        return 0.5 * (outputs - targets).square().mean((1, 2)).detach()

    return losses
