"""Faults of the starting values."""

import random
from dataclasses import replace

import torch
from torch import nn

from .blocks import Block, Residual
from .places import NORMS, around, before_nonlinearities, main_weight, power, weighted
from .problem import Problem, called
from .registry import LARGE, SMALL, Injected, kind


@torch.no_grad()
def _one(problem: Problem, rng: random.Random, change, size: str) -> Injected | None:
    """Change one weight of one module, drawn among those that are trained."""
    paths = weighted(problem.model)
    if not paths:
        return None
    path = rng.choice(paths)
    weight = main_weight(problem.model.get_submodule(path), rng)
    change(weight)
    return Injected(problem, size, around(problem, path), single=True)


@kind(*LARGE, "dead-units", "degenerate-softmax", "squashed-output", "learning-rate-too-low")
def weight_scale_up(problem: Problem, rng: random.Random) -> Injected | None:
    factor = power(rng, 0.5, 3)
    return _one(problem, rng, lambda w: w.mul_(factor), f"x {factor:.3g}")


@kind(*SMALL, "exploding-gradients", "learning-rate-too-high", "activation-shift")
def weight_scale_down(problem: Problem, rng: random.Random) -> Injected | None:
    factor = power(rng, -5, -0.5)
    return _one(problem, rng, lambda w: w.mul_(factor), f"x {factor:.3g}")


@kind("activation-shift", *SMALL, *LARGE, "dead-units", "identical-units")
def weight_shift(problem: Problem, rng: random.Random) -> Injected | None:
    shift = power(rng, 0, 2) * rng.choice((-1, 1))
    return _one(problem, rng, lambda w: w.add_(shift * w.std()), f"mean {shift:.3g} standard deviations")


@kind("identical-units", "activation-shift", *SMALL, *LARGE, "dead-units")
def constant_fill(problem: Problem, rng: random.Random) -> Injected | None:
    value = rng.choice((-1, 0, 1)) * power(rng, -3, 0)
    return _one(problem, rng, lambda w: w.fill_(value), f"all {value:.3g}")


@kind("identical-units")
def copied_units(problem: Problem, rng: random.Random) -> Injected | None:
    share = rng.uniform(0.5, 1)

    def copy(w: torch.Tensor) -> None:
        count = max(2, round(share * len(w)))
        w[:count] = w[:1].clone()

    return _one(problem, rng, copy, f"{share:.0%} of the units")


@kind("dead-units", *SMALL)
@torch.no_grad()
def dead_bias(problem: Problem, rng: random.Random) -> Injected | None:
    pairs = before_nonlinearities(problem, (nn.ReLU, nn.ReLU6))
    pairs = [pair for pair in pairs if isinstance(getattr(problem.model.get_submodule(pair[0]), "bias", None), nn.Parameter)]  # fmt: skip  # noqa: E501
    if not pairs:
        return None
    path, after = rng.choice(pairs)
    shift = -power(rng, 0, 1.5)
    problem.model.get_submodule(path).bias.add_(shift)
    return Injected(problem, f"{shift:.3g}", (path, after), single=True)


@kind(*SMALL)
@torch.no_grad()
def norm_gain(problem: Problem, rng: random.Random) -> Injected | None:
    """The gain of one normalisation near zero."""
    paths = [path for path, m in problem.model.named_modules() if isinstance(m, NORMS)]
    if not paths:
        return None
    path = rng.choice(paths)
    factor = rng.choice((0.0, power(rng, -6, -2)))
    problem.model.get_submodule(path).weight.mul_(factor)
    return Injected(problem, f"x {factor:.3g}", around(problem, path), single=True)


def _all(problem: Problem) -> list[nn.Parameter]:
    modules = [problem.model.get_submodule(path) for path in weighted(problem.model)]
    return [p for m in modules if not isinstance(m, nn.Embedding) for p in m.parameters(recurse=False) if p.dim() > 1]


@kind(*LARGE, *SMALL, "activation-shift", "dead-units")
@torch.no_grad()
def wrong_fan(problem: Problem, rng: random.Random) -> Injected | None:
    """Every weight drawn with a variance from the wrong number of connections."""
    mode = rng.choice(("1/fan", "fan_out without groups", "kernel only", "standard deviation for variance"))
    for w in _all(problem):
        area = w[0, 0].numel()
        fan_in, fan_out = w[0].numel(), w.shape[0] * area
        fans = {"1/fan": 1 / fan_in, "fan_out without groups": (2 / fan_out) ** 0.5}
        fans |= {"kernel only": (2 / area) ** 0.5, "standard deviation for variance": (2 / fan_in) ** 0.25}
        w.normal_(0, fans[mode])
    return Injected(problem, mode)


