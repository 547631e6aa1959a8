"""Faults of the computation: cut paths, wrong operations, parts that do not train, arithmetic."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from .blocks import After, Attention, Before, InList, WithoutGradients
from .places import NONLINEAR, around, before_nonlinearities, power, put, weighted, wrappable
from .problem import Problem
from .registry import SMALL, Injected, kind

CUT = ("gradient-cut", "unused-parameters")


def _after(problem: Problem, rng: random.Random, operation: Callable[[Tensor], Tensor], size: str) -> Injected | None:
    """Apply an operation to the output of a module that is drawn."""
    paths = wrappable(problem)
    if not paths:
        return None
    path = rng.choice(paths)
    places = around(problem, path)
    put(problem.model, path, After(problem.model.get_submodule(path), operation))
    return Injected(problem, size, places)


@kind(*CUT, structural=True)
def detach(problem: Problem, rng: random.Random) -> Injected | None:
    mode = rng.choice(("detach", ".data"))
    return _after(problem, rng, (lambda x: x.detach()) if mode == "detach" else (lambda x: x.data), mode)


@kind(*CUT, structural=True)
def rebuilt_tensor(problem: Problem, rng: random.Random) -> Injected | None:
    """The path goes through numpy, a list, or a new tensor."""
    ways = {
        "numpy": lambda x: torch.from_numpy(np.maximum(x.detach().numpy(), -10)),
        "list": lambda x: torch.tensor(x.tolist()),
        "stacked items": lambda x: torch.stack([torch.tensor(row.tolist()) for row in x]),
    }
    mode = rng.choice(sorted(ways))
    return _after(problem, rng, ways[mode], mode)


@kind(*CUT, structural=True)
def no_grad_block(problem: Problem, rng: random.Random) -> Injected | None:
    paths = wrappable(problem)
    path = rng.choice(paths)
    places = around(problem, path)
    put(problem.model, path, WithoutGradients(problem.model.get_submodule(path)))
    return Injected(problem, "", places)


@kind("gradient-cut", "zero-gradient", "unused-parameters", structural=True)
def rounding(problem: Problem, rng: random.Random) -> Injected | None:
    """An operation whose derivative is zero everywhere."""
    step = power(rng, 0, 1)
    ways = {"round": lambda x: (x * step).round() / step, "floor": lambda x: (x * step).floor() / step}
    ways |= {"sign": torch.sign, "compare": lambda x: (x > 0).to(x.dtype)}
    mode = rng.choice(sorted(ways))
    return _after(problem, rng, ways[mode], f"{mode}, {step:.2g} levels a unit")


@kind("gradient-cut", "zero-gradient", "unused-parameters", structural=True)
def argmax_path(problem: Problem, rng: random.Random) -> Injected | None:
    return _after(problem, rng, lambda x: nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype), "one-hot")


@kind("non-finite", structural=True)
def nan_operation(problem: Problem, rng: random.Random) -> Injected | None:
    ways = {
        "log of a negative number": torch.log,
        "root of zero": lambda x: x.relu().sqrt(),
        "negative power": lambda x: x.relu().pow(-0.5),
        "zero over zero": lambda x: x / (x - x).norm(dim=-1, keepdim=True),
        "overflow": lambda x: (200 * x).exp(),
        "arc cosine beyond 1": lambda x: (x + 1.01).acos(),
        "mean over nothing": lambda x: x - x[:, :0].mean(),
    }
    mode = rng.choice(sorted(ways))
    return _after(problem, rng, ways[mode], mode)


@kind("vanishing-activations", "constant-output", "vanishing-gradients", "activation-shift")
def softmax_inside(problem: Problem, rng: random.Random) -> Injected | None:
    """A softmax over features between layers."""
    return _after(problem, rng, lambda x: x.softmax(-1), "over features")


@kind("saturated-units", "dead-units", "gradient-cut", "squashed-output", *SMALL)
def clamped(problem: Problem, rng: random.Random) -> Injected | None:
    bound = power(rng, -4, 0)
    low = rng.choice((0.0, -bound))
    return _after(problem, rng, lambda x: x.clamp(low, bound), f"to [{low:.3g}, {bound:.3g}]")


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


@kind("vanishing-gradients", "exploding-gradients", "zero-gradient")
def gradient_scale(problem: Problem, rng: random.Random) -> Injected | None:
    """A function of one's own whose derivative is wrong by a factor."""
    factor = rng.choice((0.0, power(rng, -9, -2), power(rng, 2, 7)))
    found = _after(problem, rng, lambda x: _Scaled.apply(x, factor), f"x {factor:.3g}")
    return found and (replace(found, codes=("zero-gradient", "gradient-cut", "vanishing-gradients")) if factor == 0 else found)  # fmt: skip  # noqa: E501


