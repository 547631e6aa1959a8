"""A captured step as a target file would state it: inputs, targets, and a loss of outputs and targets."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import load_batches
from theta0._losses import Loss, loss_of
from theta0._models import outputs_of
from theta0._state import preserve_state
from theta0.captures.assembly import unscaled
from theta0.captures.entries import Entry, Use, closure
from theta0.captures.passes import Pass
from theta0.captures.tape import CapturedBatch, Result, Tape, Value, Weight, finished, leaves_of, mapped, replay

_STANDARD = {
    "cross_entropy": "cross_entropy",
    "mse_loss": "mse",
    "l1_loss": "l1",
    "binary_cross_entropy_with_logits": "bce",
}
_PARALLEL = 1e-3  # of a gradient's norm: the same direction but for rounding


@dataclass(frozen=True, eq=False)
class ScriptLoss:
    """What a script does with the output of its model and with targets: a loss, called like one of a target file.

    Attributes:
        tape: the step; its first operation is the model's call.
        number: of the value that is the targets.
        joined: whether the script flattens the samples' axis of its targets with the next one.
        constants: the other values, which are the same in every batch.
        dtype: of the output as it was seen; constants of this dtype follow the output's.
    """

    tape: Tape
    number: int
    joined: bool
    constants: dict[int, Tensor]
    dtype: torch.dtype

    def __repr__(self) -> str:
        """The loss by the script's line where it ends."""
        return f"<the script's loss at {self.tape.operations[-1].surroundings.source}>"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss.

        Returns:
            A 0-d tensor.
        """
        values: dict[int, Tensor] = {
            number: value.to(outputs.device, outputs.dtype if value.dtype == self.dtype else value.dtype)
            for number, value in self.constants.items()
        }
        values[self.number] = targets.flatten(0, 1) if self.joined else targets
        return finished(_NO_MODULES, self.tape, values, [leaves_of(outputs)], exactly=False)


_NO_MODULES = nn.Module()  # behind the model's call nothing of it is used


def plain_form(
    model: nn.Module,
    batches: Sequence[Sequence[Pass]],
    taped: Sequence[CapturedBatch],
    cut: Callable[[Use], bool],
    inner: bool,
) -> tuple[list[Any], Loss] | None:
    """The batches and the loss as a target file would have them, where that gives the same numbers.

    The step has to be one call of the model, and a loss of its output and one tensor of targets. The loss has to be the
    same for every batch, draw nothing, write into nothing, use no weights, and treat samples apart: a sample's gradient
    has the same direction whichever other samples there are.

    Args:
        model: the script's.
        batches: the passes of each batch.
        taped: their tapes.
        cut: which results are data.
        inner: whether a constant factor at the end of the loss is left out.

    Returns:
        The batches and the loss; None for any other step.
    """
    found: list[tuple[Any, Any]] = []
    for passes, batch in zip(batches, taped, strict=True):
        root = passes[0].roots[0]
        if len(passes) > 1 or not passes[0].plain or root is None:
            return None
        end = unscaled(root)[0] if inner else root
        form = _standard_form(batch, closure([end], cut), end)
        if form is None or (found and form[1] != found[0][1]):
            return _free_form(model, batches, taped)
        found.append(form)
    data, loss = [form[0] for form in found], found[0][1]
    return (data, loss) if _same_form(model, data, loss, taped[0]) else None


def _standard_form(batch: CapturedBatch, entries: Sequence[Entry], root: Use) -> tuple[Any, Any] | None:
    """The batch and the loss, of a step that is one call of the model and a standard loss or the model's own."""
    calls = [entry for entry in entries if entry.module is not None]
    if len(calls) != 1 or calls[0] is not entries[0] or not _called_once(batch):
        return None
    call, inputs = calls[0], _inputs(batch)
    if len(entries) == 1 and root.place == call.own_loss:
        operation = batch.tape.operations[0]
        return (inputs, None) if not operation.arguments else None
    loss = _standard_loss(batch, entries) if len(entries) == 2 and call.single and inputs is not None else None
    return None if loss is None else ((inputs, loss[1]), loss[0])


