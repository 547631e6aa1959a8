"""The networks of the sources' experiments."""

from theta0.papers.models.convolutional import preactivation_resnet18, vgg19
from theta0.papers.models.perceptron import deep_perceptron, glorot_
from theta0.papers.models.thesis import ThesisResNet, draw_kept_layers, thesis_start_

__all__ = [
    "ThesisResNet",
    "deep_perceptron",
    "draw_kept_layers",
    "glorot_",
    "preactivation_resnet18",
    "thesis_start_",
    "vgg19",
]
