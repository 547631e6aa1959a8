"""Linearly constrained weights: every unit's incoming weights sum to zero (kutsuna2019lcw Def. 3)."""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from theta0.parametrizations._centering import centered, from_basis, to_basis
from theta0.parametrizations._input_side import compute_from_input_
from theta0.parametrizations._registration import same_parameter
from theta0.parametrizations._torch_classes import own_class_, read_weights_when_called_
from theta0.parametrizations._units import checked_weight, rows, transposed_groups, unrolled

Coordinates = Literal["ambient", "orthonormal"]


def linearly_constrained(layer: nn.Module, name: str = "weight", *, coordinates: Coordinates = "ambient") -> nn.Module:
    """Keeps every unit's incoming weights w ∈ R^m on the hyperplane 1ᵀw = 0, in place.

    A unit whose weights sum to zero has mean preactivation b when all its inputs share one mean: the angle between
    its weights and the mean activation no longer shifts it (kutsuna2019lcw Def. 3, Prop. 2, §3.1). For
    convolutions a unit is an output channel and m counts one group's input channels times the kernel (its §3.2);
    for transposed ones likewise, all positions of the kernel together. In attention and recurrent layers (its §7) each
    row of a projection, and of a gate's input or recurrent weights, is a unit.

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

    In ambient coordinates a Linear layer on the CPU centres its input, of fewer rows than units, instead of its
    weight: the same function up to rounding. `layer.weight` is the constrained weight all the same.
    In half precision w sums to zero up to the rounding of each weight: bfloat16 autocast leaves about 2e-4 of ‖w‖₁.

    Whether the weight has another owner cannot be seen from one layer. Two layers that are both constrained in
    ambient coordinates may share a weight and stay tied. An unconstrained owner (an embedding, say) would read v
    itself; in orthonormal coordinates, a v of another shape. `parametrize_` sees the whole model and refuses such ties.

    Args:
        layer: a Linear, Conv1d-3d or ConvTranspose1d-3d (any groups, stride, padding), MultiheadAttention (its output
            projection is a Linear layer of its own), LSTM, GRU, RNN or one of their cells; changed in place.
        name: the parameter to constrain: `weight`; `in_proj_weight` or `q_proj_weight`, `k_proj_weight`,
            `v_proj_weight`; `weight_ih_l0`, `weight_hh_l0` and so on; `weight_ih`, `weight_hh`.
        coordinates: what the optimizer sees, `"ambient"` or `"orthonormal"`.

    Returns:
        `layer`, as torch's own parametrizations do.

    Raises:
        ValueError: on another kind of layer, a parameter that is missing, not initialized yet, already parametrized
            or of another shape than the layer declares, a fan-in below 2 (only the zero weight would be left), or
            unknown coordinates. The layer is then untouched.

    Example:
        >>> import torch
        >>> layer = linearly_constrained(nn.Linear(3, 1, bias=False))
        >>> layer.weight = torch.tensor([[1.0, 2.0, 6.0]])
        >>> layer.weight.tolist()
        [[-2.0, -1.0, 3.0]]
        >>> layer(torch.full((1, 3), 7.0)).item()
        0.0
    """
    if coordinates not in ("ambient", "orthonormal"):
        raise ValueError(f"coordinates must be 'ambient' or 'orthonormal', not {coordinates!r}")
    weight = checked_weight(layer, name, "linearly_constrained")
    groups = transposed_groups(layer)
    own_class_(layer)
    if coordinates == "ambient":
        with same_parameter(layer, name):
            parametrize.register_parametrization(layer, name, Centered(groups))
        compute_from_input_(layer, name)
    else:
        parametrize.register_parametrization(layer, name, HouseholderBasis(tuple(weight.shape), groups))
        weight.grad = None  # torch keeps the Parameter but changes its shape
    read_weights_when_called_(layer)
    return layer


def is_linearly_constrained(layer: nn.Module, name: str = "weight") -> bool:
    """Whether `linearly_constrained` holds for this parameter.

    Returns:
        True while the constraint is registered; False on any other layer, and after its removal.

    Example:
        >>> from torch import nn
        >>> is_linearly_constrained(nn.Linear(8, 4)), is_linearly_constrained(linearly_constrained(nn.Linear(8, 4)))
        (False, True)
    """
    if not parametrize.is_parametrized(layer, name):
        return False
    return any(isinstance(p, Centered | HouseholderBasis) for p in layer.parametrizations[name])  # type: ignore[index]


class Centered(nn.Module):
    """w = v - mean(v) per unit, v of the weight's own shape (kutsuna2019lcw §3.1)."""

    from_input: tuple[int, float, int]

    def __init__(self, groups: int = 0) -> None:
        super().__init__()
        self.groups = groups
        self._forget()

    def forward(self, v: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The constrained weight, each unit summing to zero."""
        return centered(v, self.groups)

    def right_inverse(self, weight: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The coordinates of the nearest constrained weight, which is its own v."""
        return self.forward(weight)

    def _forget(self) -> None:
        self.from_input = (0, 0.0, 0)  # calls, drift of mean(v) when last looked at, what the last call did

    def _load_from_state_dict(self, *given: Any, **options: Any) -> None:
        self._forget()  # the v that is loaded may have drifted
        super()._load_from_state_dict(*given, **options)


class HouseholderBasis(nn.Module):
    """w = B v per unit, v ∈ R^(m-1), B an orthonormal basis of 1^⊥ that is never formed (kutsuna2019lcw §3.1)."""

    def __init__(self, shape: tuple[int, ...], groups: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.groups = groups

    def forward(self, v: Float[Tensor, "units coordinates"]) -> Float[Tensor, "*shape"]:
        """The constrained weight."""
        return unrolled(from_basis(v), self.shape, self.groups)

    def right_inverse(self, weight: Float[Tensor, "*shape"]) -> Float[Tensor, "units coordinates"]:
        """The coordinates v = Bᵀ w of the nearest constrained weight; B v is w without its mean."""
        return to_basis(rows(weight, self.groups))

    def extra_repr(self) -> str:
        """What `print(layer)` shows."""
        return f"shape={self.shape}"
