"""How strongly the logits depend on the input and on every layer's preactivations."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_map

from theta0._models import class_rows, outputs_of
from theta0._state import steady
from theta0._trace.calls import LinearCall, trace_calls
from theta0._trace.interpreter import PROCEED, Handler, Step
from theta0.measurements.sample_owners import sample_owners, squares_by_sample

INPUT = "(input)"
CLASSES = 10
_LINEAR = {"linear", "conv", "conv_transpose", "matmul"}


@dataclass(frozen=True, eq=False)
class JacobianNorms:
    """‖∂ logit_i / ∂ x_l‖ at every sample.

    Layers are "(input)" first where the inputs are real numbers, then every linear map but the last. The norms are
    differentiable in the parameters if that was asked for.
    """

    layers: tuple[str, ...]
    classes: tuple[int, ...]
    norms: Float[Tensor, "layers classes samples"]


def _statistics_handler(noted: list[tuple[Tensor, Tensor]], given: list[tuple[Tensor, Tensor]] | None) -> Handler:
    """Batch normalization takes its batch statistics from another pass, or notes them in the order of calls.

    Otherwise a sample's logits depend on other samples' inputs, and the sum over the batch of what follows a
    normalization does not depend on its inputs at all. Those of another pass still depend on the parameters.
    """
    others = None if given is None else iter(given)

    def replaced(step: Step) -> Any:
        if step.spec is None or step.spec.role != "batch_norm" or not step.argument((5, "training")):
            return PROCEED
        x = step.argument(step.spec.input)
        if others is None:
            variance, mean = torch.var_mean(x, [axis for axis in range(x.dim()) if axis != 1], correction=0)
            noted.append((mean, variance))
        else:
            mean, variance = next(others)
        eps = step.argument((7, "eps"))
        weight, bias = step.argument(step.spec.weight), step.argument(step.spec.bias)
        return _normalized(x, mean, variance, weight, bias, 1e-5 if eps is None else eps)

    return Handler(replace=replaced)


def _normalized(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Batch normalization by given statistics; not F.batch_norm, which has no derivative in them."""
    shape = (1, -1, *[1] * (x.dim() - 2))
    result = (x - mean.view(shape)) * (variance + eps).rsqrt().view(shape)
    result = result if weight is None else result * weight.view(shape)
    return (result if bias is None else result + bias.view(shape)).to(x.dtype)


def jacobian_norms(
    model: nn.Module, inputs: Any, *, classes: tuple[int, ...] | None = None, differentiable: bool = False
) -> JacobianNorms:
    r"""$\|J^{(i)}_{θ^{(l:L)}}(x_l)\|_F$ of lee2023mmd, section 3.2.2, for every sample, class i and layer l < L.

    x_0 is the input (the output of embeddings where inputs are integers) and x_l the output of the l-th linear map. One
    backward pass a class, and a few more to tell the samples apart; where something is shared by several samples, one a
    sample and class. The statistics of batch normalisation do not count as functions of x, only of the parameters. The
    caller has prepared the model (dropout off, twice differentiable); `classes` None takes all.
    """
    logits, places = _forward(model, inputs)
    chosen = tuple(range(logits.shape[1])) if classes is None else classes
    return _jacobian(logits, places, chosen, differentiable)


def detachment_loss(
    model: nn.Module, inputs: Any, *, generator: torch.Generator | None = None, classes: int = CLASSES
) -> Float[Tensor, ""]:
    r"""L_iod (lee2023mmd, equation 22): the mean over samples and classes of $\max_l (1 - \|J^{(i)}(x_l)\|)^2$.

    Where there are more than `classes` classes, as many are drawn uniformly, which leaves the expectation as it is. The
    caller has prepared the model as for `jacobian_norms`.
    """
    logits, places = _forward(model, inputs)
    count = logits.shape[1]
    drawn = range(count) if count <= classes else torch.randperm(count, generator=generator)[:classes].tolist()
    norms = _jacobian(logits, places, tuple(drawn), torch.is_grad_enabled()).norms
    return (1 - norms).square().amax(0).mean()


def _forward(model: nn.Module, inputs: Any) -> tuple[Tensor, dict[str, tuple[Any, ...]]]:
    """The logits, and what they are to be differentiated with respect to."""
    noted: list[tuple[Tensor, Tensor]] = []
    found = _pass(model, inputs, _statistics_handler(noted, None))
    return _pass(model, inputs, _statistics_handler([], noted)) if noted else found


def _pass(model: nn.Module, inputs: Any, statistics: Handler) -> tuple[Tensor, dict[str, tuple[Any, ...]]]:
    calls: list[tuple[str, str, GradientEdge]] = []

    def observe(call: LinearCall) -> None:
        if call.output.requires_grad:  # the edge is taken now: an in-place nonlinearity may overwrite the output
            calls.append((call.layer, call.kind, get_gradient_edge(call.output)))

    leaves: list[Tensor] = []
    with torch.enable_grad(), steady(model), trace_calls(model, observe, None, statistics):
        outputs = outputs_of(model, tree_map(lambda leaf: _leaf(leaf, leaves), inputs))
    return class_rows(outputs), _places(leaves, calls)


def _jacobian(
    logits: Tensor, places: dict[str, tuple[Any, ...]], classes: tuple[int, ...], differentiable: bool
) -> JacobianNorms:
    with torch.enable_grad():
        owners = sample_owners(logits, [place for group in places.values() for place in group])
        rows = torch.stack([_norms(logits[:, i], places, owners, differentiable) for i in classes], dim=1)
    return JacobianNorms(tuple(places), classes, rows if differentiable else rows.detach())


def _leaf(leaf: Any, leaves: list[Tensor]) -> Any:
    if not (isinstance(leaf, Tensor) and leaf.is_floating_point()):
        return leaf
    fresh = leaf.detach().clone().requires_grad_()
    leaves.append(fresh)
    return fresh


def _places(leaves: list[Tensor], calls: list[tuple[str, str, GradientEdge]]) -> dict[str, tuple[Any, ...]]:
    """What to differentiate with respect to, by layer; the last linear map's output is the logits."""
    linear = [call for call in calls if call[1] in _LINEAR]
    embedded = [edge for _, kind, edge in calls if kind == "embedding"]
    inputs: tuple[Any, ...] = tuple(leaves) or tuple(embedded)
    places: dict[str, tuple[Any, ...]] = {INPUT: inputs} if inputs else {}
    return places | {layer: (edge,) for layer, _, edge in linear[:-1]}


def _norms(
    logit: Tensor, places: dict[str, tuple[Any, ...]], owners: list[Tensor | None], differentiable: bool
) -> Tensor:
    wanted = [place for group in places.values() for place in group]
    squares = iter(squares_by_sample(logit, wanted, owners, differentiable))
    found = torch.stack([torch.stack([next(squares) for _ in group]).sum(0) for group in places.values()])
    zero = found == 0  # the root has no derivative there
    return torch.where(zero, 0.0, torch.where(zero, 1.0, found).sqrt())
