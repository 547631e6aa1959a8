"""The networks of kutsuna2019lcw against published parameter counts, and their equations written out."""

import pytest
import torch
from torch import nn

from theta0.papers.models import deep_perceptron, preactivation_resnet18, vgg19


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def test_vgg19_has_torchvision_s_convolutions_and_dense_layers():
    """torchvision's vgg19_bn: 143,678,248 parameters, and vgg19 (no BN at all): 143,667,240."""
    with torch.device("meta"):
        model = vgg19(1000, dense=4096, size=224)
    dense_norms = [layer for layer in model.classifier if isinstance(layer, nn.BatchNorm1d)]
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert count(model) - count(*dense_norms) == 143_678_248
    assert count(model) - count(*norms) == 143_667_240
    assert len([m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]) == 19
    assert len([m for m in model.modules() if isinstance(m, nn.ReLU)]) == len(norms) == 18


def test_resnet18_has_the_published_count_for_small_images():
    """The widely used pre-activation ResNet18 for CIFAR-10: 11,172,170 with the last normalization."""
    with torch.device("meta"):
        model = preactivation_resnet18(10)
    assert count(model) == 11_172_170
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    # torchvision's resnet18: 11,689,512 in all, of which 513,000 in the classifier, 9,600 in BN; its stem is 7 × 7
    assert count(*convolutions) == 11_689_512 - 513_000 - 9_600 - 64 * 3 * (49 - 9)


@pytest.mark.parametrize("make", [vgg19, preactivation_resnet18])
@pytest.mark.parametrize("size", [8, 28, 32])
def test_shapes_and_width(make, size):
    options = {"size": size} if make is vgg19 else {}
    model = make(7, channels=1, width=1 / 16, generator=torch.Generator().manual_seed(0), **options)
    x = torch.randn(3, 1, size, size, generator=torch.Generator().manual_seed(1))
    assert model(x).shape == (3, 7)
    again = make(7, channels=1, width=1 / 16, generator=torch.Generator().manual_seed(0), **options)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="without units"):
        make(width=1 / 1000)


def test_residual_units_are_full_preactivation():
    """With zero second convolutions the stream passes unchanged; the network is then linear in its shortcuts only."""
    model = preactivation_resnet18(3, channels=2, width=1 / 16).double().eval()
    unit = model[1]
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        unit.conv2.weight.zero_()
    assert torch.equal(unit(x), x)
    strided = model[3]
    with torch.no_grad():
        strided.conv2.weight.zero_()
        expected = torch.einsum("oi,nihw->nohw", strided.shortcut.weight[:, :, 0, 0], (x / (1 + 1e-5) ** 0.5).relu())
    torch.testing.assert_close(strided(x), expected[:, :, ::2, ::2])


def test_deep_perceptron_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    model = deep_perceptron(6, 3, depth=4, width=5, generator=generator).double()
    x = torch.randn(7, 2, 3, dtype=torch.float64, generator=generator)
    a = x.flatten(1)
    parameters = [p for p in model.parameters()]
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        a = 1 / (1 + torch.exp(-(a @ weight.T + bias)))
    torch.testing.assert_close(model(x), a @ parameters[-2].T + parameters[-1])


def test_deep_perceptron_of_the_source():
    with torch.device("meta"):
        model = deep_perceptron(3072, 10)
        normal = deep_perceptron(3072, 10, before=nn.BatchNorm1d, after=nn.LayerNorm)
    assert count(model) == 3072 * 256 + 256 + 49 * (256 * 256 + 256) + 2570
    assert count(normal) == count(model) + 2 * 50 * 2 * 256
    kinds = [type(layer).__name__ for layer in normal][1:5]
    assert kinds == ["Linear", "BatchNorm1d", "Sigmoid", "LayerNorm"]
    bound = (6 / 512) ** 0.5
    weight = deep_perceptron(4, 2, depth=2, generator=torch.Generator().manual_seed(0)).hidden2.weight
    assert 0.99 * bound < weight.abs().max() <= bound
    with pytest.raises(ValueError, match="depth 0"):
        deep_perceptron(4, 2, depth=0)
