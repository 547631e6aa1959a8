"""The largest eigenvalue of a loss's curvature at the parameters as they are."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theta0._batches import Batch, in_single_precision, load_batches, sliced, with_shapes
from theta0._errors import UserCodeError
from theta0._losses import Loss, checked, loss_of
from theta0._models import unwrapped
from theta0._randomness import Randomness, streams
from theta0._records import Shown
from theta0._state import twice_differentiable
from theta0._trace.interpreter import no_dropout
from theta0.curvature.lanczos import lanczos, products_for
from theta0.curvature.problem import Curvature, Matrix, Problem
from theta0.curvature.products import curvature_products
from theta0.curvature.self_test import SelfTest, self_test

_LEAST_COLD, _LEAST_STARTED, _LEAST_WARM = 4, 3, 2
_RANDOM = 0.9  # share of a random direction in a cold start; not 1, which could cancel in one dimension
_PART, _SMALLEST = 8, 8  # an eighth of a batch gives the start, and not less than so many samples
_OF_PART = (0.03, 7, 12)  # tolerance, least and most products there; too few of them miss a close rival
_OF_PART_HESSIAN = (0.1, 3, 6)  # whose products cost half as much again
_FRESH = 0.1  # share of a random direction in a warm start, so that a new top eigenvector can be found


@dataclass(frozen=True)
class Certificate:
    """With probability at least 1 - δ over the random start, λ_max ≤ value / (1 - ε).

    Attributes:
        epsilon: ε.
        delta: δ.
        products: the number of products that the bound asks for; at least so many were taken.
        size: the number of rows of the matrix.
    """

    epsilon: float
    delta: float
    products: int
    size: int


@dataclass(frozen=True, eq=False, repr=False)
class TopEigenvalue(Shown):
    """The largest eigenvalues of a curvature matrix.

    Attributes:
        value: the largest; Lanczos approaches it from below.
        values: the k largest.
        residual: ‖Au - θu‖/|θ| of the worst of them.
        error: what the worst of them may be off by, relatively, as far as the residuals say.
        products: matrix-vector products taken, on the whole batches.
        cost: in gradients (forward and backward on the mean batch), the start included.
        matrix: "ggn", "fisher" or "hessian".
        converged: whether the errors are below the tolerance; if not, the true value may be larger.
        certificate: if one was asked for.
        vector: the first eigenvector over the trained parameters, flat and of length 1; `start=` takes it.
        test: the self-test, if one was asked for.
    """

    value: float
    values: tuple[float, ...]
    residual: float
    error: float
    products: int
    cost: float
    matrix: Matrix
    converged: bool
    certificate: Certificate | None
    vector: Float[Tensor, " parameters"]
    test: SelfTest | None = None


def top_eigenvalue(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    matrix: Matrix = "ggn",
    k: int = 1,
    tolerance: float = 1e-2,
    certify: tuple[float, float] | None = None,
    start: TopEigenvalue | Float[Tensor, " parameters"] | None = None,
    max_products: int = 100,
    max_batches: int | None = 4,
    recompute: bool | None = None,
    generator: Randomness = None,
    check: bool = False,
    inverse_preconditioner: Float[Tensor, " parameters"] | None = None,
) -> TopEigenvalue:
    """The largest eigenvalues of the Gauss-Newton, Fisher or Hessian matrix, by Lanczos' iteration.

    Gradient descent on the loss is stable at learning rates below 2/λ_max (furusho2020thesis §2.4). Curvature is over
    the parameters that require a gradient, of the mean over batches (by their sizes) of the loss as given. The model
    is left as it was. Batch normalization stays in the mode in which it is found, dropout is off.

    The iteration starts at the top eigenvector over an eighth of each batch's samples (eight at least), found in the
    same way, plus a tenth of a random direction. For batches below 16, inputs that cannot be cut and k > 1 it starts at
    the gradient, which leans towards the top eigenvectors, plus a random direction of about the same length. It stops
    when the error that the residual allows (`lanczos`) is below `tolerance`·θ, and the last product's gain below a
    third of that. Of two eigenvalues closer than about the tolerance either may be reported; a smaller one tells them
    apart. An exactly repeated eigenvalue may be found once only, which matters for k > 1.

    Args:
        model: the network.
        batches: a DataLoader or re-iterable; at most `max_batches` are read.
        loss: a name, a callable, or None where the model returns its loss.
        matrix: "ggn", "fisher" (equal to it where the loss is a negative log-likelihood, else refused) or "hessian".
            For an indefinite Hessian the largest eigenvalue is meant, not the largest magnitude.
        k: how many eigenvalues.
        tolerance: the relative error of the eigenvalue.
        certify: (ε, δ); then at least as many products are taken as guarantee a relative error of at most ε with
            probability 1 - δ (Kuczyński and Woźniakowski, 1992), for "ggn" and "fisher" without `start`.
        start: an earlier result, or its vector, for the same parameters; a tenth of a random direction is added.
        max_products: stop after so many (a certificate may take more); see `TopEigenvalue.converged`.
        max_batches: how many batches are read; None reads all.
        recompute: build graphs anew in each product, which needs less memory and twice the cost.
        generator: seeds the start.
        check: test the products first (`self_test`), at the cost of about three more and a few gradients in float64.
        inverse_preconditioner: the diagonal of P⁻¹ over the trained parameters: P^(-1/2) A P^(-1/2) is taken.

    Returns:
        The eigenvalues, with what was found about their accuracy and what they cost.

    Raises:
        ValueError: if an argument is wrong, the model or loss has no such curvature, or it is zero or not finite.

    Example:
        For a linear model under the squared error, the Hessian is 2/n XᵀX:

        >>> import torch
        >>> x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
        >>> model = torch.nn.Linear(4, 1, bias=False)
        >>> found = top_eigenvalue(model, [(x, x[:, :1])], "mse", tolerance=1e-4)
        >>> exact = torch.linalg.eigvalsh(2 / 32 * x.T @ x).max()
        >>> bool((found.value - exact).abs() < 1e-3 * exact)
        True
    """
    _require_sensible(k, tolerance, max_products, certify)
    data = load_batches(batches, unwrapped(model), max_batches=max_batches)
    inner, data = in_single_precision(with_shapes(unwrapped(model), data[0]), data)
    stream = streams(generator)
    shared: dict[str, Any] = {
        "matrix": matrix,
        "recompute": recompute,
        "inverse_preconditioner": inverse_preconditioner,
    }
    limits: dict[str, Any] = {
        "wanted": k,
        "tolerance": tolerance,
        "max_products": max_products,
        "certify": certify,
        "check": check,
    }
    given, spent = start.vector if isinstance(start, TopEigenvalue) else start, 0.0
    least = _LEAST_COLD if given is None else _LEAST_WARM
    if given is None and certify is None and k == 1:
        given, spent = _of_a_part(inner, data, checked(loss), streams(stream("part")), max_products, shared)
        least = least if given is None else _LEAST_STARTED
    found = _of_problem(inner, data, checked(loss), given, stream, shared, least=least, **limits)
    return replace(found, cost=found.cost + spent)


def _of_a_part(
    model: nn.Module,
    data: Sequence[Batch],
    loss: Loss,
    stream: Callable[[str], torch.Generator],
    most: int,
    shared: dict[str, Any],
) -> tuple[Float[Tensor, " parameters"] | None, float]:
    """The top eigenvector over an eighth of the samples, and its cost; None for small batches and uncuttable ones."""
    if min(batch.size for batch in data) < 2 * _SMALLEST:
        return None, 0.0
    parts = [sliced(batch, slice(max(_SMALLEST, batch.size // _PART))) for batch in data]
    tolerance, least, few = _OF_PART_HESSIAN if shared["matrix"] == "hessian" else _OF_PART
    limits: dict[str, Any] = {"least": least, "tolerance": tolerance, "max_products": min(most, few)}
    try:
        found = _of_problem(model, parts, loss, None, stream, shared, **limits)
    except UserCodeError:
        with twice_differentiable(model), no_dropout():
            if all(takes_part(model, part, loss) for part in parts):
                raise
        return None, 0.0
    except (RuntimeError, ValueError):  # no curvature in so few samples
        return None, 0.0
    return found.vector, found.cost * sum(part.size for part in parts) / sum(batch.size for batch in data)


def takes_part(model: nn.Module, part: Batch, loss: Loss) -> bool:
    """Whether a part of a batch goes through the model and the loss, which the caller keeps as they are.

    A graph or a mask of the whole batch's size stops it, each time.

    Raises:
        UserCodeError: if it raises once and not again: that is not about the part's size.
    """
    try:
        loss_of(model, part, loss)
    except UserCodeError:
        try:
            loss_of(model, part, loss)
        except UserCodeError:
            return False
        raise
    return True


def _of_problem(
    model: nn.Module,
    data: Sequence[Batch],
    loss: Loss,
    given: Tensor | None,
    stream: Callable[[str], torch.Generator],
    shared: dict[str, Any],
    *,
    least: int,
    tolerance: float,
    max_products: int,
    wanted: int = 1,
    certify: tuple[float, float] | None = None,
    check: bool = False,
) -> TopEigenvalue:
    """The products' graph, and Lanczos on it."""
    seed = int(torch.randint(2**31, (), generator=stream("forward")))
    with curvature_products(model, data, loss, seed=seed, **shared) as (curvature, problem):
        return _iterated(
            curvature,
            problem,
            given,
            stream,
            least=least,
            certify=certify,
            check=check,
            wanted=wanted,
            tolerance=tolerance,
            max_products=max_products,
        )


