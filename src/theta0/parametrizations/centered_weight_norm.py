"""Centred weight normalization: each unit's weights have mean zero and a length of their own parameter."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from theta0.parametrizations._centering import centered
from theta0.parametrizations._torch_classes import own_class_, read_weights_when_called_
from theta0.parametrizations._units import checked_weight, described, transposed_groups


def centered_weight_norm(layer: nn.Module, name: str = "weight") -> nn.Module:
    """Gives every unit's incoming weights a length g and a zero-sum direction, w = g · u / ‖u‖, u = v - mean(v).

    The source compares against it as CWN (kutsuna2019lcw §5, which takes it from Huang et al. 2017). The parameters are
    `layer.parametrizations.weight.original0` = g, one for each unit, and `original1` = v, of the weight's shape, as in
    torch's `weight_norm`, whose place it takes; a unit is what it is in `linearly_constrained`. The weight at hand
    is projected at once, and so is every later `layer.weight = new`. A frozen weight stays frozen.

    g and v are new parameters: **make the optimizer afterwards**, one made before holds the old weight, which trains
    nothing. `torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")` leaves a plain weight (new, too).
    In plain operations, since torch's fused kernel for weight normalization has a wrong second derivative on the CPU.

    Args:
        layer: as in `linearly_constrained`; changed in place.
        name: the parameter, as there.

    Returns:
        `layer`, as torch's own parametrizations do.

    Raises:
        ValueError: as `linearly_constrained`, and if some unit has no direction, all its weights being equal. The
            layer is then untouched.

    Example:
        >>> layer = centered_weight_norm(nn.Linear(2, 1, bias=False))
        >>> layer.weight = torch.tensor([[3.0, -3.0]])
        >>> [round(value, 4) for value in layer.weight[0].tolist()]
        [3.0, -3.0]
        >>> round(layer.parametrizations.weight.original0.item() ** 2, 4)
        18.0
    """
    weight = checked_weight(layer, name, "centered_weight_norm")
    part = CenteredDirection(transposed_groups(layer))
    if (equal := part.without_direction(weight)) > 0:
        raise ValueError(
            f"{equal} units of {name!r} of {described(layer)} have equal weights, which leaves no direction when their "
            "mean is taken away: leave this layer unconstrained, or give it weights that differ"
        )
    own_class_(layer)
    parametrize.register_parametrization(layer, name, part)
    read_weights_when_called_(layer)
    return layer


class CenteredDirection(nn.Module):
    """w = g · u / ‖u‖ per unit with u = v - mean(v) (kutsuna2019lcw §5)."""

    def __init__(self, groups: int = 0) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, g: Float[Tensor, "..."], v: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The weight of length g along v without its mean; zero where v has no direction."""
        u = centered(v, self.groups)
        length = self._lengths(u).clamp_min(torch.finfo(v.dtype).tiny)
        return self._scaled(u, g / length)

    def right_inverse(self, weight: Float[Tensor, "*shape"]) -> tuple[Float[Tensor, "..."], Float[Tensor, "*shape"]]:
        """The coordinates of the nearest zero-sum weight: g, one entry a unit with the weight's axes kept, and v."""
        u = centered(weight, self.groups)
        return self._lengths(u), u

    def without_direction(self, weight: Float[Tensor, "*shape"]) -> int:
        """How many units consist of equal weights, up to rounding; 0 on the meta device, which holds no values."""
        if weight.is_meta:
            return 0
        with torch.no_grad():
            left, whole = self._lengths(centered(weight, self.groups)), self._lengths(weight)
            return int((left <= 4 * torch.finfo(weight.dtype).eps * whole).sum())

    def _lengths(self, u: Tensor) -> Tensor:
        lengths: Tensor
        if self.groups:
            split = torch.unflatten(u, 0, (self.groups, -1))
            lengths = torch.linalg.vector_norm(split, dim=(1, *range(3, split.dim())), keepdim=True).flatten(0, 1)
        else:
            lengths = torch.linalg.vector_norm(u, dim=tuple(range(1, u.dim())), keepdim=True)
        return lengths.to(u.dtype)  # autocast may widen it

    def _scaled(self, u: Tensor, by: Tensor) -> Tensor:
        if not self.groups:
            return u * by
        scaled: Tensor = torch.unflatten(u, 0, (self.groups, -1)) * by.unsqueeze(1)
        return scaled.flatten(0, 1)
