"""The second derivative of a loss at the network's outputs: H = S Sᵀ, in closed form where the loss is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from theta0._batches import Batch
from theta0._losses import Loss, LossName, applied, name_of
from theta0._models import main_output
from theta0.curvature.problem import differentiated

Outputs = tuple[Tensor, ...]
_COUPLING = 1e-4  # of the product's norm: rounding of float32 losses stays below 1e-6


@dataclass(frozen=True, eq=False)
class LossCurvature:
    """H = ∂²ℓ/∂f∂f at the outputs f of one batch.

    Attributes:
        outputs: the tensors, in the graph of the network, with respect to which H is taken.
        multiply: u ↦ H u.
        factor: z ↦ S z with H = S Sᵀ; None where no closed form is known.
        factor_transposed: u ↦ Sᵀ u.
    """

    outputs: Outputs
    multiply: Callable[[Outputs], Outputs]
    factor: Callable[[Tensor], Tensor] | None = None
    factor_transposed: Callable[[Tensor], Tensor] | None = None


def closed_form(loss: Loss) -> LossName | None:
    """The named loss whose second derivative is known here.

    A torch module with options (class weights, label smoothing, `pos_weight`, another `ignore_index`) is treated as
    any other callable.

    Returns:
        Its name, or None.
    """
    default = getattr(loss, "ignore_index", -100) == -100 and not getattr(loss, "label_smoothing", 0.0)
    if isinstance(loss, nn.Module) and not (default and getattr(loss, "pos_weight", None) is None):
        return None
    return name_of(loss)


def loss_curvature(loss: Loss, value: Tensor, outputs: Any, batch: Batch) -> LossCurvature:
    """H at the outputs of one batch, for the loss as given (torch's means included).

    Cross-entropy: per position H = m (diag(p) - p pᵀ) / M with p the softmax, M the number of labels that are not
    ignored (-100) and m = 1 for those, 0 for others; S = √(m/M) (diag(√p) - p √pᵀ). Squared error over n numbers:
    H = 2/n. Binary cross-entropy: H = σ(1 - σ)/n. Other losses: by differentiating them twice at the outputs.

    Args:
        loss: a name, a callable, or None where the model returns its loss.
        value: the loss, in the graph of the network.
        outputs: what the model returned.
        batch: the batch.

    Returns:
        H, with its factor where it has a closed form.

    Raises:
        ValueError: if the outputs hold no tensor that depends on the parameters, the loss has no second derivative or
            a vanishing one, or it couples samples.
    """
    name = closed_form(loss)
    output, targets = main_output(outputs), batch.targets
    if name == "l1":
        raise ValueError(
            "loss: expected one with a second derivative, got 'l1', whose Gauss-Newton matrix is zero wherever it is "
            "defined; use 'mse' or a smooth absolute error (torch.nn.functional.huber_loss) to get a curvature"
        )
    if name is not None and output is not None and isinstance(targets, Tensor):
        alike = name == "cross_entropy" or targets.shape == output.shape
        if alike:
            return _known(name, _attached(output, batch), targets)
    if loss is None:
        return _own(value, output, batch)
    return _differentiated(loss, outputs, batch)


def _known(name: LossName, output: Tensor, targets: Tensor) -> LossCurvature:
    f = output.detach()
    f = f.float() if f.dtype in (torch.float16, torch.bfloat16) else f
    if name == "cross_entropy":
        return _softmax(output, f, targets)
    if name == "mse":
        root = torch.full_like(f, 2 / f.numel()).sqrt()
    else:
        probability = torch.sigmoid(f)
        root = (probability * (1 - probability) / f.numel()).sqrt()

    def scaled(u: Tensor) -> Tensor:
        return root * u

    return LossCurvature((output,), lambda u: (root.square() * u[0],), scaled, scaled)


def _softmax(output: Tensor, logits: Float[Tensor, "..."], targets: Tensor) -> LossCurvature:
    axis = 1 if logits.dim() > 1 else 0
    p = logits.softmax(axis)
    if targets.is_floating_point():
        mass = targets.to(p.dtype).sum(axis, keepdim=True)
        scale = (mass / mass.numel()).sqrt()
    else:
        counted = (targets != -100).unsqueeze(axis).to(p.dtype)
        scale = (counted / counted.sum()).sqrt()
    root = p.sqrt()

    def factor(z: Tensor) -> Tensor:
        return scale * (root * z - p * (root * z).sum(axis, keepdim=True))

    def transposed(u: Tensor) -> Tensor:
        return scale * root * (u - (p * u).sum(axis, keepdim=True))

    return LossCurvature((output,), lambda u: (factor(transposed(u[0])),), factor, transposed)


def _own(value: Tensor, output: Tensor | None, batch: Batch) -> LossCurvature:
    """A model that returns its loss: differentiate that loss at its logits, inside the model's own graph."""
    if output is None or not output.requires_grad:
        raise ValueError(
            f"batch {batch.number}: expected the model's outputs to hold logits beside its loss, got none that depend "
            "on the parameters; use matrix='hessian', which needs the loss alone"
        )
    return LossCurvature((output,), _twice(value, (output,), batch))


def _differentiated(loss: Loss, outputs: Any, batch: Batch) -> LossCurvature:
    logits = getattr(outputs, "logits", None)
    if isinstance(batch.inputs, Mapping) and isinstance(logits, Tensor):
        outputs = logits  # what `applied` hands to a callable then
    leaves, spec = tree_flatten(outputs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not places:
        raise ValueError(_unattached(batch))
    for place in places:
        _require_finite(leaves[place], batch)
    free = tuple(leaves[place].detach().requires_grad_() for place in places)
    value = applied(loss, tree_unflatten(_replaced(leaves, places, free), spec), batch)
    used = _gradients(value, free, batch)
    kept = [(leaves[at], leaf) for at, leaf, g in zip(places, free, used, strict=True) if g is not None]
    if not kept:
        raise ValueError(f"batch {batch.number}: expected a loss that depends on the outputs, got one that does not")
    inside = tuple(leaf for _, leaf in kept)
    multiply = _twice(value, inside, batch)
    _require_uncoupled(multiply, inside, batch)
    return LossCurvature(tuple(output for output, _ in kept), multiply)


def _replaced(leaves: list[Any], places: list[int], new: Outputs) -> list[Any]:
    copied = list(leaves)
    for place, leaf in zip(places, new, strict=True):
        copied[place] = leaf
    return copied


def _gradients(value: Tensor, at: Outputs, batch: Batch) -> tuple[Tensor | None, ...]:
    if not value.requires_grad:
        raise ValueError(
            f"batch {batch.number}: expected a loss differentiable in the outputs, got one without a gradient; "
            "does it call .detach(), .item() or argmax?"
        )
    return differentiated(
        lambda: torch.autograd.grad(value, at, create_graph=True, allow_unused=True),
        lambda reason: _once(batch, reason),
    )


def _twice(value: Tensor, at: Outputs, batch: Batch) -> Callable[[Outputs], Outputs]:
    first = _gradients(value, at, batch)
    curved = [(i, g) for i, g in enumerate(first) if g is not None and g.requires_grad]
    if not curved:
        raise ValueError(
            f"batch {batch.number}: expected a loss with a second derivative in the outputs, got one that is linear in "
            "them or not twice differentiable; its Gauss-Newton matrix is zero"
        )

    def multiply(u: Outputs) -> Outputs:
        found = differentiated(
            lambda: torch.autograd.grad(
                [g for _, g in curved], at, [u[i] for i, _ in curved], retain_graph=True, allow_unused=True
            ),
            lambda reason: _once(batch, reason),
        )
        return tuple(torch.zeros_like(f) if h is None else h for f, h in zip(at, found, strict=True))

    return multiply


def _require_uncoupled(multiply: Callable[[Outputs], Outputs], at: Outputs, batch: Batch) -> None:
    """A loss is additive over samples iff ∂²ℓ/∂f_i∂f_j = 0 for i ≠ j: H u must vanish where u does."""
    generator = torch.Generator().manual_seed(0)
    random = tuple(torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f) for f in at)
    first = tuple(_halved(u, 0) for u in random)
    product = multiply(first)
    norm = sum(float(h.double().square().sum()) for h in product) ** 0.5
    leaked = sum(float(_halved(h, 1).double().square().sum()) for h in product) ** 0.5
    if norm == 0.0 and all(not bool(h.any()) for h in multiply(random)):
        raise ValueError(
            f"batch {batch.number}: expected a loss with a second derivative in the outputs, got one where it is zero "
            "(absolute and hinge losses are straight between their kinks); use a smooth loss"
        )
    if leaked > _COUPLING * norm:
        raise ValueError(
            "loss: expected a sum or mean over samples, got one whose second derivative couples samples (a root of a "
            "mean, a contrastive loss); use matrix='hessian', which takes each batch's loss as it is"
        )


def _halved(u: Tensor, part: int) -> Tensor:
    """The tensor with one half of its rows set to zero."""
    if u.dim() == 0 or u.shape[0] < 2:
        return torch.zeros_like(u) if part else u
    cut, copied = u.shape[0] // 2, u.clone()
    copied[cut:] *= part
    copied[:cut] *= 1 - part
    return copied


def _attached(output: Tensor, batch: Batch) -> Tensor:
    if not output.requires_grad:
        raise ValueError(_unattached(batch))
    _require_finite(output, batch)
    return output


def _require_finite(output: Tensor, batch: Batch) -> None:
    if not torch.isfinite(output).all():
        raise ValueError(
            f"batch {batch.number}: expected finite outputs, got NaN or infinite ones; the start explodes in the "
            "forward pass, so theta0.diagnose says where"
        )


def _unattached(batch: Batch) -> str:
    return (
        f"batch {batch.number}: expected outputs that depend on the trained parameters, got none that do (zero "
        "curvature); does forward() detach them, or return something other than tensors, tuples and dicts?"
    )


def _once(batch: Batch, reason: str) -> str:
    return (
        f"batch {batch.number}: expected a twice differentiable loss, got one that cannot be differentiated twice "
        f"({reason}); write it in plain torch operations"
    )