@kind("mixed-samples", "constant-output", "vanishing-activations", structural=True)
def softmax_over_batch(problem: Problem, rng: random.Random) -> Injected | None:
    size = len(problem.train[0][1])
    return _after(problem, rng, lambda x: x.softmax(0) * size, "over samples")


@kind("mixed-samples", structural=True)
def axes_exchanged(problem: Problem, rng: random.Random) -> Injected | None:
    """Batch and sequence axes mixed up."""
    model, ways = problem.model, []
    for path, module in model.named_modules():
        if isinstance(module, (nn.LSTM, nn.GRU, nn.RNN)):
            ways.append((path, "batch_first"))
        if isinstance(module, Attention):
            ways += [(path, "softmax over the batch"), (path, "transpose"), (path, "reshape")]
        if isinstance(module, nn.MultiheadAttention):
            ways.append((path, "batch_first"))
    if not ways:
        return None
    path, mode = rng.choice(ways)
    module, places = model.get_submodule(path), around(problem, path)
    if mode == "batch_first":
        module.batch_first = False
    elif mode == "softmax over the batch":
        module.axis, module.fill = 0, -1e9
    elif mode == "transpose":
        put(model, path, After(Before(module, lambda x: x.transpose(0, 1)), lambda x: x.transpose(0, 1)))
    else:
        put(model, path, Before(module, lambda x: x.transpose(0, 1).reshape(x.shape)))
    return Injected(problem, mode, places)


@kind("non-finite", "vanishing-activations", "constant-output", "mixed-samples", "no-signal", "does-not-train")
def mask_inverted(problem: Problem, rng: random.Random) -> Injected | None:
    """Attention sees what it should not, and nothing else."""
    modules = [(p, m) for p, m in problem.model.named_modules() if isinstance(m, Attention)]
    if not modules or not (modules[0][1].causal or isinstance(problem.train[0][0], tuple)):
        return None
    fill = rng.choice((-1e9, -float("inf")))
    for _, module in modules:
        module.inverted, module.fill = True, fill

    def heal(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, Attention):
                module.inverted = False

    places = tuple(path for path, _ in modules)
    return Injected(replace(problem, heal=heal), f"filled with {fill:.3g}", places)


@kind("saturated-units", "vanishing-gradients", "degenerate-softmax", "exploding-activations", "zero-gradient")
def attention_scale(problem: Problem, rng: random.Random) -> Injected | None:
    """Scores without 1/√d, or worse."""
    paths = [path for path, m in problem.model.named_modules() if isinstance(m, Attention)]
    if not paths:
        return None
    scale = power(rng, 0, 3)
    for path in paths:
        problem.model.get_submodule(path).scale = scale
    return Injected(problem, f"scores x {scale:.3g}", tuple(paths))


