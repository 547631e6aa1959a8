"""The learning rate that a starting point can bear, from the curvature of the loss there."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from theta0._batches import Batch, in_single_precision, load_batches, sliced, with_shapes
from theta0._errors import UserCodeError
from theta0._losses import Loss, checked, loss_of
from theta0._models import unwrapped
from theta0._randomness import Randomness
from theta0._state import preserve_state, snapshot
from theta0._steps import Step
from theta0._training import OptimizerSettings, count_gradients, mean_loss, steps_from
from theta0._weights import trained_parameters
from theta0.curvature.problem import Matrix, flat
from theta0.curvature.stability import ADAPTIVE, largest_rate, start_share
from theta0.curvature.top_eigenvalue import Certificate, TopEigenvalue, top_eigenvalue

_MOMENTS = 4  # gradients of different samples that the second moments are averaged over, at least
_GROWTH = 1.1  # a mean loss so many times the first, after the check's steps, is growth
_HALVINGS = 8


@dataclass(frozen=True)
class LearningRate:
    """A learning rate and where it comes from.

    Attributes:
        value: the suggestion.
        bound: the rate above which the optimizer is unstable on the quadratic at the start.
        top_eigenvalue: λ, the largest over the batches; of the preconditioned curvature for adaptive optimizers.
        residual: its relative residual.
        products: matrix-vector products in all.
        cost: in gradients, the check included.
        certificate: of λ on the first batch, if asked for.
        optimizer: the name.
        matrix: whose λ it is.
        spread: the least and the largest λ over the batches.
        by_batch_size: (samples, λ, suggestion) for the batch sizes asked for.
        steps: how many steps the check trained.
        halvings: how often the check halved the suggestion because the loss grew.
        converged: whether every λ did.
    """

    value: float
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
    steps: int = 0
    halvings: int = 0
    converged: bool = True


def suggest_learning_rate(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    optimizer: str = "sgd",
    *,
    step: Step | None = None,
    momentum: float = 0.9,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    matrix: Matrix | None = None,
    batch_sizes: Sequence[int] | None = None,
    steps: int = 10,
    tolerance: float = 1e-2,
    certify: tuple[float, float] | None = None,
    max_products: int = 100,
    max_batches: int | None = 4,
    recompute: bool | None = None,
    generator: Randomness = None,
) -> LearningRate:
    """A learning rate to start with, and the bound above which the optimizer cannot be stable.

    λ is the largest eigenvalue, over the batches, of the curvature at the start. The bound is 2/λ for gradient descent
    (furusho2020thesis §2.4) and as in `stability.largest_rate` for others. The suggestion is 1/λ for gradient descent,
    with the Hessian's λ, and other shares of the bound for others (`stability.start_share`); a few steps of training
    check it, and halve it while the loss grows. The model is left as it was.

    Adaptive optimizers divide by P = √v̂ + ε. v̂ is the mean of squared gradients over the batches (a single batch is
    cut into four): Adam's bias-corrected second moment at the start, and what RMSprop's, which is not corrected, comes
    to after 1/(1-α) steps. λ is that of P^(-1/2) A P^(-1/2).

    Args:
        model: the network.
        batches: of the size that will be trained with.
        loss: a name, a callable, or None where the model returns its loss.
        optimizer: "sgd", "momentum", "adam", "adamw" or "rmsprop".
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        momentum: of "momentum".
        nesterov: whether "momentum" is Nesterov's.
        betas: of Adam.
        eps: of the adaptive ones.
        weight_decay: adds to λ.
        matrix: "hessian" or "ggn"; None takes the Hessian, or the Gauss-Newton matrix for adaptive optimizers and
            where a certificate is asked for.
        batch_sizes: at most as large as the batches; λ is also taken on so many samples of each batch.
        steps: of the check; 0 leaves it out.
        tolerance: of λ's residual.
        certify: (ε, δ) for λ on the first batch; see `top_eigenvalue`.
        max_products: of each λ; see `LearningRate.converged`.
        max_batches: how many batches are read; None reads all.
        recompute: see `top_eigenvalue`.
        generator: seeds the starts.

    Returns:
        The suggestion.

    Raises:
        ValueError: if an argument is wrong, or there is no (positive) curvature.
    """
    settings = OptimizerSettings(optimizer, momentum, nesterov, betas, eps=eps, weight_decay=weight_decay)
    chosen: Matrix = matrix or ("ggn" if optimizer in ADAPTIVE or certify is not None else "hessian")
    checked(loss, step)
    data = load_batches(batches, unwrapped(model), max_batches=max_batches, step=step)
    inner, data = in_single_precision(with_shapes(unwrapped(model), data[0]), data)
    sizes = _checked_sizes(batch_sizes, data)
    inverse, cost = _inverse_preconditioner(inner, data, checked(loss), settings)
    options = {
        "matrix": chosen,
        "tolerance": tolerance,
        "max_products": max_products,
        "recompute": recompute,
        "generator": generator,
        "inverse_preconditioner": inverse,
    }
    found = _over_batches(inner, data, loss, options, certify)
    smaller = {size: _over_batches(inner, [sliced(b, slice(size)) for b in data], loss, options) for size in sizes}
    top = _positive(max(f.value for f in found), chosen)
    bound = largest_rate(settings, top)
    value, halvings = _checked_by_training(inner, data, loss, settings, bound * start_share(settings, chosen), steps)
    ratio = value / bound
    tops = {size: _positive(max(f.value for f in group), chosen) for size, group in smaller.items()}
    groups = [found, *smaller.values()]
    shares = [1.0, *(size * len(data) / sum(b.size for b in data) for size in smaller)]
    cost += sum(share * sum(f.cost for f in group) for share, group in zip(shares, groups, strict=True))
    return LearningRate(
        value,
        bound,
        top,
        max(f.residual for f in found),
        sum(f.products for group in groups for f in group),
        cost + (halvings + 1) * count_gradients(steps, forward=2 * len(data)) * (steps > 0),
        found[0].certificate,
        optimizer,
        chosen,
        (min(f.value for f in found), top),
        tuple((size, tops[size], ratio * largest_rate(settings, tops[size])) for size in tops),
        steps,
        halvings,
        all(f.converged for group in groups for f in group),
    )


def _over_batches(
    model: nn.Module,
    data: Sequence[Batch],
    loss: Loss,
    options: dict[str, Any],
    certify: tuple[float, float] | None = None,
) -> list[TopEigenvalue]:
    """λ of each batch; all but the first start from the first's eigenvector."""
    found = [top_eigenvalue(model, data[:1], loss, certify=certify, **options)]
    return found + [top_eigenvalue(model, [batch], loss, start=found[0], **options) for batch in data[1:]]


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
    with preserve_state(model), torch.enable_grad():
        if cuts > 1 and not _takes(model, parts[0], loss):
            parts, cuts = list(data), 1
        for part in parts:
            value, _ = loss_of(model, part, loss)
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            squares.append(flat(found, parameters).square())
    return 1 / (torch.stack(squares).mean(0).sqrt() + settings.eps), len(parts) / cuts


