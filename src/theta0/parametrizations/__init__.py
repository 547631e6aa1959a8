"""Reparametrizations of a layer's weight, on top of `torch.nn.utils.parametrize`."""

from theta0.parametrizations.centered_weight_norm import centered_weight_norm
from theta0.parametrizations.linearly_constrained import is_linearly_constrained, linearly_constrained
from theta0.parametrizations.whole_model import Parametrized, parametrize_, remove_, reparametrize
from theta0.parametrizations.zero_sums import has_zero_sums, relative_sums

__all__ = [
    "Parametrized",
    "centered_weight_norm",
    "has_zero_sums",
    "is_linearly_constrained",
    "linearly_constrained",
    "parametrize_",
    "relative_sums",
    "remove_",
    "reparametrize",
]

"""Zero-sum weights: on their hyperplane (kutsuna2019lcw Def. 3), or as a direction times a length (its CWN)."""