@kind("saturated-units", "vanishing-gradients", "zero-gradient", "exploding-activations")
def saturating_scale(problem: Problem, rng: random.Random) -> Injected | None:
    """A factor before a tanh or sigmoid."""
    pairs = before_nonlinearities(problem, (nn.Tanh, nn.Sigmoid))
    if not pairs:
        return None
    path, after = rng.choice(pairs)
    factor = power(rng, 0.7, 3)
    put(problem.model, after, Before(problem.model.get_submodule(after), lambda x: factor * x))
    return Injected(problem, f"x {factor:.3g}", (after, path))


def _activations(model: nn.Module) -> list[str]:
    return [path for path, m in model.named_modules() if isinstance(m, NONLINEAR)]


@kind("activation-shift", "vanishing-activations", "vanishing-gradients", "constant-output", "saturated-units")
def sigmoid_everywhere(problem: Problem, rng: random.Random) -> Injected | None:
    paths = [p for p in _activations(problem.model) if not isinstance(problem.model.get_submodule(p), nn.Sigmoid)]
    for path in paths:
        put(problem.model, path, nn.Sigmoid())
    return Injected(problem, f"{len(paths)} modules") if paths else None


@kind("linear-network", structural=True)
def no_nonlinearity(problem: Problem, rng: random.Random) -> Injected | None:
    """Linear layers with nothing between them."""
    others = (nn.LayerNorm, nn.GroupNorm, nn.RNNBase, Attention, nn.MultiheadAttention)
    paths = _activations(problem.model)
    if not paths or any(isinstance(m, others) for m in problem.model.modules()):
        return None
    for path in paths:
        put(problem.model, path, nn.Identity())
    return Injected(problem, f"{len(paths)} modules")


@kind("frozen-parameters")
def frozen_module(problem: Problem, rng: random.Random) -> Injected | None:
    paths = [p for p, m in problem.model.named_modules() if p and any(q.requires_grad for q in m.parameters())]
    if not paths:
        return None
    path = rng.choice(paths)
    problem.model.get_submodule(path).requires_grad_(False)
    return Injected(problem, "", (path,))


@kind("frozen-parameters")
def only_norms_train(problem: Problem, rng: random.Random) -> Injected | None:
    """All weights of two axes or more are frozen; biases and gains are left."""
    for path in weighted(problem.model):
        for p in problem.model.get_submodule(path).parameters(recurse=False):
            p.requires_grad_(p.dim() < 2)
    return Injected(problem, "biases and gains are left")


@kind("unregistered-parameters", structural=True)
def unregistered(problem: Problem, rng: random.Random) -> Injected | None:
    model = problem.model
    paths = [p for p in wrappable(problem) if any(q.requires_grad for q in model.get_submodule(p).parameters())]
    if not paths:
        return None
    path = rng.choice(paths)
    put(model, path, InList(model.get_submodule(path)))
    return Injected(problem, "in a plain list", (path,))


@kind("frozen-batch-norm", "training-mode")
def evaluation_batch_norm(problem: Problem, rng: random.Random) -> Injected | None:
    """Batch normalisation in evaluation mode, with the statistics it was built with."""
    norms = [(p, m) for p, m in problem.model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return None
    off, variance = power(rng, -1, 2), power(rng, -2, 4)
    for _, module in norms:
        module.eval()
        module.running_mean.add_(off * torch.randn(module.num_features, generator=torch.Generator().manual_seed(1)))
        module.running_var.mul_(variance)
    return Injected(problem, f"means {off:.3g}, variance {variance:.3g}", tuple(p for p, _ in norms))


@kind("precision", "non-finite")
def low_precision(problem: Problem, rng: random.Random) -> Injected | None:
    """Weights and optimizer state in 16 bits, at a rate of choice."""
    kind_, factor = rng.choice((torch.float16, torch.bfloat16)), rng.choice((1.0, 0.1, 0.03))
    slow = ("precision", "non-finite", "learning-rate-too-low") if factor < 1 else ()
    changed = replace(problem, model=problem.model.to(kind_), rate=problem.rate * factor)
    return Injected(changed, f"{str(kind_)[6:]}, rate x {factor}", codes=slow)
