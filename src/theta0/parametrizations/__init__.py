"""Reparametrizations of a layer's weight, on top of `torch.nn.utils.parametrize`."""

from theta0.parametrizations.linearly_constrained import is_linearly_constrained, linearly_constrained

__all__ = ["PARAMETRIZATIONS", "is_linearly_constrained", "linearly_constrained"]

PARAMETRIZATIONS = {"lcw": linearly_constrained}
