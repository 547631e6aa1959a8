"""The networks of the sources' experiments."""

from theta0.papers.models.perceptrons import LineAutoencoder, he_perceptron, trained_autoencoder
from theta0.papers.models.thesis import ThesisResNet, draw_kept_layers, thesis_start_

__all__ = [
    "LineAutoencoder",
    "ThesisResNet",
    "draw_kept_layers",
    "he_perceptron",
    "thesis_start_",
    "trained_autoencoder",
]
