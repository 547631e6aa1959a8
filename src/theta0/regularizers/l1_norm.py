"""The sum of the weights' absolute values."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theta0._weights import weights_of


def l1_norm(model: nn.Module) -> Float[Tensor, ""]:
    r"""$\psi_{L1} = \sum_l \sum_{ij} |W^l_{ij}|$ over the matrices and kernels of a model (furusho2020thesis, eq. 6).

    Biases and the scales of normalisations are left out. Its power $\psi_{L1}^L$ bounds the path norm of a chain of L
    layers (furusho2020thesis, Theorem 5).

        >>> layer = nn.Linear(2, 1)
        >>> _ = nn.init.constant_(layer.weight, -3.0)
        >>> l1_norm(layer).item()
        6.0

    Args:
        model: any module; tied weights count once, a parametrized weight as it is applied.

    Returns:
        The sum, in the weights' dtype, to be multiplied by a coefficient and added to a loss.
    """
    return torch.stack([weight.abs().sum() for weight in weights_of(model).values()]).sum()
