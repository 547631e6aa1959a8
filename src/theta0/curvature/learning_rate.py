"""The learning rate that the curvature of the loss allows at a starting point."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from theta0._batches import Batch, in_single_precision, load_batches, sliced, with_shapes
from theta0._errors import NoCurvatureError, UserCodeError
from theta0._losses import Loss, checked, loss_of, name_of
from theta0._models import Step, unwrapped
from theta0._randomness import Randomness
from theta0._records import Result
from theta0._state import twice_differentiable
from theta0._trace.interpreter import no_dropout
from theta0._training import OptimizerSettings
from theta0._weights import trained_parameters
from theta0.curvature.problem import Matrix, flat
from theta0.curvature.stability import ADAPTIVE, largest_rate, start_share
from theta0.curvature.top_eigenvalue import Certificate, TopEigenvalue, takes_part, top_eigenvalue

_REPLACED = 3.0  # of the weights' size: no suggestion for an adaptive optimizer is above a third of it
_MOMENTS = 4  # gradients of different samples that the second moments are averaged over, at least
Outcome = Literal["trains", "waits", "rises", "diverges", "stalls", "unstable"]


@dataclass(frozen=True)
class RateRun:
    """A short run at one learning rate.

    Attributes:
        rate: the learning rate.
        losses: of every step, before it.
        outcome: "trains"; "waits" (it was stopped early, behind a better one or where the time ended); "rises";
            "diverges"; "stalls" (the loss hardly falls); "unstable" (λ times the rate came to lie above the bound).
        top_eigenvalue: λ where the run stopped, if it was measured.
    """

    rate: float
    losses: tuple[float, ...]
    outcome: Outcome
    top_eigenvalue: float | None = None


@dataclass(frozen=True, repr=False)
class LearningRate(Result):
    """A learning rate and where it comes from.

    Attributes:
        value: the suggestion; None where no rate was found that trains.
        bound: the rate above which the optimizer is unstable on the quadratic at the start; infinite where none is
            known.
        top_eigenvalue: λ, the largest over the batches; of the preconditioned curvature for adaptive optimizers. NaN
            where there is no curvature.
        residual: its relative residual.
        products: matrix-vector products in all.
        cost: in gradients, the runs included.
        certificate: of λ on the first batch, if asked for.
        optimizer: the name.
        matrix: whose λ it is.
        spread: the least and the largest λ over the batches that it was taken on.
        by_batch_size: (samples, λ, suggestion) for the batch sizes asked for.
        converged: whether every λ did.
        runs: the evidence, by rate.
        proven: whether a run at the suggestion trained.
        growth: λ where the run at the suggestion stopped over λ at the start, on the first batch; None where it was not
            measured.
        warm_up: (steps, rate): a higher rate that trains better if it is raised linearly over so many steps, where that
            was asked for and measured.
        reason: what the suggestion rests on, or why there is none.
        advice: what else would help.
        not_measured: what could not be measured of the curvature, or tried in the time given, and why, in sentences.
    """

    value: float | None
    bound: float
    top_eigenvalue: float
    residual: float
    products: int
    cost: float
    certificate: Certificate | None
    optimizer: str
    matrix: Matrix
    spread: tuple[float, float]
    by_batch_size: tuple[tuple[int, float, float], ...] = ()
    converged: bool = True
    runs: tuple[RateRun, ...] = ()
    proven: bool = False
    growth: float | None = None
    warm_up: tuple[int, float] | None = None
    reason: str = "the curvature at the start; no run has tried it"
    advice: tuple[str, ...] = ()
    not_measured: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, float]:
        """The numbers of the suggestion, as an experiment tracker logs them; NaN where there is none."""
        value = math.nan if self.value is None else self.value
        numbers = {"rate": value, "bound": self.bound, "top_eigenvalue": self.top_eigenvalue, "residual": self.residual}
        return {**numbers, "products": float(self.products), "cost": self.cost, "proven": float(self.proven)}


def curvature_rate(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    settings: OptimizerSettings,
    *,
    step: Step | None = None,
    matrix: Matrix | None = None,
    batch_sizes: Sequence[int] | None = None,
    tolerance: float = 1e-2,
    certify: tuple[float, float] | None = None,
    max_products: int = 100,
    max_batches: int | None = 4,
    recompute: bool | None = None,
    generator: Randomness = None,
) -> LearningRate:
    """The rate that the curvature at the start allows, and the bound above which the optimizer cannot be stable there.

    λ is the largest eigenvalue, over the batches, of the curvature at the start. The bound is 2/λ for gradient descent
    (furusho2020thesis §2.4) and as in `stability.largest_rate` for others; the suggestion is a share of it
    (`stability.start_share`), for adaptive optimizers at most a third of the weights' size. λ grows in the first steps
    of many networks, so that no run may hold at it. The model is left as it was.

    Adaptive optimizers divide by P = √v̂ + ε. v̂ is the mean of squared gradients over the batches (a single batch is
    cut into four): Adam's bias-corrected second moment at the start, and what RMSprop's, which is not corrected, comes
    to after 1/(1-α) steps. λ is that of P^(-1/2) A P^(-1/2).

    Args:
        model: the network.
        batches: of the size that will be trained with.
        loss: a name, a callable, or None where the model returns its loss.
        settings: the optimizer's.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        matrix: "hessian" or "ggn"; None takes the Gauss-Newton matrix, or the Hessian where the loss has none.
        batch_sizes: at most as large as the batches; λ is also taken on so many samples of each batch.
        tolerance: of λ.
        certify: (ε, δ) for λ on the first batch; see `top_eigenvalue`.
        max_products: of each λ; see `LearningRate.converged`.
        max_batches: how many batches are read; None reads all. λ is taken on one after the other until two agree to
            the tolerance.
        recompute: see `top_eigenvalue`.
        generator: seeds the starts.

    Returns:
        The suggestion.

    Raises:
        ValueError: if an argument is wrong, or there is no (positive) curvature.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0._training import OptimizerSettings
        >>> found = curvature_rate(model, batches, "cross_entropy", OptimizerSettings("sgd"))
        >>> 0 < found.value < found.bound
        True
    """
    checked(loss, step)
    data = load_batches(batches, unwrapped(model), max_batches=max_batches, step=step)
    options = {"tolerance": tolerance, "max_products": max_products, "recompute": recompute, "generator": generator}
    return rate_and_direction(
        model,
        data,
        loss,
        settings,
        matrix=matrix,
        batch_sizes=batch_sizes,
        certify=certify,
        max_batches=max_batches,
        **options,
    )[0]


def rate_and_direction(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    settings: OptimizerSettings,
    *,
    matrix: Matrix | None,
    batch_sizes: Sequence[int] | None,
    certify: tuple[float, float] | None,
    max_batches: int | None,
    **options: Any,
) -> tuple[LearningRate, Float[Tensor, " parameters"]]:
    """As `curvature_rate`, with the first batch's eigenvector, from which λ is found again at little cost.

    Returns:
        The rate and the direction.
    """
    data = load_batches(batches, unwrapped(model), max_batches=max_batches)
    inner, data = in_single_precision(with_shapes(unwrapped(model), data[0]), data)
    sizes = _checked_sizes(batch_sizes, data)
    inverse, cost = _inverse_preconditioner(inner, data, checked(loss), settings)
    options["inverse_preconditioner"] = inverse
    found, chosen, missing = _of_first_matrix(inner, data, loss, options, certify, matrix)
    options["matrix"] = chosen
    smaller = {size: _over_batches(inner, [sliced(b, slice(size)) for b in data], loss, options) for size in sizes}
    top = _positive(max(f.value for f in found), chosen)
    bound, share = largest_rate(settings, top), start_share(settings, chosen)
    tops = {size: _positive(max(f.value for f in group), chosen) for size, group in smaller.items()}
    groups = [found, *smaller.values()]
    shares = [1.0, *(size * len(data) / sum(b.size for b in data) for size in smaller)]
    cost += sum(part * sum(f.cost for f in group) for part, group in zip(shares, groups, strict=True))
    most = weight_size(inner) if settings.optimizer in ADAPTIVE else math.inf
    suggested = LearningRate(
        min(share * bound, most / _REPLACED),
        bound,
        top,
        max(f.residual for f in found),
        sum(f.products for group in groups for f in group),
        cost,
        found[0].certificate,
        settings.optimizer,
        chosen,
        (min(f.value for f in found), top),
        tuple((size, tops[size], min(share * largest_rate(settings, tops[size]), most / _REPLACED)) for size in tops),
        all(f.converged for group in groups for f in group),
        not_measured=missing,
    )
    return suggested, found[0].vector


def weight_size(model: nn.Module) -> float:
    """The median over weights of their entries' root mean square.

    An adaptive optimizer moves each entry by about the rate in a step: one of this size draws another network, whatever
    the curvature says.

    Returns:
        The size; 1 where every weight is zero.
    """
    trained = [p.detach() for p in model.parameters() if p.requires_grad]
    weights = [p for p in trained if p.dim() > 1] or trained
    sizes = sorted(size for size in (float(p.norm()) / p.numel() ** 0.5 for p in weights) if size > 0)
    return sizes[len(sizes) // 2] if sizes else 1.0


def _of_first_matrix(
    model: nn.Module,
    data: Sequence[Batch],
    loss: Loss,
    options: dict[str, Any],
    certify: tuple[float, float] | None,
    matrix: Matrix | None,
) -> tuple[list[TopEigenvalue], Matrix, tuple[str, ...]]:
    """λ of each batch, by the matrix asked for, or by the first that the loss has; and why not by another."""
    if matrix is not None or certify is not None or name_of(loss) == "l1":
        chosen: Matrix = matrix or "ggn"
        return _over_batches(model, data, loss, options | {"matrix": chosen}, certify), chosen, ()
    try:
        return _over_batches(model, data, loss, options | {"matrix": "ggn"}), "ggn", ()
    except (UserCodeError, NoCurvatureError):
        raise
    except (RuntimeError, ValueError) as error:  # a loss that couples samples; an operator without second derivative
        found = _over_batches(model, data, loss, options | {"matrix": "hessian"})
        return found, "hessian", (f"λ of the Gauss-Newton matrix: {cause(error)}. It is the Hessian's.",)


def cause(error: Exception) -> str:
    """What was expected and what came, without the advice that follows in a message of this library."""
    return str(error).strip().splitlines()[0].split("; ")[0]


def _over_batches(
    model: nn.Module,
    data: Sequence[Batch],
    loss: Loss,
    options: dict[str, Any],
    certify: tuple[float, float] | None = None,
) -> list[TopEigenvalue]:
    """λ of one batch after the other, until two agree; each starts from the eigenvector of the one before."""
    found = [top_eigenvalue(model, data[:1], loss, certify=certify, **options)]
    for batch in data[1:]:
        found.append(top_eigenvalue(model, [batch], loss, start=found[-1], **options))
        before, last = (one.value for one in found[-2:])
        if abs(last - before) <= options["tolerance"] * abs(last):
            break
    return found


def _positive(top: float, matrix: str) -> float:
    if not top > 0:
        raise ValueError(
            f"model: expected a direction of positive curvature, got a largest eigenvalue of {top:g}; the "
            f"{matrix} sets no limit to the rate at this point: use matrix='ggn'"
        )
    return top


def _checked_sizes(batch_sizes: Sequence[int] | None, data: Sequence[Batch]) -> tuple[int, ...]:
    least = min(b.size for b in data)
    for size in batch_sizes or ():
        if not 1 <= size <= least:
            raise ValueError(
                f"batch_sizes: expected sizes from 1 to {least}, the smallest batch's, got {size}; pass larger batches"
            )
    return tuple(batch_sizes or ())


def _inverse_preconditioner(
    model: nn.Module, data: Sequence[Batch], loss: Loss, settings: OptimizerSettings
) -> tuple[Float[Tensor, " n"] | None, float]:
    """P⁻¹ = 1/(√v̂ + ε) at the first steps, and its cost."""
    if settings.optimizer not in ADAPTIVE:
        return None, 0.0
    cuts = 1 if len(data) > 1 or not _cuttable(data[0]) else min(_MOMENTS, data[0].size)
    sizes = [b.size // cuts for b in data]
    parts = [sliced(b, slice(i * s, (i + 1) * s)) for b, s in zip(data, sizes, strict=True) for i in range(cuts)]
    parameters = trained_parameters(model)
    squares = []
    with twice_differentiable(model), no_dropout():  # as for the curvature: a dropped unit has no second moment
        if cuts > 1 and not all(takes_part(model, part, loss) for part in (parts[0], parts[-1])):
            parts, cuts = list(data), 1
        for part in parts:
            value, _ = loss_of(model, part, loss)
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            squares.append(flat(found, parameters).square())
    return 1 / (torch.stack(squares).mean(0).sqrt() + settings.eps), len(parts) / cuts


def _cuttable(batch: Batch) -> bool:
    """Whether every target belongs to one sample: flattened tokens and pairs within the batch do not."""
    leaves = [leaf for leaf in tree_flatten((batch.targets, batch.inputs))[0] if isinstance(leaf, Tensor)]
    targets = [leaf for leaf in tree_flatten(batch.targets)[0] if isinstance(leaf, Tensor) and leaf.dim() > 0]
    # One whole number per sample, each another one: it names a place in the batch, as labels of pairs do.
    places = any(
        leaf.shape == (batch.size,) and not leaf.is_floating_point() and len(torch.unique(leaf)) == batch.size
        for leaf in leaves
    )
    return not places and all(leaf.shape[0] == batch.size for leaf in targets)
