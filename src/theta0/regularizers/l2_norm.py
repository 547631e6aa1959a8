"""The sum of the weights' Frobenius norms."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theta0._weights import weights_of


def l2_norm(model: nn.Module) -> Float[Tensor, ""]:
    r"""$\psi_{L2} = \sum_l \|W^l\|_F$ over the matrices and kernels of a model (furusho2020thesis, eq. 6).

    The norms are not squared. torch's `weight_decay=c` is the gradient of $\frac c2 \sum_l \|W^l\|_F^2$, whose pull on
    a matrix is proportional to the matrix; the pull of this penalty is the unit matrix $W^l / \|W^l\|_F$ however small
    $W^l$ has become, so it can drive a whole layer to zero (where its gradient is taken as 0); weight decay cannot.
    Biases and the scales of normalisations are left out, which an optimizer's weight decay includes.

        >>> layer = nn.Linear(2, 1)
        >>> _ = nn.init.constant_(layer.weight, 3.0)
        >>> round(l2_norm(layer).item(), 4)
        4.2426

    Args:
        model: any module; tied weights count once, a parametrized weight as it is applied.

    Returns:
        The sum, in the weights' dtype, to be multiplied by a coefficient and added to a loss.
    """
    norms = [torch.linalg.vector_norm(weight) for weight in weights_of(model).values()]
    return torch.stack(norms).sum()
