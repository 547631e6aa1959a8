"""Linearly constrained weights: every unit's incoming weights sum to zero (kutsuna2019lcw Def. 3)."""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import parametrize

Coordinates = Literal["ambient", "orthonormal"]


def linearly_constrained(layer: nn.Module, name: str = "weight", *, coordinates: Coordinates = "ambient") -> nn.Module:
    """Keeps every unit's incoming weights w ∈ R^m on the hyperplane 1ᵀw = 0, in place.

    A unit whose weights sum to zero has mean preactivation b when all its inputs share one mean: the angle between
    its weights and the mean activation no longer shifts it (kutsuna2019lcw Def. 3, Prop. 2, §3.1-3.2). For
    convolutions a unit is an output channel and m counts one group's input channels times the kernel (its App. B).

    Two coordinate systems of the same hyperplane; no basis is stored, both cost O(m) per unit, both ways:

    * `"ambient"`: v ∈ R^m, w = v - mean(v). The weight keeps its shape. mean(v) gets no gradient, so SGD, momentum
      and weight decay move w exactly as they would in any orthonormal basis; Adam treats all coordinates alike.
    * `"orthonormal"`: v ∈ R^(m-1), w = B v, the source's parameters, B being columns 2..m of the Householder
      reflection that sends 1/√m to -e₁: with s = Σ v, w₁ = -s/√m and w_{j+1} = v_j - s/(m + √m).

    The weight at hand is projected at once, and so is every later `layer.weight = new`. The parameter is
    `layer.parametrizations.weight.original`. It is the same `Parameter` object as before, so an optimizer made
    earlier goes on working, with one exception: in orthonormal coordinates its shape becomes (units, m - 1), so
    optimizer state gathered earlier no longer fits (a gradient held by the weight is dropped for that reason).
    A frozen weight stays frozen. `torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")` leaves a
    plain weight that computes the same function; after it in orthonormal coordinates, call `zero_grad` first.

    Whether the weight has another owner cannot be seen from one layer. Two layers that are both constrained in
    ambient coordinates may share a weight and stay tied. An unconstrained owner (an embedding, say) would read v
    itself; in orthonormal coordinates, a v of another shape. Whoever walks a whole model must refuse such ties.

    Args:
        layer: a Linear, Conv1d, Conv2d or Conv3d (any groups, stride, padding); changed in place.
        name: the parameter to constrain; its first dimension counts units.
        coordinates: what the optimizer sees, `"ambient"` or `"orthonormal"`.

    Returns:
        `layer`, as torch's own parametrizations do.

    Raises:
        ValueError: on another kind of layer, a parameter that is missing, not initialized yet, already parametrized
            or of another shape than the layer declares, a fan-in below 2 (only the zero weight would be left), or
            unknown coordinates. The layer is then untouched.

    Example:
        >>> layer = linearly_constrained(nn.Linear(3, 1, bias=False))
        >>> layer.weight = torch.tensor([[1.0, 2.0, 6.0]])
        >>> layer.weight.tolist()
        [[-2.0, -1.0, 3.0]]
        >>> layer(torch.full((1, 3), 7.0)).item()
        0.0
    """
    if coordinates not in ("ambient", "orthonormal"):
        raise ValueError(f"coordinates must be 'ambient' or 'orthonormal', not {coordinates!r}")
    weight = _checked_weight(layer, name)
    if coordinates == "ambient":
        return parametrize.register_parametrization(layer, name, Centered())
    parametrize.register_parametrization(layer, name, HouseholderBasis(tuple(weight.shape[1:])))
    weight.grad = None  # torch keeps the Parameter but changes its shape
    return layer


def is_linearly_constrained(layer: nn.Module, name: str = "weight") -> bool:
    """Whether `linearly_constrained` holds for this parameter.

    Returns:
        True while the constraint is registered; False on any other layer, and after its removal.
    """
    if not parametrize.is_parametrized(layer, name):
        return False
    return any(isinstance(p, Centered | HouseholderBasis) for p in layer.parametrizations[name])  # type: ignore[index]


class Centered(nn.Module):
    """w = v - mean(v) per unit, v of the weight's own shape (kutsuna2019lcw §3.1)."""

    def forward(self, v: Float[Tensor, "units *fan_in"]) -> Float[Tensor, "units *fan_in"]:
        """The constrained weight.

        Returns:
            w, each unit summing to zero.
        """
        if torch.compiler.is_compiling():
            return _centered(v)
        return _Center.apply(v)  # type: ignore[no-any-return, no-untyped-call]

    def right_inverse(self, weight: Float[Tensor, "units *fan_in"]) -> Float[Tensor, "units *fan_in"]:
        """The coordinates of the nearest constrained weight, which is its own v.

        Returns:
            v with mean zero per unit.
        """
        return self.forward(weight)


class HouseholderBasis(nn.Module):
    """w = B v per unit, v ∈ R^(m-1), B an orthonormal basis of 1^⊥ that is never formed (kutsuna2019lcw §3.2)."""

    def __init__(self, kernel: tuple[int, ...]) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, v: Float[Tensor, "units coordinates"]) -> Float[Tensor, "units *fan_in"]:
        """The constrained weight.

        Returns:
            w = B v, unrolled back to the layer's kernel.
        """
        weight = _from_basis(v) if torch.compiler.is_compiling() else _FromBasis.apply(v)  # type: ignore[no-untyped-call]
        return weight.reshape(-1, *self.kernel)

    def right_inverse(self, weight: Float[Tensor, "units *fan_in"]) -> Float[Tensor, "units coordinates"]:
        """The coordinates of the nearest constrained weight.

        Returns:
            v = Bᵀ w; B v is w without its mean.
        """
        return _ToBasis.apply(weight.flatten(1))  # type: ignore[no-any-return, no-untyped-call]

    def extra_repr(self) -> str:
        """What `print(layer)` shows.

        Returns:
            The kernel's shape.
        """
        return f"kernel={self.kernel}"