def _iterated(
    curvature: Curvature,
    problem: Problem,
    given: Tensor | None,
    stream: Callable[[str], torch.Generator],
    *,
    least: int,
    certify: tuple[float, float] | None,
    check: bool,
    wanted: int,
    tolerance: float,
    max_products: int,
) -> TopEigenvalue:
    """Lanczos within the block in which the products are valid."""
    test = self_test(curvature, problem, stream("test")) if check else None
    certificate = _certificate(curvature, certify, given)
    least = least if certificate is None else max(least, certificate.products)
    draws = stream("start")

    def fresh() -> Tensor:
        drawn = torch.randn(curvature.size, generator=draws, dtype=torch.float64)
        return drawn.to(curvature.vectors)

    ritz = lanczos(
        curvature.multiply,
        _start(curvature, given, fresh(), isotropic=certificate is not None),
        fresh,
        wanted=min(wanted, curvature.size),
        tolerance=tolerance,
        least=least,
        most=max_products if certificate is None else max(max_products, certificate.products),
        precision=curvature.precision,
    )
    vector = curvature.to_parameters(ritz.vector)
    cost = curvature.setup + ritz.products * curvature.product + curvature.conversion
    cost += 0.0 if certificate else curvature.conversion + (curvature.gradient_cost if given is None else 0.0)
    cost += (3 * curvature.product + 2 * len(problem.batches)) if check else 0.0  # in float64: two or three passes
    return TopEigenvalue(
        ritz.values[0],
        ritz.values,
        _relative(ritz.residuals, ritz.values),
        _relative(ritz.errors, ritz.values),
        ritz.products,
        cost,
        curvature.matrix,
        ritz.converged,
        certificate,
        (vector / vector.norm()).detach(),
        test,
    )


