"""The networks of the sources' experiments."""

from theta0.papers.models.convolutional import small_cnn
from theta0.papers.models.fully_connected import Draw, draw_weights_, fully_connected
from theta0.papers.models.thesis import ThesisResNet, draw_kept_layers, thesis_start_

__all__ = [
    "Draw",
    "ThesisResNet",
    "draw_kept_layers",
    "draw_weights_",
    "fully_connected",
    "small_cnn",
    "thesis_start_",
]
