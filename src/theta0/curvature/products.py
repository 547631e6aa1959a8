"""Products with the Gauss-Newton, Fisher or Hessian matrix of a loss, on a graph that is built once.

Batches are averaged by their numbers of samples: the matrix is that of the mean of the batches' losses so weighted.

Cost: in layers made of matrix products a forward pass takes a third of a gradient (forward + backward) and a backward
pass two thirds. Building the graph costs 1. A double-vjp product takes two passes, 4/3; a product with the Hessian
differentiates the backward pass with respect to both its factors (4/3) and then the forward pass (2/3), 2 in all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss
from theta0._state import twice_differentiable
from theta0._weights import trained_parameters
from theta0.curvature.gauss_newton import gauss_newton
from theta0.curvature.hessian import hessian
from theta0.curvature.loss_curvature import closed_form
from theta0.curvature.problem import Curvature, Matrix, Problem

MATRICES: tuple[Matrix, ...] = ("ggn", "fisher", "hessian")


@contextmanager
def curvature_products(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    matrix: Matrix = "ggn",
    recompute: bool | None = None,
    inverse_preconditioner: Float[Tensor, " n"] | None = None,
    seed: int = 0,
) -> Iterator[tuple[Curvature, Problem]]:
    """The products with one curvature matrix, valid within the block; the model is left as it was.

    Args:
        model: the network, in the mode in which it is; dropout is switched off.
        batches: loaded batches.
        loss: a name, a callable, or None where the model returns its loss.
        matrix: which. "fisher" is that of the likelihood exp(-loss): Gaussian for "mse" (of variance C/2 over C
            outputs, since torch's mse averages over outputs and has no ½), categorical for "cross_entropy", Bernoulli
            for "bce". Its expectation over labels is taken exactly; it then equals the Gauss-Newton matrix.
        recompute: build each batch's graph anew in every product, so that one batch's graph is held at a time: about
            twice the cost. None does so when an accelerator runs out of memory. Smaller batches need less memory;
            without batch normalization they give the same matrix.
        inverse_preconditioner: the diagonal of P⁻¹; the matrix is then P^(-1/2) A P^(-1/2).
        seed: of what the forward pass draws.

    Yields:
        The products, and what they are of.

    Raises:
        ValueError: if the network or the loss has no such curvature; the message says why.
        torch.OutOfMemoryError: if memory runs out although `recompute` is given.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0._batches import load_batches
        >>> from theta0.curvature import curvature_products
        >>> with curvature_products(model, load_batches(batches, model), "cross_entropy") as (curvature, problem):
        ...     v = torch.ones(curvature.size, dtype=torch.float64)
        ...     bool(v @ curvature.multiply(v) >= 0)  # the Gauss-Newton matrix is positive semidefinite
        True
    """
    _require_known(matrix, loss)
    problem = Problem(model, batches, loss, matrix, trained_parameters(model), seed, inverse_preconditioner)
    build = hessian if matrix == "hessian" else gauss_newton
    with twice_differentiable(model):
        try:
            made = build(problem, bool(recompute))
        except torch.OutOfMemoryError:
            if recompute is not None:
                raise
            made = None
        yield (build(problem, True) if made is None else made), problem


def _require_known(matrix: str, loss: Loss) -> None:
    if matrix not in MATRICES:
        raise ValueError(f"matrix: expected one of {', '.join(MATRICES)}, got {matrix!r}")
    if matrix == "fisher" and closed_form(loss) is None:
        raise ValueError(
            "loss: expected 'cross_entropy', 'mse' or 'bce' for matrix='fisher', since the Fisher matrix is that of a "
            "likelihood, got another; use matrix='ggn', which needs the loss alone"
        )
