"""Random residual nets of furusho2020thesis, eqs. 12-14 and 26, many at once, in float64: the route beside the theory.

Signals come from the forward pass and from autograd; the trace of a net's Fisher matrix is the mean over inputs of
Σ_l |δˡ|²|uˡ|², because a weight matrix's gradient is the outer product of the two.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Simulated:
    means: Tensor  # nets: mean eigenvalue of each net
    forward: Tensor  # nets x (L + 1): E_x,j of u²
    backward: Tensor  # nets x (L + 1): E_x,i of δ²


def drops(nets, depth, p, dropping, generator):
    if dropping is None:
        return torch.ones(nets, depth, dtype=torch.float64)
    uniform = torch.rand(nets, depth, generator=generator, dtype=torch.float64)
    if dropping == "bernoulli":
        return (uniform < p).double()
    return (uniform.argsort(dim=1).argsort(dim=1) < round(p * depth)).double()


def simulate(depth, width, nets, inputs, generator, *, gate="relu", dropping=None, p=1.0, divisor=None):
    """`gate="coin"` is Assumptions 1 and 2 to the letter: units active by fair coins, whatever their input.

    `divisor`: None; "batch", normalise by batch statistics held constant; "lemma", divide by √l, as in the proof.
    """

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = normal(nets, inputs, width)
    h = (x @ normal(nets, width, width).mT / width**0.5).requires_grad_()
    hidden, signals = [h], [x]
    beta = drops(nets, depth, p, dropping, generator)
    for layer in range(depth):
        z = h
        if divisor == "batch":
            z = (h - h.detach().mean(1, keepdim=True)) / h.detach().std(1, keepdim=True, correction=0)
        if divisor == "lemma":
            z = h / (layer + 1) ** 0.5
        coins = torch.rand(z.shape, generator=generator, dtype=torch.float64) < 0.5
        u = beta[:, layer, None, None] * (z.relu() if gate == "relu" else z * coins)
        h = u @ normal(nets, width, width).mT * (2 / width) ** 0.5 + h
        hidden.append(h)
        signals.append(u)
    errors = torch.autograd.grad(h.sum(), hidden)
    u2 = torch.stack([u.detach().square().sum(-1) for u in signals])
    d2 = torch.stack([d.square().sum(-1) for d in errors])
    means = (u2 * d2).sum(0).mean(1) / ((depth + 1) * width**2)
    return Simulated(means, u2.mean(2).T / width, d2.mean(2).T / width)


def z_score(sample, expected):
    """Distance of the mean of a sample (nets first) from the expected value in standard errors."""
    error = sample.std(0) / len(sample) ** 0.5
    return (sample.mean(0) - torch.as_tensor(expected, dtype=torch.float64)) / error.clamp_min(1e-12)