def _called_once(batch: CapturedBatch) -> bool:
    """Whether the model's own call is the first operation and the only call, without autocast anywhere."""
    operations = batch.tape.operations
    others = (operation.path is None for operation in operations[1:])
    return operations[0].path == "" and all(others) and not any(o.surroundings.autocast for o in operations)


def _inputs(batch: CapturedBatch) -> Any:
    """What the model is called with: one argument, a tuple of them, or a mapping; None for both."""
    operation = batch.tape.operations[0]
    arguments, options = mapped((operation.arguments, operation.options), lambda leaf: _brought(batch, leaf))
    if arguments and options:
        return None
    if arguments:
        return arguments[0] if len(arguments) == 1 else tuple(arguments)
    return options


def _brought(batch: CapturedBatch, leaf: Any) -> Any:
    return batch.values[leaf.number] if isinstance(leaf, Value) else leaf


def _standard_loss(batch: CapturedBatch, entries: Sequence[Entry]) -> tuple[str, Any] | None:
    """A standard loss with default settings of the call's output and a constant."""
    operation = batch.tape.operations[1]
    name = _STANDARD.get(getattr(operation.function, "__name__", ""))
    arguments = list(operation.arguments)
    output = arguments[0] if arguments else operation.options.get("input")
    target = arguments[1] if len(arguments) > 1 else operation.options.get("target")
    rest = [value for key, value in operation.options.items() if key not in ("input", "target")]
    default = all(value in (None, "mean", -100, 0.0) for value in (*arguments[2:], *rest) if not _is_use(value))
    known = name is not None and output == Result(0, 0) and isinstance(target, Value)
    if not known or not default or any(_is_use(value) for value in (*arguments[2:], *rest)):
        return None
    assert name is not None
    assert isinstance(target, Value)
    return name, batch.values[target.number]


def _is_use(value: Any) -> bool:
    return isinstance(value, (Result, Value, Weight))


def _free_form(
    model: nn.Module, batches: Sequence[Sequence[Pass]], taped: Sequence[CapturedBatch]
) -> tuple[list[Any], Loss] | None:
    """The batches and the loss, of a step whose loss is the script's own."""
    first = taped[0]
    shapes = [_shape_of(batch) for batch in taped]
    single = all(one[0].roots[0].entry.calls and _single(one[0]) for one in batches)  # type: ignore[union-attr]
    if shapes[0] is None or any(shape != shapes[0] for shape in shapes) or not single:
        return None
    inputs, outputs = [_inputs(batch) for batch in taped], _output(model, _inputs(first), first)
    number = None if outputs is None else _targets(taped, len(outputs))
    if outputs is None or number is None:
        return None
    targets = [_rows(batch.values[number], len(outputs)) for batch in taped]
    if targets[0] is None or any(t is None for t in targets):
        return None
    constants = {n: first.values[n] for n in _behind(first) if n != number}
    loss = ScriptLoss(first.tape, number, targets[0].shape != first.values[number].shape, constants, outputs.dtype)
    data = list(zip(inputs, targets, strict=True))
    fits = _treats_samples_apart(loss, outputs, targets[0]) and _same_form(model, data, loss, first)
    return (data, loss) if fits else None


def _targets(taped: Sequence[CapturedBatch], samples: int) -> int | None:
    """The number of the value that differs between batches; where none does, of the only one with a row a sample."""
    brought = _behind(taped[0])
    first = taped[0].values
    varied = [n for n in brought if not all(torch.equal(first[n], batch.values[n]) for batch in taped)]
    found = varied or [n for n in brought if _rows(first[n], samples) is not None]
    return found[0] if len(found) == 1 else None


def _single(one: Pass) -> bool:
    assert one.roots[0] is not None
    return all(call.single for call in one.roots[0].entry.calls)


