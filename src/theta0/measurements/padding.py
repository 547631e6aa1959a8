"""Masks of sequences that hide what is real and show the padding."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from theta0._trace.interpreter import Handler, Step
from theta0._trace.operations import Operation, operation_of

_HIDDEN = -1e4  # a score below which a softmax gives nothing
_ROWS, _LENGTH, _LENGTHS = 4, 4, 3  # samples, positions, and different lengths, at least
_PADDED = 0.2  # of the samples
_STRAY = 0.01  # of the positions that are not padding may hold its value
AGREE = 0.95  # of the positions of padded samples


@dataclass(frozen=True)
class InvertedMask:
    """A mask that hides the positions that are not padding.

    Attributes:
        operation: what it is used in.
        agreement: of its positions with those that are not padding, in samples that are padded.
        padding: the share of positions that are padding.
    """

    operation: Operation
    agreement: float
    padding: float


@dataclass
class Padding:  # grows during a pass; a plain accumulator
    """Which positions of the sequences are padding (True), and the masks that hide all others."""

    known: list[Tensor] = field(default_factory=list)
    inverted: list[InvertedMask] = field(default_factory=list)


def padding_of(sequences: Tensor) -> Tensor | None:
    """Which positions are padding: the ends, or beginnings, of different lengths that hold one and the same value.

    Args:
        sequences: tokens (samples, positions), or amounts (samples, positions, features) that are padded with zeros.

    Returns:
        Truth values (samples, positions); None where there is no padding to be seen.

    Example:
        >>> padding_of(torch.tensor([[5, 0, 0, 0], [3, 4, 0, 0], [6, 3, 7, 0], [2, 2, 5, 4]])).sum(1)
        tensor([3, 2, 1, 0])
    """
    if sequences.dim() not in (2, 3) or sequences.shape[0] < _ROWS or sequences.shape[1] < _LENGTH:
        return None
    if sequences.dim() == 3:
        return _runs((sequences == 0).all(-1)) if sequences.is_floating_point() else None
    if sequences.is_floating_point() or sequences.is_complex():
        return None
    for end in (sequences[:, -1], sequences[:, 0]):
        found = _runs(sequences == end.mode().values)
        if found is not None:
            return found
    return None


def _runs(same: Tensor) -> Tensor | None:
    """The ends of rows that are True, else the beginnings."""
    runs = [same.flip(1).int().cumprod(1).bool().flip(1), same.int().cumprod(1).bool()]
    asked = []
    for run in runs:
        lengths = run.sum(1)
        different = 1 + lengths.sort().values.diff().ne(0).sum()
        asked += [(lengths > 0).double().mean(), different.double(), (same & ~run).double().mean(), run.all().double()]
    numbers = iter(torch.stack(asked).tolist())  # one wait for the device
    for run in runs:
        padded, different, stray, whole = (next(numbers) for _ in range(4))
        if padded >= _PADDED and different >= _LENGTHS and stray <= _STRAY and not whole:
            return run
    return None


def padding_handler(found: Padding) -> Handler:
    """A handler that looks for padding among what layers are given, and for masks that hide all else.

    Args:
        found: what is found is written there.

    Returns:
        The handler; it notes what was made of padded sequences.
    """

    def before(step: Step) -> None:
        role = step.spec.role if step.spec is not None else ""
        if role in ("embedding", "multilinear", "recurrent"):
            for tensor in step.tensors:
                if not tensor.requires_grad and step.note(tensor, handler) is None and tensor.dim() in (2, 3):
                    padded = padding_of(tensor.detach())
                    if padded is not None:
                        step.interpreter.annotate(tensor, handler, True)
                        found.known.append(padded)
        hides = _HIDES.get(step.name) if found.known else None
        made = [tensor for tensor, _ in step.notes(handler)] if hides is not None else []
        mask = hides(step) if hides is not None and made else None
        if mask is not None and any(t.requires_grad or t.numel() > mask.numel() for t in made):
            for padded in found.known:
                compared(step, mask, padded)

    def compared(step: Step, mask: Tensor, padded: Tensor) -> None:
        aligned = _aligned(mask, padded)
        if aligned is None:
            return
        rows = padded.any(1)
        agreement = float((aligned == ~padded)[rows].double().mean())
        if agreement >= AGREE:
            found.inverted.append(InvertedMask(operation_of(step), agreement, float(padded.double().mean())))

    handler = Handler(before=before, join=lambda notes: True)
    return handler


def _aligned(mask: Tensor, padded: Tensor) -> Tensor | None:
    """A mask as (samples, positions); None where it has other axes."""
    samples, length = padded.shape
    axes = [size for size in mask.shape if size != 1]
    if axes in ([samples, length], [samples * length]):
        return mask.reshape(samples, length)
    if len(axes) > 2 and axes[0] == samples and axes[-1] == length:  # the same for every head and query
        rows = mask.reshape(samples, -1, length)
        return rows[:, 0] if bool((rows == rows[:, :1]).all()) else None
    return None


def _filled(step: Step) -> Tensor | None:
    """`masked_fill`, which hides what is True."""
    mask, value = step.argument((1, "mask")), _value(step.argument((2, "value")))
    return mask.detach() if isinstance(mask, Tensor) and mask.dtype == torch.bool and _hides(value) else None


def _multiplied(step: Step) -> Tensor | None:
    """A product with zeros and ones."""
    for factor in step.arguments[:2]:
        if isinstance(factor, Tensor) and not factor.requires_grad and factor.numel() > 1:
            values = factor.detach()
            return values == 0 if bool(((values == 0) | (values == 1)).all()) else None
    return None


def _chosen(step: Step) -> Tensor | None:
    """`where(condition, a, b)` in which one of them hides."""
    if len(step.arguments) < 3 or not isinstance(step.arguments[0], Tensor):
        return None
    condition, first, second = step.arguments[0].detach().bool(), _value(step.arguments[1]), _value(step.arguments[2])
    return condition if _hides(first) else ~condition if _hides(second) else None


def _added(step: Step) -> Tensor | None:
    """A sum with scores that leave nothing to a softmax."""
    for part in step.arguments[:2]:
        if isinstance(part, Tensor) and not part.requires_grad and part.is_floating_point() and part.numel() > 1:
            low = part.detach() <= _HIDDEN
            return low if bool(low.any()) else None
    return None


def _attended(step: Step) -> Tensor | None:
    mask = step.argument((3, "attn_mask"))
    if not isinstance(mask, Tensor):
        return None
    return ~mask.detach() if mask.dtype == torch.bool else mask.detach() <= _HIDDEN


def _keys(step: Step) -> Tensor | None:
    mask = step.options.get("key_padding_mask")
    if not isinstance(mask, Tensor):
        return None
    return mask.detach() if mask.dtype == torch.bool else mask.detach() <= _HIDDEN


def _picked(step: Step) -> Tensor | None:
    """`x[mask]`, which leaves out what is False; an assignment hides what is True."""
    mask = step.arguments[1] if len(step.arguments) > 1 else None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        return None
    if step.name == "__setitem__":
        return mask.detach() if len(step.arguments) > 2 and _hides(_value(step.arguments[2])) else None
    return ~mask.detach()


def _value(given: Any) -> float:
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given)
    return float(given.detach()) if isinstance(given, Tensor) and given.numel() == 1 else math.nan


def _hides(value: float) -> bool:
    return value == 0 or value <= _HIDDEN


_HIDES: dict[str, Callable[[Step], Tensor | None]] = {
    "masked_fill": _filled,
    "masked_fill_": _filled,
    "mul": _multiplied,
    "multiply": _multiplied,
    "mul_": _multiplied,
    "__mul__": _multiplied,
    "__rmul__": _multiplied,
    "where": _chosen,
    "add": _added,
    "add_": _added,
    "__add__": _added,
    "__radd__": _added,
    "scaled_dot_product_attention": _attended,
    "multi_head_attention_forward": _keys,
    "__getitem__": _picked,
    "__setitem__": _picked,
}
