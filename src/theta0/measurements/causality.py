"""Positions of a sequence that see what they are to predict, and attention in which a position sees nothing."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from theta0._batches import Batch, checked_forward, sliced
from theta0._losses import Loss, applied
from theta0._models import StepInputs, main_output, without_labels
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, tensors_in, trace
from theta0._trace.operations import Operation, operation_of

SAMPLES = 4
_SHORTEST = 4  # positions
_MATCH = 0.95  # of the targets are the inputs one position on
_SHARE = 1e-5  # of the size of a tensor: below, rounding
_HIDDEN = -1e4  # a score below which a softmax gives nothing


@dataclass(frozen=True, eq=False)
class LookAhead:
    """How outputs depend on later inputs, where each output is compared with the next input.

    Attributes:
        share: the change of outputs before a position, over that of outputs behind it, when only inputs from there on
            are changed.
        operation: the first operation whose result changes before that position; None where none is seen.
        axis: of the positions, in the inputs.
        own: of outputs that depend on no later input and are compared with the input at their own position: the change
            of the first of those whose own input is changed, over that of all of these; 0 where it does not depend on
            it, or is compared with the next input.
        ahead: how many positions on the input lies that an output is compared with.
    """

    share: float
    operation: Operation | None
    axis: int
    own: float = 0.0
    ahead: int = 1


@dataclass(frozen=True, eq=False)
class Blind:
    """Attention that is given nothing to look at.

    Attributes:
        operation: the softmax or the attention.
        positions: how many, in every sample.
        of: how many positions there are.
    """

    operation: Operation
    positions: int
    of: int


@dataclass
class _First:  # grows during a pass; a plain accumulator
    """What the pass on the inputs as they are gives."""

    results: list[tuple[str, tuple[Tensor, ...]]] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)


@dataclass
class _Stepped:  # grows during a pass; a plain accumulator
    """What a step of the user's own gives the network and its losses.

    Attributes:
        targets: of its losses.
        compared: what each loss compares with its target.
        given: what the network is given, each tensor once.
        changed: how often another tensor was put in an input's place.
        mixed: whether a batch normalization took the batch's statistics.
    """

    targets: list[Tensor] = field(default_factory=list)
    compared: list[Tensor] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)
    changed: int = 0
    mixed: bool = False


@dataclass(frozen=True, eq=False)
class _Shift:
    """The input that is the target, so many positions `ahead`, and the axis of its positions."""

    leaf: Tensor
    axis: int
    ahead: int = 1

    @property
    def length(self) -> int:
        return self.leaf.shape[self.axis]


def candidate(batch: Batch) -> bool:
    """Whether targets, or labels among the inputs, are as many as a sequence has positions, so that it may be asked."""
    if isinstance(batch.inputs, StepInputs):
        return any(
            not leaf.is_floating_point() or leaf.dim() == 3 or _paired(batch, leaf) for leaf in _sequences(batch)
        )
    labels = batch.inputs.get("labels") if isinstance(batch.inputs, dict) else batch.targets
    given = labels if isinstance(labels, Tensor) else batch.targets
    return isinstance(given, Tensor) and any(True for leaf in _sequences(batch) for _ in _counts(leaf, given))


def look_ahead(model: nn.Module, batch: Batch, loss: Loss) -> LookAhead | None:
    """Change each sequence's inputs from its middle on, in evaluation mode, and see whether earlier outputs change.

    Asked only where the loss is given each next input as its target: by the batch, or by a model that shifts labels
    itself. And of tokens where the loss is given each input as the target at its own position, as of a decoder that
    is fed its targets unshifted: there a causal network has to depend on earlier ones alone. Or the input two or three
    positions on, as where labels are shifted by the caller and by the model. The model is left bit-
    identical. Cost: a forward pass with the loss and one without, on four samples; of a step of the user's own,
    which may take no other number of samples, two of it, and two more to find the operation.

    Returns:
        What was found; None where it cannot be asked.
    """
    if isinstance(batch.inputs, StepInputs):
        return _step_look_ahead(model, batch) if candidate(batch) else None
    lengths = {leaf.shape[axis] for leaf in _sequences(batch) for axis in (0, 1)}
    count = next((n for n in range(min(SAMPLES, batch.size), 1, -1) if n not in lengths or batch.size == n), 0)
    if count < 2 or not candidate(batch):
        return None
    few = sliced(batch, slice(0, count))
    first = _First()
    try:
        with preserve_state(model):
            model.eval()
            before = _traced(model, few, loss, _recording(first))
        shift = _shift(few, first.targets) or _displaced(_sequences(few), first.targets)
        other = None if shift is None else _later_changed(few, shift)
        if shift is None or other is None:
            return None
        found: list[Operation] = []
        with preserve_state(model):
            model.eval()
            unlabelled = replace(other, inputs=without_labels(other.inputs))
            after = _traced(model, unlabelled, None, _comparing(first, found, shift.length))
    except (ValueError, RuntimeError):
        return None
    return _seen_ahead(before, after, shift, found)


def _seen_ahead(
    before: Tensor | None, after: Tensor | None, shift: _Shift, found: Sequence[Operation]
) -> LookAhead | None:
    """What two outputs say, between which the inputs from the middle on were changed."""
    share = _share(before, after, shift)
    if share is None or (shift.ahead != 1 and share):
        return None  # every output sees every input: an autoencoder is to return them
    own = _own(before, after, shift) if shift.ahead == 0 else 0.0
    return LookAhead(share, found[0] if found and share else None, shift.axis, own, shift.ahead)


def _step_look_ahead(model: nn.Module, batch: Batch) -> LookAhead | None:
    """As `look_ahead`, of a step: what its loss is given is compared, and the network's input changed where it is used.

    A step that is not the same twice, or takes statistics over the batch, is not asked.
    """
    try:
        seen = _step_pass(model, batch)
        shift, place = _step_shift(seen)
        new = None if shift is None else _late_exchanged(shift)
        if shift is None or new is None or seen.mixed:
            return None
        other = _step_pass(model, batch, exchanged=(shift.leaf, new))
        if not other.changed or len(other.compared) != len(seen.compared):
            return None
        ahead = _seen_ahead(seen.compared[place], other.compared[place], shift, ())
        if ahead is None or not ahead.share:
            return ahead
        first, found = _First(), list[Operation]()
        again = _step_pass(model, batch, _recording(first))
        if not torch.equal(again.compared[place], seen.compared[place]):
            return None
        _step_pass(model, batch, _comparing(first, found, shift.length), exchanged=(shift.leaf, new))
    except (ValueError, RuntimeError, IndexError):
        return None
    return replace(ahead, operation=found[0] if found else None)


def _step_pass(
    model: nn.Module, batch: Batch, *handlers: Handler, exchanged: tuple[Tensor, Tensor] | None = None
) -> _Stepped:
    """One pass, in evaluation mode; `exchanged` are an input, and what is put in its place."""
    seen = _Stepped()
    before = () if exchanged is None else (_exchanging(seen, *exchanged),)
    with preserve_state(model):
        model.eval()
        _traced(model, batch, None, *before, _watching(seen), *handlers)
    return seen


def _step_shift(seen: _Stepped) -> tuple[_Shift | None, int]:
    """What the network is given that a loss has one position on as its target, and the number of that loss."""
    for place, target in enumerate(seen.targets):
        shift = _shifted(seen.given, [target]) or _displaced(seen.given, [target])
        if shift is not None:
            return shift, place
    return None, 0


def _watching(seen: _Stepped) -> Handler:
    """Notes what was made inside the network; everything else that meets a weight was given to it."""

    def before(step: Step) -> None:
        owners = step.interpreter.owners
        role = step.spec.role if step.spec is not None else ""
        if role == "batch_norm" and step.argument((5, "training")):
            seen.mixed = True
        if (owners is not None and owners.inside_model) or role in ("embedding", "multilinear", "recurrent"):
            new = [t for t in step.tensors if step.note(t, handler) is None and _is_sequence(t) and not t.requires_grad]
            seen.given += [t.clone() for t in new if not any(_same(t, known) for known in seen.given)]

    def after(step: Step, result: Any) -> bool | None:
        output, target = step.argument((0, "input")), step.argument((1, "target"))
        compares = step.spec is not None and step.spec.role == "loss"
        if compares and isinstance(output, Tensor) and isinstance(target, Tensor):
            seen.targets.append(target.detach().clone())
            seen.compared.append(output.detach().clone())
        owners = step.interpreter.owners
        return (owners is not None and owners.inside_model) or any(True for _ in step.notes(handler)) or None

    handler = Handler(before=before, after=after)
    return handler


def _exchanging(seen: _Stepped, leaf: Tensor, new: Tensor) -> Handler:
    """A handler that puts a tensor in the place of an input, wherever a function gets that."""

    def exchanged(value: Any) -> Any:
        if not (isinstance(value, Tensor) and not value.requires_grad and _same(value, leaf)):
            return value
        seen.changed += 1
        return new.clone()

    def before(step: Step) -> None:
        if any(_same(t, leaf) for t in step.tensors):
            step.arguments = tuple(tree_map(exchanged, list(step.arguments)))
            step.options = tree_map(exchanged, step.options)

    return Handler(before=before)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def _traced(model: nn.Module, batch: Batch, loss: Loss, *handlers: Handler) -> Tensor | None:
    """The main output; with the loss where the batch has what it compares with."""
    labelled = batch.targets is not None or (isinstance(batch.inputs, dict) and "labels" in batch.inputs)
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())  # a forward pass may differentiate
        stack.enter_context(trace(model, *handlers))
        outputs = checked_forward(model, batch)
        if loss is not None and labelled:
            applied(loss, outputs, batch)
    output = main_output(outputs)
    return None if output is None else output.detach()


def _recording(first: _First) -> Handler:
    def after(step: Step, result: Any) -> None:
        first.results.append((step.name, tuple(t.detach().clone() for t in _floating(step, result))))
        if step.spec is not None and step.spec.role == "loss":
            target = step.arguments[1] if len(step.arguments) > 1 else step.options.get("target")
            if isinstance(target, Tensor):
                first.targets.append(target.detach().clone())

    return Handler(after=after)


def _comparing(first: _First, found: list[Operation], length: int) -> Handler:
    """Notes whether a result differs from the first pass before the middle, and the first operation where it does."""
    number = 0

    def after(step: Step, result: Any) -> bool | None:
        nonlocal number
        place, number = number, number + 1
        if place >= len(first.results) or first.results[place][0] != step.name:
            return None
        now, before = _floating(step, result), first.results[place][1]
        if [t.shape for t in now] != [t.shape for t in before]:
            return None
        leaks = any(_differs_early(a, b, length) for a, b in zip(before, now, strict=True))
        inside = step.attention is not None  # what attention does inside belongs to it
        if leaks and not inside and not found and not any(note for _, note in step.notes(handler)):
            found.append(operation_of(step))
        return leaks or None

    handler = Handler(after=after)
    return handler


def _floating(step: Step, result: Any) -> list[Tensor]:
    changed = step.arguments[:1] if result is None else (result,)
    return [t for t in tensors_in(changed, {}) if t.is_floating_point() and t.numel() and t.layout is torch.strided]


def _differs_early(before: Tensor, now: Tensor, length: int) -> bool:
    """Whether a tensor with one axis of positions differs in the first half of it."""
    axes = [axis for axis, size in enumerate(now.shape) if size == length]
    if len(axes) != 1:
        return False
    early = [t.double().narrow(axes[0], 0, length // 2) for t in (before, now.detach())]
    return bool(((early[0] - early[1]).abs() > _SHARE * before.double().abs().max()).any())


def _share(before: Tensor | None, after: Tensor | None, shift: _Shift) -> float | None:
    if before is None or after is None or before.shape != after.shape:
        return None
    axis = _position_axis(before, shift)
    if axis is None:
        return None
    shape, where = axis
    change = (before.double() - after.double()).reshape(shape).movedim(where, 0)
    size, half = float(before.double().square().mean().sqrt()), shift.length // 2
    early, late = (float(part.square().mean().sqrt()) for part in (change[:half], change[half:]))
    if not late > _SHARE * size:
        return None
    return early / late if early > _SHARE * size else 0.0


def _own(before: Tensor | None, after: Tensor | None, shift: _Shift) -> float:
    """The change of the output at the first position changed, over that of all behind it too."""
    axis = None if before is None else _position_axis(before, shift)
    if before is None or after is None or axis is None:
        return 0.0
    shape, where = axis
    change = (before.double() - after.double()).reshape(shape).movedim(where, 0)
    size, half = float(before.double().square().mean().sqrt()), shift.length // 2
    own, late = (float(part.square().mean().sqrt()) for part in (change[half], change[half:]))
    return own / late if own > _SHARE * size else 0.0


def _position_axis(output: Tensor, shift: _Shift) -> tuple[tuple[int, ...], int] | None:
    """The shape in which an output has an axis of positions, and which one it is."""
    samples, length = shift.leaf.shape[1 - shift.axis], shift.length
    for known in (length, length - 1):
        expected = (samples, known) if shift.axis == 1 else (known, samples)
        if tuple(output.shape[:2]) == expected:
            return tuple(output.shape), shift.axis
        if output.dim() > 2 and shift.axis == 1 and output.shape[0] == samples and output.shape[2] == known:
            return tuple(output.shape), 2
        if output.dim() and len(output) == samples * known:
            return (*expected, *output.shape[1:]), shift.axis
    return None


def _shift(batch: Batch, seen: list[Tensor]) -> _Shift | None:
    """The input that a loss, or the batch, has one position on as the target."""
    return _shifted(_sequences(batch), seen or ([batch.targets] if isinstance(batch.targets, Tensor) else []))


def _shifted(leaves: Iterable[Tensor], targets: Sequence[Tensor]) -> _Shift | None:
    for leaf in leaves:
        for target in targets:
            for axis, known in _counts(leaf, target):
                wanted = leaf.narrow(axis, 1, leaf.shape[axis] - 1)
                shape = list(leaf.shape)
                shape[axis] = known
                has = target.reshape(shape).narrow(axis, 0, leaf.shape[axis] - 1)
                if _equal(has, wanted) >= _MATCH > _equal(has, leaf.narrow(axis, 0, leaf.shape[axis] - 1)):
                    return _Shift(leaf, axis)
    return None


def _displaced(leaves: Iterable[Tensor], targets: Sequence[Tensor]) -> _Shift | None:
    """The tokens that a loss has as its target at their own positions or two or three on, and not one position on."""
    for leaf in leaves:
        for target in targets:
            if leaf.dim() != 2 or leaf.is_floating_point() or target.is_floating_point():
                continue
            axis = 0 if leaf.shape[1] < _SHORTEST else 1
            for known in range(leaf.shape[axis], leaf.shape[axis] - 4, -1):
                ahead = _distance(leaf, target, axis, known) if known >= _SHORTEST else None
                if ahead is not None:
                    return _Shift(leaf, axis, ahead)
    return None


def _distance(leaf: Tensor, target: Tensor, axis: int, known: int) -> int | None:
    """How far on in a sequence the targets of its first positions lie, other than by one."""
    if target.numel() != leaf.numel() // leaf.shape[axis] * known:
        return None
    shape = list(leaf.shape)
    shape[axis] = known
    has = target.reshape(shape)
    shares = []
    for ahead in range(4):
        both = min(known, leaf.shape[axis] - ahead)
        shares.append(_equal(has.narrow(axis, 0, both), leaf.narrow(axis, ahead, both)) if both > 1 else 0.0)
    best = max(range(4), key=shares.__getitem__)
    return best if best != 1 and shares[best] >= _MATCH > shares[1] else None


def _equal(target: Tensor, inputs: Tensor) -> float:
    """The share of positions that are equal, of those that are not left out by a negative label."""
    if target.is_floating_point() != inputs.is_floating_point():
        return 0.0
    counted = torch.ones_like(target, dtype=torch.bool) if target.is_floating_point() else target >= 0
    return float((target == inputs)[counted].double().mean()) if bool(counted.any()) else 0.0


def _counts(leaf: Tensor, target: Tensor) -> Iterator[tuple[int, int]]:
    """Axes of positions, the second first, and the number of positions that targets of this size can stand for."""
    for axis in (1, 0):
        for known in (leaf.shape[axis], leaf.shape[axis] - 1):
            if leaf.shape[axis] >= _SHORTEST and target.numel() == leaf.numel() // leaf.shape[axis] * known:
                yield axis, known


def _sequences(batch: Batch) -> list[Tensor]:
    leaves = tree_flatten(without_labels(batch.inputs))[0]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and _is_sequence(leaf)]


def _is_sequence(leaf: Tensor) -> bool:
    return leaf.dim() in (2, 3) and leaf.numel() > 0 and leaf.layout is torch.strided


def _paired(batch: Batch, leaf: Tensor) -> bool:
    """Whether a batch holds a tensor one position on as well."""
    others = [t for t in tree_flatten(batch.inputs)[0] if isinstance(t, Tensor) and t.numel()]
    return _shifted([leaf], others) is not None


def _later_changed(batch: Batch, shift: _Shift) -> Batch | None:
    """The batch whose inputs from the middle of the sequence on are another sample's."""
    new = _late_exchanged(shift)
    if new is None:
        return None
    return replace(batch, inputs=tree_map(lambda leaf: new if leaf is shift.leaf else leaf, batch.inputs))


