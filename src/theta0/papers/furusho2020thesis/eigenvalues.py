"""Exact Fisher eigenvalues of one-output networks: the reference that the experiments lean on.

The one place where the experiments ask for an eigenvalue, so that a cheaper measure can stand in for it.
"""

import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor
from torch.func import functional_call, grad, vjp, vmap

from theta0.papers.furusho2020thesis.setting import Kind, layer_draw, make_network
from theta0.papers.models import ThesisResNet

_DENSE = 2500
_CHUNK = 32
DRAWS = 16
_OTHER_STREAM = 1_000_003  # drops that are not those of the training


def output_gradients(
    model: ThesisResNet,
    x: Float[Tensor, "n width"],
    kept: Float[Tensor, " depth"] | None = None,
    *,
    constant_statistics: bool = False,
) -> Float[Tensor, "n parameters"]:
    """∇_θ f(x_i) of every sample.

    With batch normalization, f(x_i) is the i-th output of the whole batch, whose statistics are differentiated too,
    unless they are held constant as in the proof of Theorem 7 (furusho2020thesis, Lemma 3).

    Args:
        model: the network.
        x: the batch.
        kept: the layers that stochastic depth keeps.
        constant_statistics: hold the batch statistics constant.

    Returns:
        One row per sample, weights in the order of `model.parameters()`.
    """
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    if model.norms and not constant_statistics:
        pull_back = vjp(lambda w: functional_call(model, w, (x, kept))[:, 0], weights)[1]
        rows = vmap(pull_back, chunk_size=_CHUNK)(torch.eye(len(x), dtype=x.dtype))[0]
    else:
        statistics = model.batch_statistics(x, kept)

        def output(w: dict[str, Tensor], sample: Tensor) -> Tensor:
            value: Tensor = functional_call(model, w, (sample.unsqueeze(0), kept, statistics))[0, 0]
            return value

        rows = vmap(grad(output), (None, 0), chunk_size=8 * _CHUNK)(weights, x)
    return torch.cat([rows[name].flatten(1) for name in weights], 1)


def mean_eigenvalue(gradients: Float[Tensor, "n parameters"]) -> float:
    """The trace of F = mean of g gᵀ over its number of rows: the mean of g² over samples and weights.

    Args:
        gradients: one per sample.

    Returns:
        The mean of all eigenvalues, zeros included.
    """
    return float(gradients.double().square().mean())


def top_eigenvalue_of(gradients: Float[Tensor, "n parameters"]) -> float:
    """The largest eigenvalue of F = mean of g gᵀ, from whichever of G Gᵀ and Gᵀ G is smaller.

    Args:
        gradients: one per sample; those of several starts under one another give the expected Fisher matrix.

    Returns:
        The eigenvalue, exact in float64 up to a side of 2500, by Lanczos in float32 to about 1e-5 above.
    """
    rows = gradients if gradients.shape[0] <= gradients.shape[1] else gradients.T
    if len(rows) <= _DENSE:
        gram = rows.double() @ rows.double().T
        return float(torch.linalg.eigvalsh(gram)[-1]) / len(gradients)
    matrix = rows.numpy()
    operator = LinearOperator(
        (len(rows), len(rows)), matvec=lambda v: matrix @ (matrix.T @ v.astype(matrix.dtype)), dtype=matrix.dtype
    )
    start = torch.randn(len(rows), generator=torch.Generator().manual_seed(0)).numpy()
    return float(eigsh(operator, k=1, v0=start, tol=1e-5, return_eigenvectors=False)[0]) / len(gradients)


def top_eigenvalues(
    kind: Kind, depth: int, x: Float[Tensor, "n width"], seeds: list[int], survival: float
) -> list[float]:
    """λ_max of the Fisher matrix of each start; under stochastic depth, the largest over a few drawn networks.

    Every update trains one drawn network, so the largest is what a rate must tolerate: at 2/λ_max of the average over
    draws, which is smaller, about half of such runs diverged.

    Args:
        kind: which network.
        depth: L.
        x: the batch.
        seeds: of the starts, as `make_network` takes them.
        survival: p of stochastic depth.

    Returns:
        One eigenvalue per seed.
    """
    draw, tops = layer_draw(kind, depth, survival), []
    for seed in seeds:
        model = make_network(kind, x.shape[1], depth, torch.Generator().manual_seed(seed))
        fresh = torch.Generator().manual_seed(_OTHER_STREAM + seed)
        draws = [draw(fresh) for _ in range(DRAWS)] if draw else [None]
        tops.append(max(top_eigenvalue_of(output_gradients(model, x, kept)) for kept in draws))
    return tops
