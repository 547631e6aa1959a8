"""Samples that influence each other although no batch statistics are on, and positions that see later ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from theta0._batches import Batch, checked_forward, sliced
from theta0._models import StepInputs, main_output, without_labels
from theta0._moments import floats
from theta0._state import preserve_randomness, preserve_state, seed_draws
from theta0._trace.interpreter import Handler, Step, tensors_in, trace, without_checkpoints
from theta0._trace.operations import Operation, operation_of

SAMPLES = 8  # of which half are changed
_SHARE = 1e-5  # of the size of the output: below, rounding
RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu", "scan"))
ATTENTION = frozenset(("scaled_dot_product_attention", "multi_head_attention_forward"))
SEQUENTIAL = RECURRENT | ATTENTION  # what runs over positions


@dataclass(frozen=True, eq=False)
class Mixing:
    """How the samples of a batch influence each other's outputs.

    Attributes:
        share: the change of outputs whose own inputs stay as they are, over that of those whose inputs are changed;
            where `hidden`, the share of the operation's result that changes.
        operation: the first operation whose result depends on a changed sample at more places than its arguments; None
            where none does, as where samples only change places.
        kind: "statistics" where that operation takes a mean or a variance, "graph" where it applies a constant matrix
            or index, "place" where outputs depend on a sample's place in the batch and not on other samples, else "".
        hidden: whether the outputs depend on no input, or are not seen, so that only the operation shows it.
    """

    share: float
    operation: Operation | None
    kind: str
    hidden: bool = False


@dataclass
class _Pass:  # grows during a pass; a plain accumulator
    """What one of two passes over the same operations gives."""

    results: list[tuple[str, tuple[Tensor, ...]]] = field(default_factory=list)
    number: int = 0
    operation: Operation | None = None
    kind: str = ""
    share: float = 0.0


def mixing(model: nn.Module, batch: Batch) -> Mixing | None:
    """Change the inputs of half of a few samples, in evaluation mode, and see whose outputs change.

    Outputs whose own inputs stay must stay, to rounding. The operation is found by how many of the entries of its
    result change: at most half as long as samples stay apart, wherever their axis is. Where outputs depend on no input
    at all, as those at a position that holds no data, attention and recurrences are looked at themselves.
    The model is left bit-identical. Cost: two forward passes on eight samples, two more where they
    do influence each other or where outputs depend on no input, and again
    where an axis of the output is as long; two on the whole batch for a step that
    calls several modules, whose outputs are not seen: then too attention and recurrences are looked at themselves.

    Returns:
        What was found; None where it cannot be asked: fewer than four samples, outputs that are not one row a sample or
        that compare samples in pairs, models that do not take a smaller batch.
    """
    inside = _sequential(model, batch) if isinstance(batch.inputs, StepInputs) and batch.size >= 4 else None
    if inside is not None:
        return inside
    found = None
    for count in (SAMPLES, SAMPLES - 2):  # an axis of the output that is as long by chance is not with another number
        found = _asked(model, batch, min(count, batch.size - batch.size % 2)) if batch.size >= 4 else None
        if found != "pairs":
            break
    return found if isinstance(found, Mixing) else None


def _asked(model: nn.Module, batch: Batch, count: int) -> Mixing | Literal["pairs"] | None:
    few = sliced(replace(batch, inputs=without_labels(batch.inputs)), slice(0, count))
    other = _half_changed(few, count)
    if other is None:
        return None
    try:
        kept, changed = _outputs(model, few), _outputs(model, other)
    except ValueError:
        return None
    if kept is None or changed is None or kept.shape != changed.shape or len(kept) != count:
        return None
    if list(kept.shape).count(count) > 1:
        return "pairs"
    rows = (kept.double() - changed.double()).reshape(count, -1).square().mean(1).sqrt()
    same, other_ones = rows[::2], rows[1::2]
    asked = [
        rows.max(),
        same.max(),
        other_ones.max(),
        same.mean(),
        other_ones.mean(),
        kept.double().square().mean().sqrt(),
    ]
    finite = torch.isfinite(kept).all() & torch.isfinite(changed).all()
    most, most_kept, most_changed, of_kept, of_changed, size, known = torch.stack(
        [*asked, finite.double()]
    ).tolist()  # one wait
    hidden = not most > _SHARE * size
    if not known or (not hidden and not most_changed > _SHARE * size):
        return None
    if not hidden and not most_kept > _SHARE * size:
        return _by_place(model, other, changed, size) or Mixing(0.0, None, "")
    first, second = _Pass(), _Pass()
    if hidden:
        _outputs(model, few, _sequences(first, None))
        _outputs(model, other, _sequences(second, first))
        return None if second.operation is None else Mixing(second.share, second.operation, "", hidden=True)
    _outputs(model, few, _recording(first))
    _outputs(model, other, _comparing(first, second, count))
    return Mixing(of_kept / of_changed, second.operation, second.kind)


def _by_place(model: nn.Module, twins: Batch, outputs: Tensor, size: float) -> Mixing | None:
    """Whether samples with the same inputs, one after the other, have other outputs, though nothing is drawn."""
    pairs = outputs.double().reshape(-1, 2, *outputs.shape[1:])
    apart = float((pairs[:, 0] - pairs[:, 1]).square().mean().sqrt())
    if not apart > _SHARE * size:
        return None
    with preserve_randomness():
        seed_draws(1)
        again = _outputs(model, twins)
    if again is None or not torch.equal(again, outputs):
        return None
    found: list[Operation] = []
    _outputs(model, twins, _parting(len(outputs), found))
    spread = float((pairs[:, 0] - pairs[:, 0].mean(0)).square().mean().sqrt())
    return Mixing(apart / max(spread, apart), found[0] if found else None, "place")


def _parting(count: int, found: list[Operation]) -> Handler:
    """Finds operations that make other rows of the same rows; its note is whether a tensor's rows are the same."""

    def alike(tensor: Tensor) -> bool | None:
        axes = [axis for axis in range(min(2, tensor.dim())) if tensor.shape[axis] == count]
        if not axes or not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return None
        ordered = tensor.detach().movedim(axes[0], 0)
        return _differing(ordered[::2], ordered[1::2]) == 0.0

    def after(step: Step, result: Any) -> bool | None:
        same = [alike(t) for t in _floating(step, result)]
        if False in same and not found and True in [alike(t) for t in step.tensors]:
            found.append(operation_of(step))
        return None

    return Handler(after=after)