def _checked_weight(layer: nn.Module, name: str) -> nn.Parameter:
    """The parameter to constrain.

    Returns:
        The parameter called `name`.

    Raises:
        ValueError: if the layer or the parameter cannot carry the constraint.
    """
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise ValueError(f"linearly_constrained takes a Linear or Conv1d-3d layer, not {type(layer).__name__}: {layer}")
    if parametrize.is_parametrized(layer, name):
        what = "already linearly constrained" if is_linearly_constrained(layer, name) else "already parametrized"
        raise ValueError(
            f"{name!r} of {layer} is {what}; "
            f"torch.nn.utils.parametrize.remove_parametrizations(layer, {name!r}) makes it plain again"
        )
    weight = layer._parameters.get(name)
    if weight is None:
        known = [key for key, _ in layer.named_parameters(recurse=False)]
        raise ValueError(f"{layer} has no parameter {name!r}; its parameters are {known}")
    if isinstance(weight, nn.UninitializedParameter):
        raise ValueError(f"{name!r} of {layer} is not initialized yet: run one forward pass first")
    _check_shape(layer, name, weight)
    return weight


def _check_shape(layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d, name: str, weight: Tensor) -> None:
    if isinstance(layer, nn.Linear):
        declared: tuple[int, ...] = (layer.out_features, layer.in_features)
        kind = f"{type(layer).__name__}({layer.in_features}, {layer.out_features})"
    else:
        declared = (layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size)
        kind = f"{type(layer).__name__}({layer.in_channels}, {layer.out_channels}, kernel_size={layer.kernel_size}, "
        kind += f"groups={layer.groups})"
    if tuple(weight.shape) != declared:
        raise ValueError(
            f"{name!r} of {kind} has shape {tuple(weight.shape)}, expected {declared}: name the weight, and untie it "
            "from any layer constrained in orthonormal coordinates"
        )
    fan_in = math.prod(declared[1:])
    if fan_in < 2:
        raise ValueError(
            f"{kind} has a fan-in of {fan_in} ({name!r} has shape {declared}): the only zero-sum weight of such a unit "
            "is zero. Leave this layer unconstrained, or use fewer groups or a larger kernel"
        )


def _centered(t: Float[Tensor, "units *fan_in"]) -> Float[Tensor, "units *fan_in"]:
    """`t` minus each unit's mean.

    Returns:
        A new tensor, layout kept; |Σ| / Σ|·| per unit stays at rounding level however large the mean was.
    """
    axes = tuple(range(1, t.dim()))
    centered = t - t.mean(axes, keepdim=True)
    # Adam lets mean(v) drift far above |w|; what one subtraction then leaves is up to eps · |mean(v)| per weight.
    return centered.sub_(centered.mean(axes, keepdim=True))


def _from_basis(v: Float[Tensor, "units coordinates"]) -> Float[Tensor, "units fan_in"]:
    """B v.

    Returns:
        A new tensor; sums at rounding level as in `_centered`.
    """
    m = v.shape[1] + 1
    total = v.mean(1, keepdim=True) * (m - 1)  # not .sum(), which autocast may widen
    weight = pad(v, (1, 0)).sub_(total / (m + math.sqrt(m)))
    weight[:, :1] = total / -math.sqrt(m)
    return weight.sub_(weight.mean(1, keepdim=True))


def _to_basis(weight: Float[Tensor, "units fan_in"]) -> Float[Tensor, "units coordinates"]:
    """Bᵀ w.

    Returns:
        A new tensor.
    """
    m = weight.shape[1]
    first, rest = weight[:, :1], weight[:, 1:]
    return rest - (rest.mean(1, keepdim=True) * ((m - 1) / (m + math.sqrt(m))) + first / math.sqrt(m))


# Functions of their own because autograd's backward of `v - v.mean()` walks the matrix four times more: measured with
# one thread, 2.5 against 1.4 times a plain 4096² layer at batch 128, 1.4 against 1.1 for 1024². They save nothing, and
# each one's backward is a call of its adjoint, which gives derivatives of every order. `torch.compile` cannot trace a
# Function with a `jvp` and fuses the plain operations itself: there the bodies are called as they are.


class _Center(torch.autograd.Function):
    generate_vmap_rule = True

    forward = staticmethod(_centered)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Center.apply(grad)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return _Center.apply(tangent)  # type: ignore[no-any-return, no-untyped-call]


class _FromBasis(torch.autograd.Function):
    generate_vmap_rule = True

    forward = staticmethod(_from_basis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _ToBasis.apply(grad)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return _FromBasis.apply(tangent)  # type: ignore[no-any-return, no-untyped-call]


class _ToBasis(torch.autograd.Function):
    generate_vmap_rule = True

    forward = staticmethod(_to_basis)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _FromBasis.apply(grad)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return _ToBasis.apply(tangent)  # type: ignore[no-any-return, no-untyped-call]
