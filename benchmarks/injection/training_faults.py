"""Faults of the loss, the data, the optimizer and its rate."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .places import power
from .problem import Problem, called, value_of
from .registry import LARGE, SMALL, Injected, kind


def _classes(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)


def _with_loss(problem: Problem, loss: Callable[[Any, Any], Tensor], size: str = "") -> Injected:
    return Injected(replace(problem, loss=loss), size)


@kind("squashed-output", "loss-mismatch", structural=True)
def softmax_twice(problem: Problem, rng: random.Random) -> Injected | None:
    """Cross-entropy of probabilities."""
    if problem.task not in ("classes", "tokens"):
        return None
    return _with_loss(problem, lambda o, t: F.cross_entropy(*_classes(o.softmax(-1), t)))


@kind("squashed-output", "loss-mismatch", structural=True)
def sigmoid_twice(problem: Problem, rng: random.Random) -> Injected | None:
    if problem.task == "binary":
        return _with_loss(problem, lambda o, t: F.binary_cross_entropy_with_logits(o.sigmoid(), t))
    return _with_loss(problem, lambda o, t: F.cross_entropy(*_classes(o.sigmoid(), t))) if problem.task == "classes" else None  # fmt: skip  # noqa: E501


@kind("squashed-output", "dead-units", "loss-mismatch", structural=True)
def rectified_output(problem: Problem, rng: random.Random) -> Injected | None:
    """A nonlinearity on outputs that should have none."""
    if problem.task == "other":
        return None
    mode = rng.choice(("relu", "sigmoid", "tanh") if problem.task == "regression" else ("relu", "tanh"))
    loss = problem.loss
    bent: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}
    changed = replace(problem, loss=lambda o, t: value_of(loss, bent[mode](o), t), undo=bent[mode])
    return Injected(changed, mode)


@kind("loss-mismatch", structural=True)
def nll_without_log(problem: Problem, rng: random.Random) -> Injected | None:
    if problem.task not in ("classes", "tokens"):
        return None
    if rng.random() < 0.5:
        return _with_loss(problem, lambda o, t: F.nll_loss(*_classes(o, t)), "of logits")
    return _with_loss(problem, lambda o, t: F.nll_loss(*_classes(o.softmax(-1), t)), "of probabilities")


@kind("loss-mismatch", structural=True)
def squared_error_on_labels(problem: Problem, rng: random.Random) -> Injected | None:
    """The class number as a regression target of the largest logit, or of every logit."""
    if problem.task != "classes":
        return None
    if rng.random() < 0.5:
        return _with_loss(problem, lambda o, t: (o.amax(-1) - t).square().mean(), "largest logit")
    return _with_loss(problem, lambda o, t: (o - t.unsqueeze(-1)).square().mean(), "every logit")


@kind("loss-mismatch", "does-not-train", structural=True)
def negated_loss(problem: Problem, rng: random.Random) -> Injected | None:
    loss = problem.loss
    return _with_loss(problem, lambda o, t: -value_of(loss, o, t))


@kind("learning-rate-too-high", "loss-mismatch", "exploding-gradients", "initial-loss")
def loss_scale_up(problem: Problem, rng: random.Random) -> Injected | None:
    loss, factor = problem.loss, power(rng, 1.5, 7)
    return _with_loss(problem, lambda o, t: factor * value_of(loss, o, t), f"x {factor:.3g}")


@kind("learning-rate-too-low", "loss-mismatch", "vanishing-gradients", "precision")
def loss_scale_down(problem: Problem, rng: random.Random) -> Injected | None:
    loss, factor = problem.loss, power(rng, -12, -1.5)
    return _with_loss(problem, lambda o, t: factor * value_of(loss, o, t), f"x {factor:.3g}")


@kind("broadcast-loss", structural=True)
def broadcast(problem: Problem, rng: random.Random) -> Injected | None:
    """(N, 1) against (N,)."""
    if problem.task != "regression" or problem.train[0][1].dim() != 2 or problem.train[0][1].shape[1] != 1:
        return None
    loss = F.mse_loss if problem.loss == "mse" else F.l1_loss
    return _with_loss(problem, lambda o, t: loss(*torch.broadcast_tensors(o, t.squeeze(1))), "(N, 1) and (N,)")


@kind("loss-terms", "learning-rate-too-high")
def dwarfing_term(problem: Problem, rng: random.Random) -> Injected | None:
    """A second term of the loss that outweighs the first."""
    if problem.task == "other":
        return None
    loss, weight = problem.loss, power(rng, -1, 5)
    mode = rng.choice(("size", "spread"))

    def term(o: Tensor) -> Tensor:
        return o.square().mean() if mode == "size" else (o - o.mean(0)).square().mean()

    return _with_loss(problem, lambda o, t: value_of(loss, o, t) + weight * term(o), f"{mode} of outputs x {weight:.3g}")  # fmt: skip  # noqa: E501


@kind("non-finite", structural=True)
def nan_in_loss(problem: Problem, rng: random.Random) -> Injected | None:
    if problem.task == "other":
        return None
    loss = problem.loss
    terms: dict[str, Callable[[Tensor], Tensor]] = {
        "root of zero": lambda o: (o - o.detach()).square().sum().sqrt(),
        "log of zero": lambda o: 1e-3 * o.relu().log().mean(),
        "log of a negative number": lambda o: 1e-3 * (o - o.amax() - 1e-3).log().mean(),
        "standard deviation of one": lambda o: 1e-3 * o.flatten()[:1].std(),
        "power of zero": lambda o: (o - o.detach()).abs().pow(0.5).sum(),
    }
    mode = rng.choice(sorted(terms))
    return _with_loss(problem, lambda o, t: value_of(loss, o, t) + terms[mode](o), mode)


def _on_targets(problem: Problem, change: Callable[[Tensor], Tensor]) -> Problem:
    return replace(problem, train=[(x, change(t)) for x, t in problem.train])


@kind("target-scale", "initial-loss")
def target_scale(problem: Problem, rng: random.Random) -> Injected | None:
    """Regression targets far from the outputs' range."""
    if problem.task != "regression":
        return None
    factor, offset = rng.choice(((power(rng, 1, 4), 0.0), (1.0, power(rng, 1, 4) * rng.choice((-1, 1))), (power(rng, -5, -1), 0.0)))  # fmt: skip  # noqa: E501
    changed = _on_targets(problem, lambda t: factor * t + offset)
    return Injected(replace(changed, undo=lambda o: (o - offset) / factor), f"x {factor:.3g} {offset:+.3g}")


