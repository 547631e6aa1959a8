"""The networks of the sources' experiments."""

from theta0.papers.models.convolutional import preactivation_resnet18, vgg19
from theta0.papers.models.fully_connected import Draw, draw_weights_, fully_connected
from theta0.papers.models.perceptron import deep_perceptron, glorot_
from theta0.papers.models.small_convolutional import small_cnn
from theta0.papers.models.thesis import ThesisResNet, draw_kept_layers, thesis_start_

__all__ = [
    "Draw",
    "ThesisResNet",
    "deep_perceptron",
    "draw_kept_layers",
    "draw_weights_",
    "fully_connected",
    "glorot_",
    "preactivation_resnet18",
    "small_cnn",
    "thesis_start_",
    "vgg19",
]
