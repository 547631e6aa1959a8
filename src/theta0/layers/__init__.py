"""Layers that the source methods add to a network."""

from theta0.layers.standardization import Standardization
from theta0.layers.standardized_input import StandardizedInput
from theta0.layers.stochastic_depth import StochasticDepth, draw_kept, drop_layers_, pin_kept_

__all__ = ["Standardization", "StandardizedInput", "StochasticDepth", "draw_kept", "drop_layers_", "pin_kept_"]