def _sequential(model: nn.Module, batch: Batch) -> Mixing | None:
    """As `mixing`, at attention and recurrences alone, of a step that calls several modules.

    Asked where the data show that their first axis runs over samples: they have labels, one a sample, of which the
    sequences have as many. None too where the step's model has outputs, or is given sequences without a batch.
    """
    if not any(isinstance(part, (nn.RNNBase, nn.MultiheadAttention)) for part in model.modules()):
        return None
    leaves = [leaf for leaf in tree_leaves(batch.inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    if not any(leaf.dim() == 1 and len(leaf) == batch.size for leaf in leaves):
        return None
    other = _half_changed(batch, batch.size)
    if other is None:
        return None
    first, second = _Pass(), _Pass()
    try:
        if _outputs(model, batch, _sequences(first, None)) is not None:
            return None
        _outputs(model, other, _sequences(second, first))
    except (ValueError, RuntimeError):
        return None
    return Mixing(second.share, second.operation, "", hidden=True) if second.operation is not None else None


def _sequences(record: _Pass, before: _Pass | None) -> Handler:
    """Keeps what attention and recurrences are given and return, or compares it with what they were given `before`."""

    def after(step: Step, result: Any) -> None:
        if step.name not in SEQUENTIAL:
            return
        given = [t for t in step.tensors if t.is_floating_point() and t.dim() > 2]
        made = _floating(step, result)[:1]
        record.results.append((step.name, tuple(t.detach().clone() for t in (*given, *made))))
        place = len(record.results) - 1
        if before is None or record.operation is not None or place >= len(before.results):
            return
        (name, old), new = before.results[place], record.results[place][1]
        if name != step.name or [t.shape for t in old] != [t.shape for t in new] or not given:
            return
        shares = [_differing(a, b) for a, b in zip(old, new, strict=True)]
        if max(shares[: len(given)]) <= 0.5 + 1e-6 < shares[-1] - 1e-6:
            record.operation, record.share = operation_of(step), shares[-1]

    return Handler(after=after)


def _outputs(model: nn.Module, batch: Batch, *handlers: Handler) -> Tensor | None:
    shown = trace(model, *handlers) if handlers else without_checkpoints()
    with preserve_state(model), torch.enable_grad(), shown:  # a forward pass may differentiate
        model.eval()
        output = main_output(checked_forward(model, batch))
    return None if output is None or not output.dim() else output.detach()


def _half_changed(batch: Batch, count: int) -> Batch | None:
    """The batch whose odd samples hold the inputs of the even ones before them; None where these are the same.

    Every other one, since what runs over the samples one after the other changes only those behind.
    """
    differs: list[Tensor] = []

    def changed(leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == count) or leaf.layout is not torch.strided:
            return leaf  # a sparse matrix says which samples belong together
        new = leaf[::2].repeat_interleave(2, 0)[:count]
        differs.append((new != leaf).any().double())
        return new

    inputs = tree_map(changed, batch.inputs)
    return replace(batch, inputs=inputs) if any(floats(differs)) else None


def _recording(record: _Pass) -> Handler:
    def after(step: Step, result: Any) -> None:
        record.results.append((step.name, tuple(t.detach().clone() for t in _floating(step, result))))

    return Handler(after=after)


def _comparing(first: _Pass, second: _Pass, count: int) -> Handler:
    """Notes the share of entries that differ from the first pass."""

    def after(step: Step, result: Any) -> float | None:
        number, second.number = second.number, second.number + 1
        tensors = _floating(step, result)
        if number >= len(first.results) or first.results[number][0] != step.name or not tensors:
            return None
        before = first.results[number][1]
        if [t.shape for t in before] != [t.shape for t in tensors]:
            return None
        share = max(_differing(a, b) for a, b in zip(before, tensors, strict=True))
        known = [note for _, note in step.notes(handler)]
        opaque = step.attention is not None and not known  # what attention's projections are given is not seen
        if second.operation is None and not opaque and share > 0.5 + 1e-6 and max(known, default=0.0) <= 0.5 + 1e-6:
            second.operation, second.kind, second.share = operation_of(step), _kind_of(step, handler, count), share
        return share

    handler = Handler(after=after)
    return handler


def _floating(step: Step, result: Any) -> Sequence[Tensor]:
    changed = step.arguments[:1] if result is None else (result,)
    return [t for t in tensors_in(changed, {}) if t.is_floating_point() and t.numel() and t.layout is torch.strided]


def _differing(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.detach().double()
    size = float(a.abs().max())
    return float(((a - b).abs() > _SHARE * size).double().mean())


_STATISTICS = frozenset(("mean", "var", "std", "var_mean", "std_mean", "median", "batch_norm", "instance_norm"))


def _kind_of(step: Step, handler: Handler, count: int) -> str:
    name = step.spec.name if step.spec is not None else step.name
    if name in _STATISTICS:
        return "statistics"
    constant = [t for t in step.tensors if not step.note(t, handler) and not t.requires_grad]  # none, or no change
    indexed = any(not t.is_floating_point() for t in constant) and name not in ("masked_fill", "where", "attention")
    square = any(list(t.shape).count(count) > 1 or t.layout is not torch.strided for t in constant)
    return "graph" if indexed or square else ""