def _shape_of(batch: CapturedBatch) -> Any:
    """Equal for batches that are treated alike; None where the loss is not one of output and targets alone."""
    tape = batch.tape
    behind = tape.operations[1:]
    drawn = any(operation.surroundings.randomness is not None for operation in behind)
    names = [getattr(operation.function, "__name__", "") for operation in behind]
    written = any(name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) for name in names)
    weights: list[Any] = []
    mapped([(o.arguments, o.options) for o in behind], lambda leaf: weights.append(leaf) if _is_weight(leaf) else None)
    if not _called_once(batch) or _inputs(batch) is None or len(tape.roots) != 1:
        return None
    if drawn or written or weights or tape.leaves:
        return None
    form = [(o.function, o.arguments, o.options, o.surroundings.gradients) for o in behind]
    return form if tape.roots[0][1] is None and not tape.differentiates else None


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, Weight)


def _behind(batch: CapturedBatch) -> list[int]:
    """The numbers of the values that are used behind the model's call."""
    found: dict[int, None] = {}
    leaves = [(o.arguments, o.options) for o in batch.tape.operations[1:]]
    mapped(leaves, lambda leaf: found.setdefault(leaf.number) if isinstance(leaf, Value) else None)
    return [number for number in found if isinstance(batch.values[number], Tensor)]


def _output(model: nn.Module, inputs: Any, batch: CapturedBatch) -> Tensor | None:
    """The model's output on a batch, a row for each sample."""
    with preserve_state(model), torch.no_grad():
        outputs = outputs_of(model, inputs)
    return outputs if isinstance(outputs, Tensor) and outputs.dim() and outputs.is_floating_point() else None


def _rows(targets: Tensor, samples: int) -> Tensor | None:
    """Targets with a row for each sample; None where they have no such form."""
    if not targets.dim() or not len(targets) or len(targets) % samples:
        return None
    return targets if len(targets) == samples else targets.reshape(samples, -1, *targets.shape[1:])


def _treats_samples_apart(loss: ScriptLoss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether samples have gradients of the same direction among all, among the first half, and among every other."""
    whole = _gradient(loss, outputs, targets)
    parts = (slice(0, len(outputs) // 2), slice(0, None, 2))
    return len(outputs) > 1 and whole is not None and all(_same_among(loss, outputs, targets, whole, p) for p in parts)


def _same_among(loss: ScriptLoss, outputs: Tensor, targets: Tensor, whole: Tensor, part: slice) -> bool:
    try:
        found = _gradient(loss, outputs[part], targets[part])
    except (ValueError, RuntimeError, IndexError):
        return False
    if found is None:
        return False
    a, b = whole[part].double().flatten(), found.double().flatten()
    factor = float(a @ b / (b @ b)) if bool(b.any()) else 0.0
    return factor > 0 and float((a - factor * b).norm()) <= _PARALLEL * float(a.norm())


def _gradient(loss: ScriptLoss, outputs: Tensor, targets: Tensor) -> Tensor | None:
    leaf = outputs.detach().clone().requires_grad_()
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of shapes that do not fit
        value = loss(leaf, targets)
        return torch.autograd.grad(value, leaf, allow_unused=True)[0] if value.requires_grad else None


def _same_form(model: nn.Module, data: list[Any], loss: Loss, tape: CapturedBatch) -> bool:
    """Whether the loss and all gradients of a batch are those of the tape, bit for bit."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    makers: list[Callable[[], Tensor]] = [
        lambda: loss_of(model, load_batches(data[:1], model)[0], loss)[0],
        lambda: replay(model, tape),
    ]
    values: list[list[Tensor | None]] = []
    try:
        for make in makers:
            with preserve_state(model), torch.enable_grad():
                torch.manual_seed(0)
                value = make()
                values.append([value.detach(), *torch.autograd.grad(value, parameters, allow_unused=True)])
    except (ValueError, RuntimeError):
        return False
    pairs = zip(*values, strict=True)
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)