def _takes(model: nn.Module, part: Batch, loss: Loss) -> bool:
    """Whether a part of a batch goes through; a graph or a mask of the whole batch's size stops it."""
    try:
        loss_of(model, part, loss)
    except UserCodeError:
        return False
    return True


def _cuttable(batch: Batch) -> bool:
    """Whether every target belongs to one sample: flattened tokens and pairs within the batch do not."""
    targets = [leaf for leaf in tree_flatten(batch.targets)[0] if isinstance(leaf, Tensor) and leaf.dim() > 0]
    distinct = bool(targets) and targets[0].dim() == 1 and len(torch.unique(targets[0])) == batch.size
    labels = distinct and not targets[0].is_floating_point()  # one class per sample: each names its place in the batch
    return not labels and all(leaf.shape[0] == batch.size for leaf in targets)


def _checked_by_training(
    model: nn.Module, data: Sequence[Batch], loss: Loss, settings: OptimizerSettings, rate: float, steps: int
) -> tuple[float, int]:
    """Halve the rate while a few steps at it raise the mean loss."""
    if steps <= 0:
        return rate, 0
    with preserve_state(model):
        restore = snapshot(model)
        before = mean_loss(model, data, loss)
        for halvings in range(_HALVINGS + 1):
            losses = steps_from(model, data, loss, optimizer=settings, rate=rate, steps=steps)
            after = mean_loss(model, data, loss) if math.isfinite(losses[-1]) else math.inf
            restore()
            if after <= _GROWTH * before + 1e-12:
                return rate, halvings
            rate /= 2
    raise ValueError(
        f"model: expected a rate at which {steps} steps do not raise the loss, got none down to {2 * rate:g}, although "
        "the curvature allows it; is the forward pass random, or the loss rough? steps=0 leaves this check out"
    )
