"""Zero inputs: is the output the same without the data?"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from theta0._batches import Batch, checked_forward
from theta0._errors import UserCodeError
from theta0._models import main_output
from theta0._state import preserve_state, seed_draws


def changed_without_data(model: nn.Module, batch: Batch) -> float | None:
    """How much the outputs change when floating inputs become zero and others are those of the next sample.

    Two forward passes; the model is left as it was.

    Returns:
        The root mean square of the change over the outputs' own; 0 where nothing changes;
        None where the model refuses such inputs.
    """

    def emptied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            return leaf
        return torch.zeros_like(leaf) if leaf.is_floating_point() else leaf.roll(1, 0)

    with preserve_state(model), torch.no_grad():
        try:
            seed_draws(0)
            given = main_output(checked_forward(model, batch))
            seed_draws(0)
            without = main_output(checked_forward(model, _with_inputs(batch, tree_map(emptied, batch.inputs))))
        except (UserCodeError, RuntimeError):
            return None
    if given is None or without is None or given.shape != without.shape:
        return None
    change = float((given - without).double().square().mean().sqrt())
    size = float(given.double().square().mean().sqrt())
    return change / size if size > 0 else 0.0


def _with_inputs(batch: Batch, inputs: Any) -> Batch:
    return Batch(inputs, batch.targets, batch.size, batch.number)
