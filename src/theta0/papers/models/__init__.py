"""The networks of the sources' experiments."""

from theta0.papers.models.cifar import cifar_densenet, cifar_resnet, wide_resnet
from theta0.papers.models.imagenet import resnet50, swin_tiny
from theta0.papers.models.normalisation import ChannelBias, kaiming_start_
from theta0.papers.models.thesis import ThesisResNet, draw_kept_layers, thesis_start_

__all__ = [
    "ChannelBias",
    "ThesisResNet",
    "cifar_densenet",
    "cifar_resnet",
    "draw_kept_layers",
    "kaiming_start_",
    "resnet50",
    "swin_tiny",
    "thesis_start_",
    "wide_resnet",
]
