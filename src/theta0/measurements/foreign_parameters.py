"""Tensors that need a gradient and are used by a model that does not hold them among its parameters."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from theta0._trace.interpreter import Handler, Step, tensors_in
from theta0._trace.operations import Operation, operation_of


@dataclass(frozen=True, eq=False)
class Foreign:
    """A tensor that training would have to change, and does not.

    Attributes:
        name: where the model keeps it, as `blocks[2].weight`; "" for one that the forward pass makes anew.
        operation: the first operation that uses it.
        entries: how many numbers it holds.
    """

    name: str
    operation: Operation
    entries: int


def foreign_handler(model: nn.Module, found: list[Foreign]) -> Handler:
    """A handler that finds such tensors in a pass, where a gradient would reach them.

    Views of a frozen parameter are no tensors of their own (as peft's DoRA makes one of a base weight, transposed). A
    tensor that needs a gradient counts if it is an `nn.Parameter` or is kept in an attribute of a module of the model
    (in lists, tuples, mappings and plain objects too): inputs that a forward pass differentiates with respect to are
    neither. Filling one with numbers is no use of it: a forward pass that builds a module and gives it the model's own
    layers fills those that it drops.

    Args:
        model: the model.
        found: what is found is written there, each tensor once.
    """
    own = {id(p) for p in model.parameters()}
    frozen = {_storage(p) for p in model.parameters() if not p.requires_grad}  # made trainable by nn.Parameter(view)
    known: dict[int, Tensor] = {}
    kept: dict[int, str] = {}

    def after(step: Step, result: Any) -> None:
        for tensor in step.tensors:
            if not tensor.requires_grad or not tensor.is_leaf or id(tensor) in own or id(tensor) in known:
                continue
            owners = step.interpreter.owners
            if owners is None or not owners.inside_model or not _differentiable(result, tensor):
                continue
            if not kept:
                kept.update(_kept(model))
            name = kept.get(id(tensor), "")
            if _storage(tensor) in frozen:
                continue
            if name or isinstance(tensor, nn.Parameter):
                known[id(tensor)] = tensor
                found.append(Foreign(name, operation_of(step), tensor.numel()))

    return Handler(after=after)


def _differentiable(result: Any, tensor: Tensor) -> bool:
    """Whether a gradient would come back through a result, which is None where an argument was written into."""
    if result is None:
        return torch.is_grad_enabled()
    return any(r.requires_grad and r is not tensor for r in tensors_in((result,), {}))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided and tensor.numel() else 0


def _kept(model: nn.Module) -> Mapping[int, str]:
    """Where plain attributes of modules hold tensors and modules with parameters."""
    found: dict[int, str] = {0: ""}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, value in vars(module).items():
            if not name.startswith("_"):
                for where, tensor in _inside(value, prefix + name, 4):
                    found.setdefault(id(tensor), where)
    return found


def _inside(value: Any, where: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield where, value
    elif isinstance(value, nn.Module):
        yield from ((f"{where}.{name}", p) for name, p in value.named_parameters())
    elif depth and isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _inside(item, f"{where}[{number}]", depth - 1)
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _inside(item, f"{where}[{key!r}]", depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        for key, item in vars(value).items():
            yield from _inside(item, f"{where}.{key}", 1)