@kind("activation-shift", *LARGE, *SMALL, "dead-units")
@torch.no_grad()
def positive_weights(problem: Problem, rng: random.Random) -> Injected | None:
    high = power(rng, -2, 0)
    for w in _all(problem):
        w.uniform_(0, high)
    return Injected(problem, f"uniform on (0, {high:.3g})")


@kind(*LARGE, "dead-units", "degenerate-softmax", "squashed-output", "learning-rate-too-high")
@torch.no_grad()
def all_large(problem: Problem, rng: random.Random) -> Injected | None:
    deviation = power(rng, -0.3, 1)
    for w in _all(problem):
        w.normal_(0, deviation)
    return Injected(problem, f"standard deviation {deviation:.3g}")


@kind(*SMALL, "exploding-gradients", "activation-shift")
@torch.no_grad()
def all_small(problem: Problem, rng: random.Random) -> Injected | None:
    deviation = power(rng, -5, -1.5)
    for w in _all(problem):
        w.normal_(0, deviation)
    return Injected(problem, f"standard deviation {deviation:.3g}")


@kind("zero-gradient", *SMALL, "identical-units")
@torch.no_grad()
def zero_factors(problem: Problem, rng: random.Random) -> Injected | None:
    """Two modules in a row are zero, so that neither gets a gradient."""
    paths = weighted(problem.model)
    if len(paths) < 2:
        return None
    start = rng.randrange(len(paths) - 1)
    for path in paths[start : start + 2]:
        for p in problem.model.get_submodule(path).parameters(recurse=False):
            p.zero_()
    return Injected(problem, "two in a row", (*around(problem, paths[start]), *around(problem, paths[start + 1])))


@kind("exploding-activations", "initial-loss", "exploding-gradients", "saturated-units", "vanishing-gradients")
@torch.no_grad()
def residual_scale(problem: Problem, rng: random.Random) -> Injected | None:
    """The last weight of every residual branch is too large."""
    factor, found = power(rng, 0.3, 2), []
    for module in problem.model.modules():
        if isinstance(module, Residual):
            found.append(module.branch)
        elif isinstance(module, Block):
            found += [module.attention, module.mlp]
        elif isinstance(module, nn.TransformerEncoderLayer):
            found.append(module.linear2)
    for branch in found:
        last = [p for p in branch.parameters() if p.dim() > 1 or isinstance(branch, nn.Linear)][-1]
        last.mul_(factor)
    return Injected(problem, f"x {factor:.3g}") if found else None


@kind(*LARGE, "degenerate-softmax", "learning-rate-too-low", "activation-shift")
@torch.no_grad()
def embedding_scale(problem: Problem, rng: random.Random) -> Injected | None:
    """Embeddings (and what is tied to them) drawn too large."""
    paths = [path for path, m in problem.model.named_modules() if isinstance(m, nn.Embedding)]
    if not paths:
        return None
    path, deviation = rng.choice(paths), power(rng, 0, 2)
    problem.model.get_submodule(path).weight.normal_(0, deviation)
    return Injected(problem, f"standard deviation {deviation:.3g}", around(problem, path), single=True)


@kind("saturated-units", "vanishing-gradients", "exploding-gradients", "initial-loss", "exploding-activations")
@torch.no_grad()
def head_offset(problem: Problem, rng: random.Random) -> Injected | None:
    """The bias of the last layer is far off."""
    paths = [p for p in weighted(problem.model) if isinstance(getattr(problem.model.get_submodule(p), "bias", None), nn.Parameter)]  # fmt: skip  # noqa: E501
    outputs = called(problem.model, problem.train[0][0])
    if not paths or isinstance(outputs, tuple) or problem.task not in ("classes", "tokens", "binary", "regression"):
        return None
    layer, size = problem.model.get_submodule(paths[-1]), power(rng, 1, 3)
    layer.bias.add_(size * torch.randn(layer.bias.shape, generator=torch.Generator().manual_seed(rng.randrange(2**31))))
    return Injected(replace(problem), f"spread {size:.3g}", around(problem, paths[-1]), single=True)
