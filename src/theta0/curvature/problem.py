"""What a curvature is taken of, and the matrix known by its products that comes out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss, loss_of
from theta0._models import graph_nodes
from theta0._moments import real_entries
from theta0._state import deterministic
from theta0._trace.source import source_of_error

Matrix = Literal["ggn", "fisher", "hessian"]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Curvature:
    """A symmetric matrix A, known by its products; its nonzero eigenvalues are those of the curvature.

    Attributes:
        matrix: which.
        size: its number of rows: outputs of all samples, or parameters.
        multiply: v ↦ A v.
        to_parameters: from an eigenvector to the direction in parameter space (flat, in the order of `parameters()`).
        from_parameters: the other way, for warm starts.
        gradient: the gradient of the mean loss, flat: a start that leans towards the top eigenvectors.
        in_parameters: whether A acts on parameters themselves.
        semidefinite: whether A has no negative eigenvalue by construction.
        precision: the dtype in which products are rounded.
        vectors: an empty tensor of the vectors' dtype and device.
        setup: cost of building the graph, in gradients.
        product: cost of a product.
        conversion: cost of `to_parameters` or `from_parameters`.
        gradient_cost: cost of `gradient`.
    """

    matrix: Matrix
    size: int
    multiply: Callable[[Tensor], Tensor]
    to_parameters: Callable[[Tensor], Tensor]
    from_parameters: Callable[[Tensor], Tensor]
    gradient: Callable[[], Tensor]
    in_parameters: bool
    semidefinite: bool
    precision: torch.dtype
    vectors: Tensor
    setup: float
    product: float
    conversion: float
    gradient_cost: float


@dataclass(frozen=True, eq=False)
class Problem:
    """A network, its data and its loss.

    Attributes:
        model: the network.
        batches: the data.
        loss: a name, a callable, or None.
        matrix: which curvature.
        parameters: over which it is taken.
        seed: of what the forward pass draws.
        inverse: the diagonal of P⁻¹; None is the identity.
    """

    model: nn.Module
    batches: Sequence[Batch]
    loss: Loss
    matrix: Matrix
    parameters: list[nn.Parameter]
    seed: int = 0
    inverse: Float[Tensor, " n"] | None = None

    def share(self, batch: Batch) -> float:
        """A batch's weight in the mean."""
        return batch.size / sum(b.size for b in self.batches)

    def forward(self, batch: Batch) -> tuple[Tensor, Any]:
        """One forward pass, the same each time.

        Raises:
            ValueError: if the loss is not finite.
        """
        with deterministic(self.model, self.seed + batch.number):
            value, outputs = loss_of(self.model, batch, self.loss)
        if not torch.isfinite(value):
            raise ValueError(
                f"batch {batch.number}: expected a finite loss, got {float(value.detach()):g}; a start that is not "
                "finite has no curvature, and theta0.diagnose says where it breaks"
            )
        return value, outputs


def over_parameters(
    problem: Problem,
    multiply: Callable[[Tensor], Tensor],
    gradient: Callable[[], Tensor],
    *,
    semidefinite: bool,
    setup: float,
    product: float,
    gradient_cost: float,
) -> Curvature:
    """P^(-1/2) A P^(-1/2) in parameter space."""
    parameters = problem.parameters
    root = None if problem.inverse is None else problem.inverse.sqrt()
    first = parameters[0]
    return Curvature(
        problem.matrix,
        sum(p.numel() for p in parameters),
        lambda v: differentiated(lambda: multiply(v) if root is None else multiply(v * root).mul_(root)),
        lambda v: v,
        lambda v: v,
        lambda: gradient() if root is None else gradient() * root,
        True,
        semidefinite,
        first.dtype,
        torch.zeros(0, dtype=first.dtype, device=first.device),
        setup,
        product,
        0.0,
        gradient_cost,
    )


def _no_second_derivative(reason: str) -> str:
    return (
        f"model: expected operations that can be differentiated twice, got one that cannot ({reason}); replace "
        "fused or once-differentiable kernels, and reentrant checkpointing, while the second derivative is taken"
    )


def differentiated(function: Callable[[], T], refused: Callable[[str], str] = _no_second_derivative) -> T:
    """Call a function that differentiates the network or its loss, and say what is wrong where it cannot be.

    A `RuntimeError` is how torch, and operations that follow it, refuse a derivative. Any other error from within a
    backward pass is one of the user's code.

    Args:
        function: what to call.
        refused: the message, from the reason, where there is no second derivative.

    Raises:
        ValueError: if there is no such derivative.
        UserCodeError: if the user's own backward pass or hook raises.
        torch.OutOfMemoryError: if the graph does not fit.
    """
    try:
        return function()
    except (torch.OutOfMemoryError, UserCodeError):
        raise
    except Exception as error:
        source = source_of_error(error)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        at = "" if source is None else f" at {source.line}"
        if isinstance(error, RuntimeError):
            raise ValueError(refused(reason + at)) from error
        if source is None:
            raise
        raise UserCodeError(f"a backward pass raised {type(error).__name__}: {reason}{at}") from error


_INSTEAD = "use matrix='ggn', which does not need it, or remove"
_ONCE = once_differentiable(lambda ctx: None).__code__  # the same for all backward passes that are marked


def require_sound_graph(
    value: Tensor, gradients: Sequence[Tensor | None], *, twice: bool = False, instead: str = _INSTEAD
) -> None:
    """Look through the graphs of a loss and its gradient for operations whose second derivative is missing or wrong.

    Torch leaves out, silently, what flows through a once-differentiable operation when the path asked for does not
    begin there, or where the gradient that arrives at it is a constant, as at a summand of the loss; and its fused
    weight norm has a wrong double backward on the CPU (it fails `gradgradcheck`).

    Args:
        value: the loss.
        gradients: its first derivatives.
        twice: whether they will be differentiated with respect to the parameters too.
        instead: what to do about torch's weight norm, as words before "the parametrization".

    Raises:
        ValueError: if there is one.
    """
    for node in graph_nodes([value, *gradients]):
        marked = _marked_once(node)
        if marked is not None:
            raise ValueError(
                f"model: expected operations that can be differentiated twice, got {marked} marked "
                "once_differentiable; write its backward pass in torch operations"
            )
        if twice and "WeightNorm" in node.name():
            raise ValueError(
                "model: expected operations whose double backward is right, got torch's weight_norm, whose is wrong; "
                f"{instead} the parametrization first "
                "(torch.nn.utils.parametrize.remove_parametrizations)"
            )


def _marked_once(node: Any) -> str | None:
    """The name of a function of the user's that has no second derivative; None for other nodes of a graph."""
    function: Any = getattr(node, "_forward_cls", None)
    backward = getattr(getattr(function, "backward", None), "__code__", None)
    if backward is _ONCE:
        return str(function.__name__)
    return "one" if node.name() == "torch::autograd::Error" else None


def flat(parts: Sequence[Tensor | None], parameters: Sequence[nn.Parameter]) -> Float[Tensor, " n"]:
    """One vector over all parameters; None counts as zeros."""
    pairs = zip(parts, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if part is None else real_entries(part)).flatten() for part, p in pairs])


def split(v: Float[Tensor, " n"], parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """A vector over all parameters, cut into their shapes and dtypes.

    Returns:
        Views, where the dtypes agree.
    """
    parts = torch.split(v, [p.numel() for p in parameters])
    return [part.view(p.shape).to(p.dtype) for part, p in zip(parts, parameters, strict=True)]
