"""A training step as a straight tape: calls of modules, what is done with their outputs, and the loss at the end."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node

from theta0._trace.source import Source, replaying

_DEPTH = 5  # of objects in objects in which tensors are looked for


@dataclass(frozen=True)
class Result:
    """A tensor that an operation of the tape returned: the number of the operation, and its place among the tensors."""

    operation: int
    place: int


@dataclass(frozen=True)
class Value:
    """A tensor that the script brought: inputs, targets, noise."""

    number: int


@dataclass(frozen=True)
class Weight:
    """A parameter that the script uses outside of its module's call, as penalties do."""

    name: str


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What an operation ran under.

    Attributes:
        gradients: whether autograd recorded.
        autocast: the devices and dtypes for which autocast was on.
        randomness: puts the random generators into the state before the operation; None where it drew nothing.
        weights: parameters and buffers as they were, where they had been trained before; with what they held.
        source: the script's line.
    """

    gradients: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    randomness: Callable[[], None] | None = None
    weights: tuple[tuple[Tensor, Tensor], ...] = ()
    source: Source | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """One module's call, or one torch function.

    Attributes:
        path: the module's path in the model, where it is a call.
        function: the torch function, where it is none.
        arguments: positional arguments; tensors are `Result`, `Value` or `Weight`.
        options: keyword arguments, likewise.
        surroundings: what it ran under.
    """

    path: str | None
    function: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    surroundings: Surroundings


@dataclass(frozen=True, eq=False)
class Tape:
    """Everything between a script's data and its loss.

    Attributes:
        operations: in the order in which they ran.
        roots: the tensors that were differentiated, each with the gradient given for it, if any.
        leaves: the numbers of values that are differentiated with respect to, as in equations of physics.
    """

    operations: tuple[Operation, ...]
    roots: tuple[tuple[Any, Value | None], ...]
    leaves: frozenset[int] = frozenset()

    @property
    def differentiates(self) -> bool:
        """Whether the loss contains derivatives."""
        return any(operation.function is torch.autograd.grad for operation in self.operations)


@dataclass(frozen=True, eq=False)
class CapturedBatch:
    """What the script brought to one training step; a pytree, so that it can be moved, copied and cut as data.

    Attributes:
        tape: what was done with it.
        values: the tensors.
    """

    tape: Tape
    values: tuple[Any, ...]


register_pytree_node(
    CapturedBatch,
    lambda batch: (list(batch.values), batch.tape),
    lambda values, tape: CapturedBatch(tape, tuple(values)),
)


def replay(model: nn.Module, batch: CapturedBatch) -> Tensor:
    """The loss of a captured batch, for any values of the model's weights: a `step`.

    Returns:
        A 0-d tensor in the graph of the model.
    """
    return replayed(model, batch, exactly=False)


def replayed(model: nn.Module, batch: CapturedBatch, *, exactly: bool) -> Tensor:
    """As `replay`; `exactly` also gives every operation the random numbers and trained weights that it had.

    Returns:
        The loss.
    """
    tape = batch.tape
    values = [v.detach().clone() if isinstance(v, Tensor) else v for v in batch.values]
    for number in tape.leaves:
        values[number].requires_grad_()
    with torch.enable_grad() if tape.differentiates else nullcontext():
        return finished(model, tape, values, [], exactly=exactly)


def finished(
    model: nn.Module,
    tape: Tape,
    values: Mapping[int, Any] | Sequence[Any],
    results: list[list[Tensor]],
    *,
    exactly: bool,
) -> Tensor:
    """Run the rest of a tape.

    Args:
        model: whose modules are called.
        tape: the tape.
        values: what the script brought, by number.
        results: of the operations that are done.
        exactly: as in `replayed`.

    Returns:
        The loss.
    """

    def found(use: Any) -> Any:
        if isinstance(use, Result):
            return results[use.operation][use.place]
        if isinstance(use, Value):
            return values[use.number]
        return weight_of(model, use.name) if isinstance(use, Weight) else use

    for operation in tape.operations[len(results) :]:
        results.append(_ran(model, operation, found, exactly))
    return differentiated((found(root), None if given is None else found(given)) for root, given in tape.roots)


def _ran(model: nn.Module, operation: Operation, found: Callable[[Any], Any], exactly: bool) -> list[Tensor]:
    arguments, options = mapped(operation.arguments, found), mapped(operation.options, found)
    surroundings = operation.surroundings
    if exactly:
        if surroundings.randomness is not None:
            surroundings.randomness()
        for tensor, value in surroundings.weights:
            tensor.data.copy_(value)  # through .data: the graph may have saved the tensor
    function = operation.function
    if function is None:
        function = model.get_submodule(operation.path or "")
    with ExitStack() as stack:
        stack.enter_context(replaying(surroundings.source))
        if not surroundings.gradients:
            stack.enter_context(torch.no_grad())
        for device, dtype in surroundings.autocast:
            stack.enter_context(torch.autocast(device, dtype))
        result = function(*arguments, **options)
    return leaves_of(arguments[0] if result is None else result)  # assignments to a slice return nothing


def differentiated(roots: Iterable[tuple[Tensor, Tensor | None]]) -> Tensor:
    """The scalar whose gradient a backward pass takes: the sum of its tensors, each times the gradient given for it.

    Returns:
        A 0-d tensor.
    """
    terms = [
        (root * gradient).sum() if gradient is not None else root.reshape(()) if root.dim() else root
        for root, gradient in roots
    ]
    whole = terms[0]
    for term in terms[1:]:
        whole = whole + term
    return whole


def weight_of(model: nn.Module, name: str) -> Tensor:
    """A parameter by its name, also while another tensor stands in its place."""
    path, _, attribute = name.rpartition(".")
    found: Tensor = getattr(model.get_submodule(path), attribute)
    return found


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A structure of lists, tuples and mappings with a function applied to everything else in it.

    Returns:
        A structure of the same form.
    """
    if isinstance(value, (list, tuple)):
        parts = [mapped(part, function) for part in value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*parts)
        return type(value)(parts) if type(value) in (list, tuple) else tuple(parts)
    if isinstance(value, Mapping):
        return {key: mapped(part, function) for key, part in value.items()}
    return function(value)


def leaves_of(outputs: Any) -> list[Tensor]:
    """Every tensor in what a module or a function returned, each once, in order; in any object's attributes too.

    Returns:
        The tensors.
    """
    found: dict[int, Tensor] = {}
    for tensor in _tensors(outputs, _DEPTH):
        found.setdefault(id(tensor), tensor)
    return list(found.values())


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth:
        for part in _parts(value):
            yield from _tensors(part, depth - 1)


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, (str, bytes, type, nn.Module)) or callable(value):
        return []
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return list(vars(value).values()) if hasattr(value, "__dict__") else []
