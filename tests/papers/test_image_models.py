"""The networks of yang2022nio: published numbers of parameters, shapes, and BN replaced by biases."""

import pytest
import torch
from torch import nn

from theta0.papers.models import ChannelBias, cifar_densenet, cifar_resnet, resnet50, swin_tiny, wide_resnet


def millions(build) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in build().parameters()) / 1e6


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("build", "published"),
    [
        # he2016resnet, Table 6.
        (lambda: cifar_resnet(20), 0.27),
        (lambda: cifar_resnet(32), 0.46),
        (lambda: cifar_resnet(44), 0.66),
        (lambda: cifar_resnet(56), 0.85),
        (lambda: cifar_resnet(110), 1.7),
        # zagoruyko2016wrn, Tables 4 and 5.
        (lambda: wide_resnet(40, 1), 0.6),
        (lambda: wide_resnet(40, 4), 8.9),
        (lambda: wide_resnet(16, 8), 11.0),
        (lambda: wide_resnet(22, 8), 17.2),
        (lambda: wide_resnet(28, 10), 36.5),
        (lambda: wide_resnet(28, 12), 52.5),
        # huang2017densenet, Table 2.
        (lambda: cifar_densenet(40, 12, bottleneck=False), 1.0),
        (lambda: cifar_densenet(100, 12, bottleneck=False), 7.0),
        (lambda: cifar_densenet(100, 24, bottleneck=False), 27.2),
        (lambda: cifar_densenet(100, 12), 0.8),
        (lambda: cifar_densenet(250, 24), 15.3),
        (lambda: cifar_densenet(190, 40), 25.6),
    ],
)
def test_published_numbers_of_parameters(build, published):
    digits = len(str(published).partition(".")[2])
    assert round(millions(build), digits) == published


def test_numbers_of_parameters_on_imagenet():
    """torchvision's published numbers."""
    assert millions(resnet50) * 1e6 == 25_557_032
    assert millions(swin_tiny) * 1e6 == 28_288_354


@pytest.mark.parametrize("batch_norm", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        lambda **o: cifar_resnet(8, width=4, **o),
        lambda **o: wide_resnet(10, 1, **o),
        lambda **o: cifar_densenet(10, 4, **o),
        lambda **o: cifar_densenet(7, 4, bottleneck=False, **o),
    ],
)
def test_small_ones_run_with_and_without_normalisation(build, batch_norm):
    model = build(batch_norm=batch_norm, classes=7, channels=1, generator=torch.Generator().manual_seed(0))
    again = build(batch_norm=batch_norm, classes=7, channels=1, generator=torch.Generator().manual_seed(0))
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert model(x).shape == (3, 7)
    assert torch.equal(model(x), again(x))
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    biases = [m for m in model.modules() if isinstance(m, ChannelBias)]
    assert bool(norms) == batch_norm
    assert bool(biases) != batch_norm
    # A bias for each BN: the networks differ by BN's scales alone.
    other = build(batch_norm=not batch_norm, classes=7, channels=1)
    difference = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in other.parameters())
    scales = sum(m.num_features for m in [*model.modules(), *other.modules()] if isinstance(m, nn.BatchNorm2d))
    assert abs(difference) == scales


def test_the_kaiming_start_has_its_variance_in_every_layer():
    model = cifar_resnet(20, batch_norm=False, generator=torch.Generator().manual_seed(0))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module.weight.numel() > 2000:
            fan_in = module.weight[0].numel()
            assert float(module.weight.detach().var()) == pytest.approx(2 / fan_in, rel=0.15)


def test_swins_shifted_windows_attend_to_neighbours_and_not_across_edges():
    model = swin_tiny(classes=5, generator=torch.Generator().manual_seed(0))
    block = model.stages[1]  # shifted by 3
    x = torch.randn(1, 14, 14, 96, generator=torch.Generator().manual_seed(1), requires_grad=True)
    reached = torch.autograd.grad(block(x)[0, 5, 5].sum(), x)[0][0].abs().sum(-1) > 0
    assert reached.nonzero().tolist() == [[i, j] for i in range(3, 10) for j in range(3, 10)]
    corner = torch.autograd.grad(block(x)[0, 0, 0].sum(), x)[0][0].abs().sum(-1) > 1e-12
    assert corner.nonzero().tolist() == [[i, j] for i in range(3) for j in range(3)]


@pytest.mark.slow
def test_the_networks_of_imagenet_run():
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    assert resnet50(classes=4)(x).shape == (2, 4)
    assert swin_tiny(classes=4)(x).shape == (2, 4)


@pytest.mark.parametrize("build", [lambda: cifar_resnet(21), lambda: wide_resnet(9), lambda: cifar_densenet(4)])
def test_depths_that_do_not_exist(build):
    with pytest.raises(ValueError, match=r"depth: expected 6n \+ \d"):
        build()
