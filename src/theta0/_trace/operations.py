"""An operation of a training step, as findings name it: the function, the module that runs, the user's source line."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from theta0._trace.interpreter import Handler, Step, tensors_in


@dataclass(frozen=True)
class Operation:
    """One call of a torch function.

    Attributes:
        name: the function's name.
        path: the path of the module that ran; "" for the model itself, and outside of it.
        place: the module with its type, for messages.
        line: the user's source line with its text, `model.py:42: probs = scores.softmax(-1)`; "" where none is known.
        number: its place in the pass, from 0.
    """

    name: str
    path: str
    place: str
    line: str
    number: int

    def __str__(self) -> str:
        return f"`{self.name}` in {self.place}"


def operation_of(step: Step) -> Operation:
    """The operation that a step is; to be asked while it runs, since its source is read from the stack."""
    owners = step.interpreter.owners
    inside = owners is not None and owners.inside_model
    source = step.source()
    name = step.name.strip("_")
    name = _ATTRIBUTES.get(step.function, name)
    return Operation(
        name=name,
        path=step.path if inside else "",
        place=step.place if inside else "the loss",
        line="" if source is None else str(source),
        number=step.number,
    )


_ATTRIBUTES = {getattr(Tensor, name).__get__: f".{name}" for name in ("data", "T", "mT", "real", "imag", "grad")}


@dataclass(eq=False)
class NodeMap:  # grows during a pass; nodes are kept, since autograd makes their Python objects anew once they are gone
    """Which operation made each node of the autograd graph.

    Attributes:
        operations: by node.
    """

    operations: dict[Any, Operation] = field(default_factory=dict)

    def add(self, tensors: Iterable[Tensor], operation: Operation) -> None:
        """The nodes behind tensors that no earlier operation made belong to this one."""
        pending = [t.grad_fn for t in tensors if t.grad_fn is not None]
        while pending:
            node = pending.pop()
            if node in self.operations or hasattr(node, "variable"):
                continue
            self.operations[node] = operation
            pending += [parent for parent, _ in node.next_functions if parent is not None]


def node_handler(nodes: NodeMap) -> Handler:
    """A handler that maps the nodes of the autograd graph to the operations that make them.

    The nodes between a step's results and its arguments belong to the step, those of gradients taken inside it too.

    Args:
        nodes: what is found is written there.

    Returns:
        The handler; it notes nothing.
    """

    def after(step: Step, result: Any) -> None:
        changed = step.arguments[:1] if result is None else (result,)
        made = [t for t in tensors_in(changed, {}) if t.requires_grad and t.grad_fn is not None]
        if made and any(t.grad_fn not in nodes.operations for t in made):
            with torch.no_grad():
                nodes.add(made, operation_of(step))

    return Handler(after=after)
