"""The sum over all paths of the product of absolute weights."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from theta0.measurements.path_sums import path_sum


def path_norm(model: nn.Module, example: Any = None) -> Float[Tensor, ""]:
    r"""$\psi_{P1} = \sum_\alpha \prod_l |W^l_{\alpha_{l+1} \alpha_l}|$ over all paths α from inputs to outputs.

    The exponentially many terms (furusho2020thesis, eq. 7) cost one forward pass on one sample of ones: each function
    that the inputs reach is replaced by its linear part in absolute value, whether a module or the model's own
    `forward` calls it.

    * Linear maps and convolutions, transposed too: |W|, without bias. Products with any other tensor likewise.
    * Elementwise nonlinearities: the identity, times the largest slope where that is above 1 (GELU 1.129, SiLU 1.100).
    * Sums add paths, joins keep them side by side, dropout is the identity.
    * Average pooling as it is; a path enters max-pooling by any entry of the window, so it sums over the window.
    * Batch normalisation in evaluation form, $|\gamma| / \sqrt{\sigma^2 + \epsilon}$ with the running variance.

    Modes and buffers are left as they are, also in training mode. For a chain of ReLU layers
    $\|f\|_{Lip} \le \psi_{P1} \le \prod_l \|W^l\|_1 \le \psi_{L1}^L$ (furusho2020thesis, Theorem 5 and section A.2),
    the middle one an equality at width 1; the first holds for every network that is accepted.

        >>> chain = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
        >>> _ = nn.init.constant_(chain[0].weight, 2.0), nn.init.constant_(chain[2].weight, -3.0)
        >>> path_norm(chain).item()
        6.0

    A function that is not known (attention, layer normalisation, recurrent layers, a product of two signals) raises a
    ValueError that names it and the module.

    Args:
        model: any module made of such pieces.
        example: a batch of inputs that gives the sizes; needed unless the model begins with `nn.Linear` on vectors.

    Returns:
        The sum over all outputs, differentiable, to be multiplied by a coefficient and added to a loss.
    """
    return path_sum(model, example)
