"""The deep multilayer perceptron of kutsuna2019lcw, section 6.1."""

from collections.abc import Callable
from itertools import pairwise

from torch import Generator, nn
from torch.nn import init

Normalization = Callable[[int], nn.Module]


def deep_perceptron(
    inputs: int,
    classes: int,
    *,
    depth: int = 50,
    width: int = 256,
    activation: Callable[[], nn.Module] = nn.Sigmoid,
    before: Normalization | None = None,
    after: Normalization | None = None,
    generator: Generator | None = None,
) -> nn.Sequential:
    """Equally wide hidden layers between the flattened input and the logits (kutsuna2019lcw, section 6.1).

    A hidden layer is Linear, `before`, activation, `after`. Weights are drawn by Glorot's uniform law, biases are 0.

    Args:
        inputs: entries of a flattened input.
        classes: number of logits.
        depth: hidden layers; the source has 50.
        width: their units; the source has 256.
        activation: makes the nonlinearity.
        before: makes what normalises the preactivations, from the width (batch or layer normalization).
        after: makes what normalises the activations, from the width (the standardization layer).
        generator: source of the draws.

    Returns:
        The network; its layers are called `hidden1`, `hidden2` … and `output`.

    Raises:
        ValueError: depth or width below 1.

    >>> [name for name, _ in deep_perceptron(4, 2, depth=2, width=3).named_children()]
    ['flatten', 'hidden1', 'activation1', 'hidden2', 'activation2', 'output']
    """
    if depth < 1 or width < 1:
        raise ValueError(f"deep_perceptron needs depth and width of at least 1, got depth {depth}, width {width}")
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    for number, (fan_in, fan_out) in enumerate(pairwise([inputs] + [width] * depth), 1):
        model.add_module(f"hidden{number}", nn.Linear(fan_in, fan_out))
        if before is not None:
            model.add_module(f"before{number}", before(fan_out))
        model.add_module(f"activation{number}", activation())
        if after is not None:
            model.add_module(f"after{number}", after(fan_out))
    model.add_module("output", nn.Linear(width, classes))
    glorot_(model, generator=generator)
    return model


def glorot_(model: nn.Module, *, generator: Generator | None = None) -> nn.Module:
    """Glorot's uniform law for the weights of linear and convolutional layers, zero for their biases.

    Args:
        model: changed in place.
        generator: source of the draws.

    Returns:
        The model.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            init.xavier_uniform_(layer.weight, generator=generator)
            if layer.bias is not None:
                init.zeros_(layer.bias)
    return model
