"""Products with G = Jᵀ H J, or with Sᵀ J Jᵀ S, by two backward passes.

With f the outputs of a batch, J = ∂f/∂θ and H = ∂²ℓ/∂f∂f = S Sᵀ. Jᵀw is a backward pass, linear in w, so J u is the
derivative of ⟨Jᵀw, u⟩ with respect to w: a second backward pass, through the first ("double vjp"). G has the nonzero
eigenvalues of the much smaller Sᵀ J Jᵀ S, which acts on the outputs of all samples (the dual of the Fisher matrix of
furusho2020thesis §2.4).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._training import count_gradients
from theta0.curvature.loss_curvature import LossCurvature, Outputs, closed_form, loss_curvature
from theta0.curvature.problem import (
    Curvature,
    Problem,
    differentiated,
    flat,
    over_parameters,
    require_sound_graph,
    split,
)


@dataclass(frozen=True, eq=False)
class Linearised:
    """A batch's network at θ.

    Attributes:
        value: the loss.
        loss: H, and the outputs at which it is taken.
        parameters: θ.
        dummies: w, zeros.
        transposed: Jᵀw for each parameter, as a function of w in the graph.
        share: the batch's share of all samples.
    """

    value: Tensor
    loss: LossCurvature
    parameters: Sequence[nn.Parameter]
    dummies: Outputs
    transposed: Sequence[Tensor | None]
    share: float


def linearised(problem: Problem, batch: Batch) -> Linearised:
    """Run the network on a batch, and its backward pass as a function of w."""
    value, outputs = problem.forward(batch)
    curved = loss_curvature(problem.loss, value, outputs, batch)
    dummies = tuple(torch.zeros_like(f, requires_grad=True) for f in curved.outputs)
    transposed = differentiated(
        lambda: torch.autograd.grad(curved.outputs, problem.parameters, dummies, create_graph=True, allow_unused=True)
    )
    require_sound_graph(value, transposed)
    return Linearised(value, curved, problem.parameters, dummies, transposed, problem.share(batch))


def vjp(one: Linearised, w: Outputs) -> Float[Tensor, " n"]:
    """Jᵀ w, by a backward pass."""
    cast = [part.to(f.dtype) for part, f in zip(w, one.loss.outputs, strict=True)]
    found = torch.autograd.grad(one.loss.outputs, one.parameters, cast, retain_graph=True, allow_unused=True)
    return flat(found, one.parameters)


def jvp(one: Linearised, u: Float[Tensor, " n"]) -> Outputs:
    """J u, by a backward pass through the backward pass."""
    parts = zip(one.transposed, split(u, one.parameters), strict=True)
    pairs = [(g, part) for g, part in parts if g is not None and g.requires_grad]
    outputs, along = [g for g, _ in pairs], [part for _, part in pairs]
    found = differentiated(
        lambda: torch.autograd.grad(outputs, one.dummies, along, retain_graph=True, allow_unused=True)
    )
    return tuple(torch.zeros_like(w) if j is None else j for w, j in zip(one.dummies, found, strict=True))


def gauss_newton(problem: Problem, recompute: bool) -> Curvature:
    """The Gauss-Newton matrix, on kept graphs or on graphs built anew in each product.

    Function space is used where H has a known factor and the graphs are kept.
    """
    passes = float(len(problem.batches))
    if recompute:
        anew = count_gradients(forward=passes, backward=3 * passes)  # Jᵀw in the graph, J u, Jᵀ(Hu)
        return _in_parameter_space(problem, lambda: (linearised(problem, b) for b in problem.batches), 0.0, anew)
    held = [linearised(problem, batch) for batch in problem.batches]
    if any(one.loss.factor is None for one in held):
        return _in_parameter_space(problem, lambda: iter(held), passes, count_gradients(backward=2 * passes))
    return _in_function_space(problem, held, passes)


def _in_function_space(problem: Problem, held: Sequence[Linearised], passes: float) -> Curvature:
    """Sᵀ J P⁻¹ Jᵀ S over the outputs of all batches, in float64 outside the network."""
    sizes = [one.dummies[0].numel() for one in held]
    inverse = problem.inverse
    root = None if inverse is None else inverse.sqrt()

    def to_parameters(z: Tensor) -> Tensor:
        parts = zip(held, torch.split(z, sizes), strict=True)
        total = torch.stack([vjp(one, (_scaled(one, part, one.loss.factor),)) for one, part in parts]).sum(0)
        return total if root is None else total * root

    def from_parameters(u: Tensor) -> Tensor:
        u = u if root is None else u * root
        parts = [_scaled(one, jvp(one, u)[0], one.loss.factor_transposed) for one in held]
        return torch.cat([part.flatten().double() for part in parts])

    return Curvature(
        problem.matrix,
        sum(sizes),
        lambda z: differentiated(lambda: from_parameters(to_parameters(z))),
        to_parameters,
        from_parameters,
        lambda: _gradient(held) if root is None else _gradient(held) * root,
        False,
        True,
        problem.parameters[0].dtype,
        torch.zeros(0, dtype=torch.float64, device=held[0].dummies[0].device),
        passes,
        count_gradients(backward=2 * passes),
        count_gradients(backward=passes),
        count_gradients(backward=passes),
    )


def _scaled(one: Linearised, z: Tensor, factor: Callable[[Tensor], Tensor] | None) -> Tensor:
    assert factor is not None  # the caller has looked
    output = one.dummies[0]
    scaled: Tensor = factor(z.view(output.shape).to(torch.promote_types(output.dtype, torch.float32))) * one.share**0.5
    return scaled


def _in_parameter_space(
    problem: Problem, graphs: Callable[[], Iterator[Linearised]], setup: float, product: float
) -> Curvature:
    """Jᵀ H J, for losses whose H has no known factor, and for graphs that are not kept."""

    def multiply(u: Tensor) -> Tensor:
        total = torch.zeros_like(u)
        for one in graphs():
            total += vjp(one, one.loss.multiply(jvp(one, u))).mul_(one.share)
        return total

    known = closed_form(problem.loss) is not None
    return over_parameters(
        problem,
        multiply,
        lambda: _gradient(graphs()),
        semidefinite=known,
        setup=setup,
        product=product,
        gradient_cost=len(problem.batches) * count_gradients(0 if setup else 1, backward=1),
    )


def _gradient(graphs: Iterable[Linearised]) -> Tensor:
    parts = [
        flat(torch.autograd.grad(one.value, one.parameters, retain_graph=True, allow_unused=True), one.parameters)
        * one.share
        for one in graphs
    ]
    return torch.stack(parts).sum(0)
