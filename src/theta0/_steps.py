"""A training step of the user's own: a function of the model and a batch that returns the loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils._pytree import register_pytree_node

Step = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """A batch of any form with the step that takes it; a pytree, so that it can be moved, copied and cut as data.

    Attributes:
        step: called with the model and the batch; returns the loss, or a mapping with it.
        item: the batch as the user's data source gave it.
    """

    step: Step
    item: Any


register_pytree_node(StepInputs, lambda s: ([s.item], s.step), lambda items, step: StepInputs(step, next(iter(items))))


def run_step(model: nn.Module, inputs: StepInputs) -> dict[str, Any]:
    """Run a step as if it were a model that returns its own loss.

    Returns:
        `outputs`, what the model's first call in the step returned (None without one), and `loss`.
    """
    seen: list[Any] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        if module is model:
            seen.append(output)

    handle = module_hooks.register_module_forward_hook(note)
    try:
        result = inputs.step(model, inputs.item)
    finally:
        handle.remove()
    loss = result.get("loss") if isinstance(result, Mapping) else result
    return {"outputs": seen[0] if seen else None, "loss": loss}
