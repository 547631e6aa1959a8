"""The loss and its gradient under the Gram-Cholesky route are distributed as under drawn weights."""

import math

import pytest
import torch
from torch import nn
from torch.func import grad_and_value, vmap
from torch.nn import functional as F

from theta0._state import twice_differentiable
from theta0.measurements.degeneracy import degenerate_loss
from theta0.measurements.perturbed_outputs import neighbourhood, sampled
from theta0.measurements.simplex_discrepancy import discrepancy

DRAWS, PERTURBATIONS, SAMPLES, CLASSES, DIRECTIONS = 2000, 48, 3, 2, 20
SCALE = 1.0


def perceptron():
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(3, CLASSES),
    )  # fmt: skip


def plain_perceptron(p, x):
    x = F.relu(x @ p["0.weight"].T + p["0.bias"])
    return torch.tanh(x @ p["2.weight"].T + p["2.bias"]) @ p["4.weight"].T + p["4.bias"]


def plain_convolutional(p, x):
    x = F.max_pool2d(F.relu(F.conv2d(x, p["0.weight"], p["0.bias"], padding=1)), 2)
    return F.relu(F.conv2d(x, p["3.weight"], p["3.bias"])).flatten(1) @ p["6.weight"].T + p["6.bias"]


NETWORKS = {
    "perceptron": (perceptron, plain_perceptron, (5,)),
    "convolutional": (convolutional, plain_convolutional, (2, 4, 4)),
}


def plain_discrepancy(v, u):
    """MMD² of one sample by definition: every pair, every bandwidth."""
    both = torch.cat([v, u])
    squares = (both[:, None] - both[None]).square().sum(-1)
    n = len(both)
    pairs = torch.triu_indices(n, n, 1)
    median = squares.detach()[pairs[0], pairs[1]].median()
    kernel = sum(torch.exp(-squares / (2 * 4.0**i * median)) for i in range(-4, 5))
    p, off = len(v), 1 - torch.eye(len(v), dtype=v.dtype)
    inner, outer = ((part * off).sum() / (p * (p - 1)) for part in (kernel[:p, :p], kernel[p:, p:]))
    return inner + outer - 2 * kernel[:p, p:].mean()


def plain_loss(parameters, noise, uniform, forward, inputs):
    def one(draw):
        return forward({name: p + draw[name] for name, p in parameters.items()}, inputs).softmax(-1)

    outputs = vmap(one)(noise)
    uniformity = vmap(plain_discrepancy)(outputs.transpose(0, 1), uniform).mean()
    distance = torch.stack([
        (outputs - F.one_hot(torch.tensor(i), CLASSES)).square().sum(-1).sqrt().mean(1) for i in range(CLASSES)
    ]).amax(0)  # fmt: skip
    return uniformity + 0.4 * (distance - CLASSES**-0.5).clamp_min(0).mean()


def explicit_draws(network, bias_error=1.0):
    """Losses and projected gradients with every weight drawn, many draws at a time."""
    model, directions, inputs = problem(network)
    forward = NETWORKS[network][1]
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(5)
    compute = vmap(grad_and_value(plain_loss), in_dims=(None, 0, 0, None, None))
    found = []
    for _ in range(DRAWS // 50):
        noise = {}
        for name, p in parameters.items():
            fan = p[0].numel() if p.dim() > 1 else p.numel()
            deviation = SCALE / math.sqrt(fan) * (bias_error if p.dim() == 1 else 1.0)
            noise[name] = deviation * torch.randn(50, PERTURBATIONS, *p.shape, generator=generator, dtype=p.dtype)
        e = -torch.rand(50, SAMPLES, PERTURBATIONS, CLASSES, generator=generator, dtype=torch.float64).log()
        gradients, losses = compute(parameters, noise, e / e.sum(-1, keepdim=True), forward, inputs)
        flat = torch.cat([gradients[name].flatten(1) for name in parameters], 1)
        found.append(torch.cat([losses[:, None], flat @ directions], 1))
    return torch.cat(found)


def gram_draws(network):
    model, directions, inputs = problem(network)
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(11)
    found = []
    with twice_differentiable(model):
        around = neighbourhood(model, inputs, SCALE)
        for draw in range(DRAWS):
            outputs = sampled(around, inputs, torch.arange(PERTURBATIONS) + PERTURBATIONS * draw, prefer="gram")
            assert set(outputs.routes.values()) == {"gram"}
            probabilities = outputs.logits.softmax(-1)
            e = -torch.rand(SAMPLES, PERTURBATIONS, CLASSES, generator=generator, dtype=torch.float64).log()
            uniformity = discrepancy(probabilities.transpose(0, 1), e / e.sum(-1, keepdim=True)).mean()
            loss = uniformity + 0.4 * degenerate_loss(probabilities)
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
            found.append(torch.cat([loss.detach()[None], gradient @ directions]))
    return torch.stack(found)


def problem(network):
    build, _, shape = NETWORKS[network]
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = build().double()
    generator = torch.Generator().manual_seed(3)
    inputs = 0.2 * torch.randn(SAMPLES, *shape, generator=generator, dtype=torch.float64)
    size = sum(p.numel() for p in model.parameters())
    directions = torch.randn(size, DIRECTIONS, generator=generator, dtype=torch.float64) / math.sqrt(size)
    return model, directions, inputs


def z_scores(one, other):
    spread = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    return (one.mean(0) - other.mean(0)) / spread


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_gram_route_agrees_with_drawn_weights_and_a_planted_error_does_not(network):
    ours = gram_draws(network)
    honest = z_scores(ours, explicit_draws(network)).abs()
    planted = z_scores(ours, explicit_draws(network, bias_error=1.05)).abs()
    assert float(honest.max()) < 4
    assert float(planted.max()) > 4