@kind("loss-mismatch", "target-scale", structural=True)
def binary_targets_out_of_range(problem: Problem, rng: random.Random) -> Injected | None:
    if problem.task != "binary":
        return None
    scale, shift = rng.choice(((255.0, 0.0), (2.0, -1.0), (1.0, 1.0), (100.0, 0.0)))
    return Injected(_on_targets(problem, lambda t: scale * t + shift), f"x {scale} {shift:+}")


@kind("no-signal", "loss-mismatch", "target-scale", structural=True)
def labels_equal(problem: Problem, rng: random.Random) -> Injected | None:
    if problem.task == "other":
        return None
    index = rng.randrange(len(problem.train[0][1]))
    one = problem.train[0][1][index : index + 1].clone()
    return Injected(_on_targets(problem, lambda t: one.expand_as(t).contiguous()), "all as one sample's")


@kind("no-signal", "does-not-train", structural=True)
def targets_shuffled(problem: Problem, rng: random.Random) -> Injected | None:
    """Targets no longer belong to their inputs."""
    if problem.task == "other":
        return None
    mode = rng.choice(("permuted", "rolled by one", "reversed"))
    t = torch.cat([t for _, t in problem.train])
    order = torch.randperm(len(t), generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    t = {"permuted": t[order], "rolled by one": t.roll(1, 0), "reversed": t.flip(0)}[mode]
    parts = t.split(len(problem.train[0][1]))
    return Injected(replace(problem, train=[(x, p.contiguous()) for (x, _), p in zip(problem.train, parts, strict=True)]), mode)  # fmt: skip  # noqa: E501


@kind("no-signal", "does-not-train")
def labels_damaged(problem: Problem, rng: random.Random) -> Injected | None:
    """A share of the targets is replaced by those of other samples."""
    if problem.task == "other":
        return None
    share = rng.uniform(0.1, 1)
    g = torch.Generator().manual_seed(rng.randrange(2**31))

    def damage(t: Tensor) -> Tensor:
        hit = torch.rand(len(t), generator=g) < share
        return torch.where(hit.reshape(-1, *[1] * (t.dim() - 1)), t[torch.randperm(len(t), generator=g)], t)

    return Injected(_on_targets(problem, damage), f"{share:.0%}")


def _on_inputs(problem: Problem, change: Callable[[Tensor], Tensor]) -> Problem | None:
    """Change the first input, in training and held-out batches, if it is floating."""
    first = problem.train[0][0]
    first = first[0] if isinstance(first, tuple) else first
    if not first.is_floating_point():
        return None

    def of(batches: list) -> list:
        return [((change(x[0]), *x[1:]) if isinstance(x, tuple) else change(x), t) for x, t in batches]

    return replace(problem, train=of(problem.train), held_out=of(problem.held_out))


def _inputs(problem: Problem, change: Callable[[Tensor], Tensor], size: str) -> Injected | None:
    changed = _on_inputs(problem, change)
    return None if changed is None else Injected(changed, size)


@kind("input-scale", *LARGE, "dead-units")
def input_scale_up(problem: Problem, rng: random.Random) -> Injected | None:
    factor = rng.choice((255.0, power(rng, 1, 4)))
    return _inputs(problem, lambda x: factor * x, f"x {factor:.3g}")


@kind("input-scale", *SMALL)
def input_scale_down(problem: Problem, rng: random.Random) -> Injected | None:
    factor = power(rng, -6, -1)
    return _inputs(problem, lambda x: factor * x, f"x {factor:.3g}")


@kind("input-scale", "activation-shift", *SMALL)
def input_offset(problem: Problem, rng: random.Random) -> Injected | None:
    shift = power(rng, 0.5, 4)
    return _inputs(problem, lambda x: x + shift, f"+ {shift:.3g}")


@kind("input-scale", "activation-shift", *LARGE)
def one_feature_huge(problem: Problem, rng: random.Random) -> Injected | None:
    """One feature, not standardised, outweighs the others."""
    factor, draw = power(rng, 2, 6), rng.random()

    def change(x: Tensor) -> Tensor:
        scale = torch.ones(x.shape[-1])
        scale[int(draw * x.shape[-1])] = factor
        return x * scale

    first = problem.train[0][0]
    first = first[0] if isinstance(first, tuple) else first
    return _inputs(problem, change, f"x {factor:.3g}") if first.dim() and first.shape[-1] > 1 else None


@kind("input-scale", "constant-output", "vanishing-activations", "no-signal", structural=True)
def constant_inputs(problem: Problem, rng: random.Random) -> Injected | None:
    mode = rng.choice(("zeros", "one sample", "ones"))
    ways: dict[str, Callable[[Tensor], Tensor]] = {"zeros": torch.zeros_like, "ones": torch.ones_like}
    return _inputs(problem, ways.get(mode, lambda x: x[:1].expand_as(x).contiguous()), mode)


@kind("learning-rate-too-high")
def rate_up(problem: Problem, rng: random.Random) -> Injected | None:
    factor = power(rng, 1, 4)
    return Injected(replace(problem, rate=problem.rate * factor), f"x {factor:.3g}")


@kind("learning-rate-too-low")
def rate_down(problem: Problem, rng: random.Random) -> Injected | None:
    factor = power(rng, -4, -1)
    return Injected(replace(problem, rate=problem.rate * factor), f"x {factor:.3g}")


@kind("learning-rate-too-high", "learning-rate-too-low")
def other_optimizer(problem: Problem, rng: random.Random) -> Injected | None:
    """Another optimizer at the same rate."""
    adaptive = problem.optimizer not in ("momentum", "sgd")
    name = "sgd" if adaptive else rng.choice(("adam", "rmsprop"))
    codes = ("learning-rate-too-low",) if adaptive else ("learning-rate-too-high",)
    return Injected(replace(problem, optimizer=name), f"{problem.optimizer} to {name}", codes=codes)


def runs(problem: Problem) -> bool:
    """Whether forward and loss run at all; what raises is no fault of training, and is left out."""
    try:
        value = value_of(problem.loss, called(problem.model, problem.train[0][0]), problem.train[0][1])
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError):
        return False
    return isinstance(value, Tensor) and value.numel() == 1