def _relative(parts: tuple[float, ...], values: tuple[float, ...]) -> float:
    return max(part / max(abs(value), 1e-300) for part, value in zip(parts, values, strict=True))


def _start(curvature: Curvature, given: Tensor | None, random: Tensor, *, isotropic: bool) -> Tensor:
    """An isotropic start is what the certificate's theorem asks for."""
    random = random / random.norm()
    if isotropic:
        return random
    if given is not None:
        return _unit(_fitting(given, curvature)) + _FRESH * random
    return _unit(curvature.from_parameters(curvature.gradient()).to(random)) + _RANDOM * random


def _unit(v: Tensor) -> Tensor:
    norm = v.norm()
    return v / norm if norm > 0 and bool(torch.isfinite(norm)) else torch.zeros_like(v)


def _fitting(given: Tensor, curvature: Curvature) -> Tensor:
    try:
        vector = curvature.from_parameters(given.to(curvature.vectors.device)).to(curvature.vectors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(_other_parameters(given)) from error
    if vector.numel() != curvature.size:
        raise ValueError(_other_parameters(given))
    return vector


def _other_parameters(given: Tensor) -> str:
    return (
        f"start: expected the vector of an earlier result over the same trained parameters, got one of {given.numel()} "
        "entries that does not fit; leave start out"
    )


def _certificate(curvature: Curvature, certify: tuple[float, float] | None, start: Tensor | None) -> Certificate | None:
    if certify is None:
        return None
    if start is not None:
        raise ValueError(
            "certify: expected no start, since the guarantee is over a random one, got both; leave one out"
        )
    if not curvature.semidefinite:
        raise ValueError(
            f"certify: expected a matrix without negative eigenvalues, got matrix={curvature.matrix!r}; the guarantee "
            "holds for 'ggn' and 'fisher' with 'cross_entropy', 'mse' or 'bce'"
        )
    epsilon, delta = certify
    products = products_for(epsilon, delta, curvature.size)
    return Certificate(epsilon, delta, products, curvature.size)


def _require_sensible(k: int, tolerance: float, max_products: int, certify: tuple[float, float] | None) -> None:
    if k < 1 or max_products < 1:
        raise ValueError(f"k and max_products: expected at least 1, got {k} and {max_products}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance: expected a relative error between 0 and 1, got {tolerance}")
    if certify is not None and not all(0 < part < 1 for part in certify):
        raise ValueError(f"certify: expected (epsilon, delta), both between 0 and 1, got {certify}")
