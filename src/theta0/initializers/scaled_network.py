"""A network with one scale for each parameter tensor, its derivatives by the scales, and what a search asks of it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._ranks import averaged, ranks, summed
from theta0._state import deterministic
from theta0._weights import trained_parameters
from theta0.curvature.problem import differentiated, require_sound_graph

SECOND = 2.0  # gradients' worth of work that differentiating a gradient adds: two passes for each of its own
Gradients = list[Tensor]  # of every trained parameter, in the order of `parameters`


@dataclass(frozen=True)
class Quality:
    """How good a start is.

    Attributes:
        objective: what was searched for, as the result's `objective` names it.
        gradient_norm: what the cap bounds.
    """

    objective: float
    gradient_norm: float


@dataclass(frozen=True, eq=False)
class ScaledNetwork:
    """θ = s ∘ θ₀, one scale s for each tensor that is trained and not zero.

    The scaled values are written into the parameters themselves, so that tied tensors share a scale, bare ones have
    one, and what a parametrization computes follows; whoever searches puts the model back (`preserve_state`). The
    gradient is taken over `parameters`, all trained tensors; `start` is θ₀ of those that have a scale.
    """

    model: nn.Module
    loss: Loss
    parameters: dict[str, nn.Parameter]
    start: dict[str, Tensor]
    seed: int = 0

    def write(self, scales: Float64[Tensor, " scales"]) -> None:
        """Put s ∘ θ₀ into the parameters."""
        with torch.no_grad():
            for (name, value), scale in zip(self.start.items(), scales.tolist(), strict=True):
                self.parameters[name].data.copy_(value * scale)

    def loss_of(self, batch: Batch) -> Tensor:
        """The loss of a batch at the present parameters: finite, and dependent on them."""
        with deterministic(self.model, self.seed + batch.number):
            value = loss_of(self.model, batch, self.loss)[0]
        if not torch.isfinite(value):
            raise ValueError(
                f"batch {batch.number}: expected a finite loss, got {float(value.detach()):g}; "
                "run diagnose to find the layer where it begins"
            )
        if not value.requires_grad:
            raise ValueError(
                "loss: expected one that depends on a trained parameter, got a constant; does the model detach its "
                "outputs or run under no_grad?"
            )
        return value

    def gradients(self, value: Tensor, *, graph: bool = True, again: bool = False) -> Gradients:
        """The gradient of a loss over all trained parameters; zeros where one is not used.

        Where `again`, the pass is differentiated once more for another loss, and its graph is kept.

        Returns:
            Tensors that can be differentiated again where `graph`.
        """
        wanted = list(self.parameters.values())
        found = differentiated(
            lambda: torch.autograd.grad(
                value, wanted, create_graph=graph, retain_graph=graph or again, allow_unused=True
            )
        )
        dense = [g.to_dense() if g is not None and g.is_sparse else g for g in found]  # of F.embedding(sparse=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(dense, wanted, strict=True)]

    def pulled_back(self, gradients: Sequence[Gradients], directions: Sequence[Gradients]) -> Gradients:
        """Σ_d H_d u_d: the derivative of Σ_d g_d · u_d, u held constant, over the tensors that have a scale."""
        pairs = [
            (g, u.to(g.dtype))
            for row, along in zip(gradients, directions, strict=True)
            for g, u in zip(row, along, strict=True)
            if g.requires_grad
        ]
        wanted = [self.parameters[name] for name in self.start]
        if not pairs:
            return [torch.zeros_like(p) for p in wanted]
        outputs, along = zip(*pairs, strict=True)
        found = differentiated(lambda: torch.autograd.grad(outputs, wanted, grad_outputs=along, allow_unused=True))
        return [torch.zeros_like(p) if g is None else g.detach() for g, p in zip(found, wanted, strict=True)]

    def slopes(self, derivative: Sequence[Tensor], *, by_logarithm: bool = True) -> Float64[Tensor, " scales"]:
        """⟨derivative, θ⟩ of each tensor, the derivative over the logarithms of the scales, averaged over ranks.

        Without `by_logarithm` ⟨derivative, θ₀⟩, that over the scales themselves.
        """
        along = self.parameters if by_logarithm else self.start
        products = [
            (d.double() * along[name].detach().double()).sum() for d, name in zip(derivative, self.start, strict=True)
        ]
        return summed(torch.stack(products)) / ranks()


def scaled_network(
    model: nn.Module, loss: Loss, batch: Batch, seed: int = 0, *, scaled: frozenset[str] | None = None
) -> ScaledNetwork:
    """Give scales to a network, which the caller restores; its gradients must exist and be differentiable.

    `scaled` are the names of those that may get one; None for all.

    Raises:
        ValueError: if nothing can be scaled, or the gradient is not finite, zero, or cannot be differentiated.
    """
    trained = {id(p) for p in trained_parameters(model)}
    named = {name: p for name, p in model.named_parameters() if id(p) in trained}
    wanted = {name: p for name, p in named.items() if scaled is None or name in scaled}
    start = {name: p.detach().clone() for name, p in wanted.items() if p.is_floating_point() and bool(p.detach().any())}
    if not start:
        raise ValueError(
            "model: expected a trained tensor that is not all zero, got none; scales cannot move a zero: draw the "
            "weights first"
        )
    network = ScaledNetwork(model, loss, named, start, seed)
    value = network.loss_of(batch)
    gradients = network.gradients(value)
    require_sound_graph(value, gradients, twice=True, instead="draw the start without it: remove")
    norm = norm_of(averaged(gradients))
    if not (math.isfinite(norm) and norm > 0):
        raise ValueError(
            f"loss: expected one whose gradient is finite and not zero at the start, got norm {norm:g} on batch "
            f"{batch.number}; it is constant in the trained parameters, or the start is broken: run diagnose first"
        )
    return network


def norm_of(gradients: Sequence[Tensor], order: int = 2) -> float:
    """The norm of a gradient over all its tensors, in float64 and without underflow."""
    norms = torch.stack([torch.linalg.vector_norm(g.detach(), order, dtype=torch.float64) for g in gradients])
    return float(torch.linalg.vector_norm(norms, order))


@dataclass(frozen=True, eq=False)
class Slope:
    """What an objective says of one batch at the present scales.

    `constrained` says whether the derivative is the norm's, because it exceeds the cap; the cost is in gradients of the
    batch.
    """

    quality: Quality
    constrained: bool
    derivative: list[Tensor]
    cost: float


@dataclass(frozen=True, eq=False)
class Objective:
    """What a search is for.

    `quantity` says in words what `Quality.objective` is, `slope` takes `(network, batch, cap)`, `quality` takes
    `(network, batch)`; costs are in gradients of the batch.
    """

    method: str
    quantity: str
    higher: bool
    slope: Callable[[ScaledNetwork, Batch, float], Slope]
    quality: Callable[[ScaledNetwork, Batch], Quality]
    quality_cost: float
