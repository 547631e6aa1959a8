"""What a step is given and what it takes statistics of: first inputs, batch normalization, what the loss compares."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from theta0._moments import moments
from theta0._trace.calls import LinearCall
from theta0._trace.functions import Argument
from theta0._trace.interpreter import Handler, Step
from theta0.measurements.attainable_loss import AttainableLoss, Broadcast, Compared, comparison_handler

_BEHIND = object()  # the note on what lies behind a second layer, or a normalization
_RUNNING_VARIANCE, _TRAINING = (2, "running_var"), (5, "training")


@dataclass
class FirstInput:  # `normalised` is learnt later in the pass
    """The data as they meet a first layer.

    `mean` and `rms` are over all entries; `largest` and `median` are root mean squares of features.
    """

    layer: str
    mean: float
    rms: float
    largest: float
    median: float
    normalised: bool = False


@dataclass(frozen=True)
class BatchNormCall:
    """One application of batch normalization.

    `values` is how many a channel has, `ratio` the median over channels of the variance of its input over the running
    variance (NaN where that is not used); `fresh` says whether the running statistics are still (0, 1).
    """

    layer: str
    training: bool
    values: int
    ratio: float
    fresh: bool


@dataclass
class Inspection:  # grows during one pass; a plain accumulator
    """What was seen."""

    inputs: list[FirstInput] = field(default_factory=list)
    norms: list[BatchNormCall] = field(default_factory=list)
    compared: Compared = field(default_factory=Compared)

    @property
    def reaches(self) -> list[AttainableLoss]:
        """How low each term of the loss can get."""
        return self.compared.losses

    @property
    def broadcasts(self) -> list[Broadcast]:
        """Outputs and targets of unlike shapes that the loss compares."""
        return self.compared.broadcasts


@dataclass(frozen=True, eq=False)
class Inspectors:
    """What one pass over a step is watched with.

    `linear` is to be shown each application of a weight; outputs and targets are to be marked for `comparison`.
    """

    inspection: Inspection
    linear: Callable[[LinearCall], None]
    comparison: Handler
    handlers: tuple[Handler, ...]


def inspectors(model: nn.Module) -> Inspectors:
    """Handlers for one pass over a step, to stand behind the one that shows applications of weights."""
    found = Inspection()
    linear, inputs = _inputs_handler(found)
    comparison = comparison_handler(found.compared)
    return Inspectors(found, linear, comparison, (inputs, comparison, _batch_norm_handler(model, found)))


def _inputs_handler(found: Inspection) -> tuple[Callable[[LinearCall], None], Handler]:
    """Notes the first layer behind which a tensor lies, until a second layer or a normalization."""
    applied: list[LinearCall] = []

    def linear(call: LinearCall) -> None:
        applied[:] = [call]

    def after(step: Step, result: Any) -> Any:
        notes = [note for _, note in step.notes(handler)]
        call = applied.pop() if applied else None
        if call is not None:
            known = step.note(call.input, handler)
            if known is not None or not call.input.is_floating_point() or not call.input.numel():
                return _BEHIND
            found.inputs.append(_first_input(call))
            return found.inputs[-1]
        if step.spec is not None and step.spec.role in ("norm", "batch_norm"):
            for note in notes:
                if isinstance(note, FirstInput):
                    note.normalised = True
            return _BEHIND if notes else None
        return notes[0] if notes else None

    handler = Handler(after=after)
    return linear, handler


def _first_input(call: LinearCall) -> FirstInput:
    """Features lie along the axis that the weight sums over: the second of a convolution, else the last."""
    x = call.input.detach().double()
    axis = 1 if call.kind.startswith("conv") and x.dim() > 2 else -1
    squares = x.square().movedim(axis, -1).reshape(-1, x.shape[axis]).mean(0)
    rms = squares.sqrt()
    return FirstInput(call.layer, float(x.mean()), float(squares.mean().sqrt()), float(rms.max()), float(rms.median()))


def _batch_norm_handler(model: nn.Module, found: Inspection) -> Handler:
    """Notes nothing; looks at each batch normalization before it moves its running statistics."""
    paths = {id(m.running_mean): path for path, m in model.named_modules() if _has_statistics(m)}
    running_mean: Argument = (1, "running_mean")

    def before(step: Step) -> None:
        if step.spec is None or step.spec.role != "batch_norm":
            return
        x, mean = step.argument(step.spec.input), step.argument(running_mean)
        variance, training = step.argument(_RUNNING_VARIANCE), bool(step.argument(_TRAINING))
        layer, values = paths.get(id(mean), ""), x.numel() // x.shape[1]
        if training and values == 1:
            raise ValueError(
                f"layer {layer or 'of batch normalization'!r}: expected more than one value per channel, got input of "
                f"shape {tuple(x.shape)}, whose variance is zero; use larger batches, or call .eval() on that layer"
            )
        ratio, fresh = math.nan, False
        if isinstance(variance, Tensor) and isinstance(mean, Tensor):
            fresh = bool((mean == 0).all()) and bool((variance == 1).all())
            if not training and x.numel():
                own = moments(x.movedim(1, -1).flatten(0, -2))
                ratio = float((own.variance / variance.double().clamp_min(1e-300)).median())
        found.norms.append(BatchNormCall(layer, training, values, ratio, fresh))

    return Handler(before=before)


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor)
