"""Samples whose inputs differ and whose outputs are exactly the same."""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from theta0._batches import Batch, checked_forward, sliced
from theta0._models import main_output, without_labels
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, tensors_in, trace
from theta0._trace.operations import Operation, operation_of

MOST = 64  # samples that are looked at


@dataclass(frozen=True, eq=False)
class AlikeOutputs:
    """Samples that a network does not tell apart, although it does others.

    Attributes:
        alike: how many different inputs have one and the same output: the most frequent one.
        samples: how many different inputs there are.
        operation: the first operation whose result is the same for them; None where none is seen.
    """

    alike: int
    samples: int
    operation: Operation | None


def alike_outputs(model: nn.Module, batch: Batch) -> AlikeOutputs | None:
    """Run a few samples in evaluation mode, and count equal rows of inputs and outputs, bit by bit.

    The model is left bit-identical. Cost: a forward pass on at most 64 samples, and one more where rows are equal.

    Returns:
        What was found; None where all outputs differ or all are the same, where outputs are not one row a sample, or
        where the model does not take a smaller batch.
    """
    count = min(MOST, batch.size)
    few = sliced(replace(batch, inputs=without_labels(batch.inputs)), slice(0, count))
    leaves = [t for t in tree_leaves(few.inputs) if isinstance(t, Tensor) and t.dim() and len(t) == count]
    output = None if not leaves or any(t.is_sparse for t in leaves) else _run(model, few)
    if output is None or len(output) != count or not bool(torch.isfinite(output).all()):
        return None
    inputs = [b"".join(parts) for parts in zip(*(_rows(leaf) for leaf in leaves), strict=True)]
    pairs = set(zip(inputs, _rows(output), strict=True))
    groups = Counter(row for _, row in pairs)
    alike = max(groups.values())
    if alike < 2 or len(groups) < 2:
        return None
    found: list[Operation] = []
    _run(model, few, _merging(count, len(groups), found))
    return AlikeOutputs(alike, len(pairs), found[0] if found else None)


def _run(model: nn.Module, batch: Batch, *handlers: Handler) -> Tensor | None:
    shown = trace(model, *handlers) if handlers else nullcontext()
    with preserve_state(model), torch.enable_grad(), shown:  # a forward pass may differentiate
        model.eval()
        try:
            output = main_output(checked_forward(model, batch))
        except ValueError:
            return None
    return None if output is None or not output.dim() else output.detach()


def _merging(count: int, groups: int, found: list[Operation]) -> Handler:
    """Notes the number of different rows of results, and the first operation that brings it to the outputs' number."""

    def after(step: Step, result: Any) -> int | None:
        changed = step.arguments[:1] if result is None else (result,)
        rows = [t for t in tensors_in(changed, {}) if t.is_floating_point() and t.dim() and len(t) == count]
        if not rows or rows[0].layout is not torch.strided:
            return None
        different = len(set(_rows(rows[0])))
        if not found and different <= groups < max((note for _, note in step.notes(handler)), default=0):
            found.append(operation_of(step))
        return different

    handler = Handler(after=after)
    return handler


def _rows(tensor: Tensor) -> Sequence[bytes]:
    flat = tensor.detach().reshape(len(tensor), -1).cpu()
    flat = flat.float() if flat.dtype == torch.bfloat16 else flat
    return [row.tobytes() for row in (flat + 0 if flat.is_floating_point() else flat).numpy()]  # -0 is 0
