"""A small training problem, and what a fault that was injected into one is expected to be called."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = tuple[Any, Any]
Task = Literal["classes", "tokens", "regression", "binary", "other"]


@dataclass(frozen=True)
class Problem:
    """A network, its data and how it is trained.

    Attributes:
        model: the start.
        train: batches to train on, in turn.
        held_out: batches on which progress is measured; their targets stay as they are whatever is injected.
        loss: a name or a callable.
        optimizer: its name.
        rate: a learning rate at which it trains.
        steps: after so many its progress is clear.
        score: outputs and true targets to a number, less is better; what progress is measured by.
        reference: the score of the best predictor that ignores its input.
        task: what the loss compares.
        undo: outputs to what they would be without the fault (a scale of the targets).
        heal: done to the trained model before it is scored (a mask put right).
    """

    model: nn.Module
    train: list[Batch]
    held_out: list[Batch]
    loss: str | Callable[[Any, Any], Tensor]
    optimizer: str
    rate: float
    steps: int
    score: Callable[[Any, Any], float]
    reference: float
    task: Task = "other"
    undo: Callable[[Any], Any] = lambda outputs: outputs
    heal: Callable[[nn.Module], None] = lambda model: None


@dataclass(frozen=True)
class Fault:
    """What was injected.

    Attributes:
        codes: finding codes that are right as the first finding.
        size: how much, in words.
        places: paths of the modules that are right, the injected one first; empty where the fault has no place.
        single: whether one module alone is at fault.
        structural: whether the program is wrong whatever it costs (a path that is cut, a loss that does not fit).
    """

    codes: tuple[str, ...]
    size: str = ""
    places: tuple[str, ...] = ()
    single: bool = False
    structural: bool = False
    details: dict[str, float] = field(default_factory=dict)


def called(model: nn.Module, inputs: Any) -> Any:
    """The model's outputs; a tuple holds several arguments."""
    kind = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtype = next(iter(kind)) if len(kind) == 1 else torch.float32

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

    return model(*map(cast, inputs)) if isinstance(inputs, tuple) else model(cast(inputs))


def token_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over the last axis, at every position."""
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]).float(), targets.reshape(-1))


def value_of(loss: str | Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
    """The loss, a 0-d tensor."""
    if not isinstance(loss, str):
        return loss(outputs, targets)
    outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
    if loss == "cross_entropy":
        return F.cross_entropy(outputs, targets)
    named = {"mse": F.mse_loss, "l1": F.l1_loss, "bce": F.binary_cross_entropy_with_logits}
    return named[loss](outputs, targets.to(outputs.dtype))


def error_rate(outputs: Tensor, targets: Tensor) -> float:
    """Share of positions at which the largest logit, along the last axis, is not the label's."""
    return float((outputs.argmax(-1) != targets).double().mean())


def majority_error(targets: Tensor) -> float:
    """The error rate of always answering the most frequent label."""
    return 1 - float(torch.bincount(targets.flatten()).max()) / targets.numel()
