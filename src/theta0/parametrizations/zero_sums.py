"""Whether a weight's units sum to zero."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from theta0.parametrizations._units import hooked_weight_names, rows, transposed_groups, weight_names
from theta0.parametrizations.centered_weight_norm import CenteredDirection
from theta0.parametrizations.linearly_constrained import Centered, HouseholderBasis


def has_zero_sums(layer: nn.Module, name: str = "weight", *, tolerance: float = 1e-6) -> bool:
    """Whether a constraint is registered on a weight and holds on its values: |Σ w| ≤ tolerance · Σ |w| for all units.

    Holds for float32 and wider; a bfloat16 weight has rounded entries and needs a tolerance of about 0.01.

    Args:
        layer: a layer that `linearly_constrained` or `centered_weight_norm` was given.
        name: the weight.
        tolerance: the largest relative sum.

    Returns:
        True if both hold; False for a plain weight, however it sums.

    Example:
        >>> from torch import nn
        >>> from theta0.parametrizations import linearly_constrained
        >>> has_zero_sums(nn.Linear(8, 4)), has_zero_sums(linearly_constrained(nn.Linear(8, 4)))
        (False, True)
    """
    if not parametrize.is_parametrized(layer, name):
        return False
    last = list(layer.parametrizations[name])[-1]  # type: ignore[index]
    constrained = isinstance(last, Centered | HouseholderBasis | CenteredDirection)
    return constrained and bool((relative_sums(layer, name) <= tolerance).all())


def relative_sums(layer: nn.Module, name: str = "weight") -> Float[Tensor, "units"]:
    """|Σ w| / Σ |w| for each unit of a weight, summed in float64 (kutsuna2019lcw Def. 3 asks for zero).

    Args:
        layer: any layer that `linearly_constrained` takes, constrained or not.
        name: the weight.

    Returns:
        One number for each unit; 0 for a unit of zero weights.

    Raises:
        ValueError: if the layer has no units' weights of this name.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[1.0, -1.0], [3.0, -1.0]])
        >>> relative_sums(layer).tolist()
        [0.0, 0.5]
    """
    if name not in (known := weight_names(layer) + hooked_weight_names(layer)):
        raise ValueError(f"name: expected a weight of {layer}, which are {list(known)}, got {name!r}")
    with torch.no_grad():
        by_unit = rows(getattr(layer, name).double(), transposed_groups(layer))
        return by_unit.sum(1).abs() / by_unit.abs().sum(1).clamp_min(torch.finfo(torch.float64).tiny)
