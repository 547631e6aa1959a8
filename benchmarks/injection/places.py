"""Where in a network a fault can be put."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .problem import Problem, called

NONLINEAR = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.GELU, nn.Tanh, nn.Sigmoid)
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replace a module."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def weighted(model: nn.Module) -> list[str]:
    """Paths of modules that own a trained weight of two axes or more."""

    def trains(module: nn.Module) -> bool:
        return any(p.requires_grad and p.dim() > 1 for p in module.parameters(recurse=False))

    return [path for path, module in model.named_modules() if path and trains(module)]


def executed(problem: Problem) -> list[tuple[str, bool]]:
    """Modules in the order in which they end, and whether they return one floating tensor of rank 2 or more."""
    order: list[tuple[str, bool]] = []

    def hook(path: str) -> Callable[..., None]:
        def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
            floating = isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 1
            order.append((path, floating))

        return note

    handles = [m.register_forward_hook(hook(path)) for path, m in problem.model.named_modules() if path]
    state = {key: value.clone() for key, value in problem.model.state_dict().items()}
    with torch.no_grad():
        called(problem.model, problem.train[0][0])
    problem.model.load_state_dict(state)
    for handle in handles:
        handle.remove()
    return order


def wrappable(problem: Problem) -> list[str]:
    """Modules whose output an operation can be applied to; adapters' frozen bases are left out."""
    found = dict.fromkeys(path for path, floating in executed(problem) if floating)
    return [path for path in found if not path.endswith(".base")]


def around(problem: Problem, path: str) -> tuple[str, ...]:
    """The module, and the leaf directly after it where that one has no weights: both are right as the place."""
    model = problem.model
    leaves = [p for p, _ in executed(problem) if not list(model.get_submodule(p).children())]
    inside = [i for i, p in enumerate(leaves) if p == path or p.startswith(path + ".")]
    after = leaves[inside[-1] + 1 : inside[-1] + 2] if inside else []
    after = [p for p in after if not list(model.get_submodule(p).parameters())]
    return (path, *after)


def before_nonlinearities(problem: Problem, kinds: tuple[type[nn.Module], ...]) -> list[tuple[str, str]]:
    """(leaf, nonlinearity) pairs in which the nonlinearity of one of the kinds ends directly after the leaf."""
    model = problem.model
    leaves = [p for p, _ in executed(problem) if not list(model.get_submodule(p).children())]
    pairs = itertools.pairwise(leaves)
    return [(a, b) for a, b in pairs if isinstance(model.get_submodule(b), kinds)]


def main_weight(module: nn.Module, rng: random.Random) -> nn.Parameter:
    """One of a module's own weights of two axes or more."""
    return rng.choice([p for p in module.parameters(recurse=False) if p.requires_grad and p.dim() > 1])


def power(rng: random.Random, low: float, high: float) -> float:
    """Ten to a uniform exponent."""
    return 10 ** rng.uniform(low, high)
