"""The networks of the sources' experiments."""

from theta0.papers.models.autoencoder import LineAutoencoder, trained_autoencoder
from theta0.papers.models.cifar import cifar_densenet, cifar_resnet, wide_resnet
from theta0.papers.models.convolutional import preactivation_resnet18, vgg19
from theta0.papers.models.fully_connected import Draw, draw_weights_, fully_connected
from theta0.papers.models.imagenet import resnet50, swin_tiny
from theta0.papers.models.normalisation import ChannelBias, kaiming_start_
from theta0.papers.models.perceptron import deep_perceptron, glorot_, he_perceptron
from theta0.papers.models.small_convolutional import small_cnn
from theta0.papers.models.thesis import ThesisResNet, draw_kept_layers, thesis_start_

__all__ = [
    "ChannelBias",
    "Draw",
    "LineAutoencoder",
    "ThesisResNet",
    "cifar_densenet",
    "cifar_resnet",
    "deep_perceptron",
    "draw_kept_layers",
    "draw_weights_",
    "fully_connected",
    "glorot_",
    "he_perceptron",
    "kaiming_start_",
    "preactivation_resnet18",
    "resnet50",
    "small_cnn",
    "swin_tiny",
    "thesis_start_",
    "trained_autoencoder",
    "vgg19",
    "wide_resnet",
]