def _late_exchanged(shift: _Shift) -> Tensor | None:
    """An input that is another sample's from the middle of the sequence on; None where these are the same."""
    new = shift.leaf.clone()
    half, rest = shift.length // 2, shift.length - shift.length // 2
    late = shift.leaf.roll(1, 1 - shift.axis).narrow(shift.axis, half, rest)
    new.narrow(shift.axis, half, rest).copy_(late)
    return None if torch.equal(new, shift.leaf) else new


def blind_handler(found: list[Blind]) -> Handler:
    """A handler that finds positions to which attention hides everything, in every sample; it notes nothing.

    Args:
        found: what is found is written there.
    """

    def before(step: Step) -> None:
        name = step.spec.name if step.spec is not None else step.name
        hidden = None
        if name == "softmax" and step.tensors and step.tensors[0].is_floating_point() and step.tensors[0].dim() > 2:
            axis = step.arguments[1] if len(step.arguments) > 1 else step.options.get("dim")
            hidden = step.tensors[0].detach().amax(axis) <= _HIDDEN if isinstance(axis, int) else None
        elif name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
            hidden = _masked_rows(step.options.get("attn_mask"), blocks=name.startswith("multi"))
        if hidden is None or not hidden.dim() or not bool(hidden.any()):
            return
        rows = hidden.reshape(-1, hidden.shape[-1]).all(0)
        if bool(rows.any()):
            found.append(Blind(operation_of(step), int(rows.sum()), len(rows)))

    return Handler(before=before)


def _masked_rows(mask: Any, *, blocks: bool) -> Tensor | None:
    """Of an attention mask, the rows that let nothing through; where it `blocks`, True hides an entry."""
    if not isinstance(mask, Tensor) or mask.dim() < 2:
        return None
    if mask.dtype == torch.bool:
        return mask.all(-1) if blocks else ~mask.any(-1)
    return mask.detach().amax(-1) <= _HIDDEN if mask.is_floating_point() else None
