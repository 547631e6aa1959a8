"""Penalties to add to a loss: `penalty(model) -> 0-d tensor`, one file each."""

from theta0.regularizers.l1_norm import l1_norm
from theta0.regularizers.l2_norm import l2_norm
from theta0.regularizers.named import penalties_from
from theta0.regularizers.path_norm import path_norm

REGULARIZERS = {"l2": l2_norm, "l1": l1_norm, "path": path_norm}

__all__ = ["REGULARIZERS", "l1_norm", "l2_norm", "path_norm", "penalties_from"]
