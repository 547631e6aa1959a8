"""What a step is given and what it takes statistics of: first inputs, batch normalization, what the loss compares."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from theta0._models import main_output
from theta0._moments import moments
from theta0._trace.calls import LinearCall
from theta0._trace.functions import Argument
from theta0._trace.interpreter import Handler, Interpreter, Step
from theta0._trace.operations import Operation
from theta0.measurements.affine_chain import AffineChain, affine_handler
from theta0.measurements.attainable_loss import AttainableLoss, Broadcast, Compared, comparison_handler
from theta0.measurements.causality import Blind, blind_handler
from theta0.measurements.class_axis import class_axis_handler
from theta0.measurements.foreign_parameters import Foreign, foreign_handler
from theta0.measurements.gradient_paths import FACTORIES
from theta0.measurements.loss_contracts import Breach, Compare, Contracts, contracts_handler, negated, unbounded
from theta0.measurements.loss_terms import count_handler
from theta0.measurements.normalized_layers import normalized_handler
from theta0.measurements.padding import Padding, padding_handler
from theta0.measurements.pair_ranks import pairing_handler
from theta0.measurements.recurrences import cuts_handler
from theta0.measurements.stretched_pairs import pairs_handler

_BEHIND = object()  # the note on what lies behind a second layer, or a normalization
_CONSTANT = object()  # the note on what was made without the data
_RUNNING_VARIANCE, _TRAINING = (2, "running_var"), (5, "training")


@dataclass
class FirstInput:  # `normalised` is learnt later in the pass
    """The data as they meet a first layer.

    Attributes:
        layer: the layer.
        mean: over all entries.
        rms: root mean square over all entries.
        largest: the largest feature's root mean square.
        median: the median feature's.
        extreme: the largest magnitude.
        silent: the share of samples whose every entry is zero.
        constant: whether it was made without the data, as a grid or a first hidden state.
        normalised: whether a normalization follows before any other weight.
        rows: how many there are along the first axis.
        repeated: whether there are several and all are the same.
    """

    layer: str
    mean: float
    rms: float
    largest: float
    median: float
    extreme: float = math.nan
    silent: float = 0.0
    constant: bool = False
    normalised: bool = False
    rows: int = 0
    repeated: bool = False


@dataclass(frozen=True)
class BatchNormCall:
    """One application of batch normalization.

    `values` is how many a channel has, `ratio` the median over channels of the variance of its input over the running
    variance, `offset` that of the squared distance of its input's mean from the running mean, over its input's own
    variance (NaN where running statistics are not used); `fresh` says whether these are still (0, 1).
    """

    layer: str
    training: bool
    values: int
    ratio: float
    fresh: bool
    offset: float = math.nan

    @property
    def size(self) -> float:
        """Mean square of what it puts out, before its gain and bias; 1 where its running statistics fit."""
        return self.ratio * (1 + self.offset)


@dataclass
class Inspection:  # grows during one pass; a plain accumulator
    """What was seen."""

    inputs: list[FirstInput] = field(default_factory=list)
    norms: list[BatchNormCall] = field(default_factory=list)
    compared: Compared = field(default_factory=Compared)
    foreign: list[Foreign] = field(default_factory=list)
    contracts: Contracts = field(default_factory=Contracts)
    blind: list[Blind] = field(default_factory=list)
    padding: Padding = field(default_factory=Padding)
    chain: AffineChain = field(default_factory=AffineChain)
    summands: int = 1
    cuts: int = 0  # operations at which a gradient ends
    constant_derivatives: bool = (
        False  # whether a derivative in the step has no graph of its own, or is zero everywhere
    )
    pairs: bool = False  # whether a loss tells the samples of the batch apart
    normalized: set[str] = field(default_factory=set)  # layers behind which a normalization comes before another weight
    bounded: bool = False  # whether the loss is a sum of standard losses, and so has a lower bound

    @property
    def reaches(self) -> list[AttainableLoss]:
        """How low each term of the loss can get."""
        return self.compared.losses

    @property
    def breaches(self) -> list[Breach]:
        """Values that a loss does not take."""
        return self.contracts.breaches

    @property
    def comparisons(self) -> list[Compare]:
        """What regressions compare."""
        return self.contracts.comparisons

    @property
    def labelled(self) -> bool:
        """Whether a classification loss was given the batch's targets."""
        return self.contracts.labelled

    @property
    def broadcasts(self) -> list[Broadcast]:
        """Outputs and targets of unlike shapes that the loss compares."""
        return self.compared.broadcasts


@dataclass(frozen=True, eq=False)
class Inspectors:
    """What one pass over a step is watched with.

    Attributes:
        inspection: what it finds.
        linear: to be shown each application of a weight.
        comparison: the handler that outputs and targets are to be marked for.
        counting: the handler whose note on the loss is how many summands it has.
        affine: the handler whose note on an output says what lies between the weights before it.
        contracts: the handler whose note on the loss says whether it is negated.
        pairs: the handler whose note on the loss says what was stretched against each other on the way to it.
        handlers: all of them.
    """

    inspection: Inspection
    linear: Callable[[LinearCall], None]
    comparison: Handler
    counting: Handler
    affine: Handler
    contracts: Handler
    pairs: Handler
    handlers: tuple[Handler, ...]

    def finished(self, interpreter: Interpreter, value: Tensor, outputs: Any) -> tuple[Tensor, Any]:
        """Take what the notes on the loss and the outputs say, and hand these on."""
        self.inspection.summands = interpreter.note_of(value, self.counting) or 1
        self.inspection.chain = interpreter.note_of(main_output(outputs), self.affine) or AffineChain()
        stretched = interpreter.note_of(value, self.pairs)
        if stretched is not None and not self.inspection.broadcasts:
            self.inspection.broadcasts.extend(stretched.pairs)
        known, shown = interpreter.note_of(value, self.comparison), float(value.detach())
        interval = None if known is None else known.interval
        grows = interpreter.note_of(value, self.contracts)
        self.inspection.bounded = grows == 1
        whole = Operation("loss", "", "the loss", "", 0)
        if grows == -1:
            self.inspection.breaches.append(negated(whole, shown))
        elif interval is not None and interval.low == -math.inf and interval.high <= 0 and value.requires_grad:
            self.inspection.breaches.append(unbounded(whole, shown, interval.by.removeprefix("mean of ")))
        return value, outputs


def inspectors(model: nn.Module) -> Inspectors:
    """Handlers for one pass over a step, to stand behind the one that shows applications of weights."""
    found = Inspection()
    met, inputs = _inputs_handler(found)
    behind, normalized = normalized_handler(found.normalized)
    comparison, counting, affine = comparison_handler(found.compared), count_handler(), affine_handler()
    contracts, pairs = contracts_handler(found.contracts, comparison), pairs_handler()

    def linear(call: LinearCall) -> None:
        met(call)
        behind(call)

    def cut(step: Step) -> None:
        if step.function is torch.autograd.grad:
            found.constant_derivatives = True
        else:
            found.cuts += 1

    def paired() -> None:
        found.pairs = True

    others = (
        normalized,
        cuts_handler(cut),
        pairing_handler(paired),
        padding_handler(found.padding),
        contracts,
        class_axis_handler(found.contracts.breaches),
        pairs,
        blind_handler(found.blind),
        foreign_handler(model, found.foreign),
        _batch_norm_handler(model, found),
    )
    handlers = (inputs, comparison, counting, affine, *others)
    return Inspectors(found, linear, comparison, counting, affine, contracts, pairs, handlers)


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
            if isinstance(call.input, nn.Parameter):
                return _BEHIND  # a product of weights, as of an adapter's factors, is no look at the data
            if known is _CONSTANT and call.input.is_floating_point() and call.input.numel():
                found.inputs.append(replace(_first_input(call), constant=True))
                return found.inputs[-1]
            if known is not None or not call.input.is_floating_point() or not call.input.numel():
                return _BEHIND
            found.inputs.append(_first_input(call))
            return found.inputs[-1]
        if step.spec is not None and step.spec.role in ("norm", "batch_norm"):
            for note in notes:
                if isinstance(note, FirstInput):
                    note.normalised = True
            return _BEHIND if notes else None
        if not step.tensors or step.name in FACTORIES:
            return _CONSTANT
        known = [note for note in notes if note is not _CONSTANT]
        return known[0] if known else _CONSTANT if len(notes) == len(step.tensors) else None

    handler = Handler(after=after)
    return linear, handler


def _first_input(call: LinearCall) -> FirstInput:
    """Features lie along the axis that the weight sums over: the second of a convolution, else the last."""
    x = call.input.detach().double()
    axis = 1 if call.kind.startswith("conv") and x.dim() > 2 else -1
    squares = x.square().movedim(axis, -1).reshape(-1, x.shape[axis]).mean(0)
    rms = squares.sqrt()
    several = x.dim() > 1
    silent = (x.reshape(len(x), -1) == 0).all(1).double().mean() if several else x.new_zeros(())
    repeated = (x == x[:1]).all().double() if several and len(x) > 1 else x.new_zeros(())
    asked = [x.mean(), squares.mean().sqrt(), rms.max(), rms.median(), x.abs().max(), silent, repeated]
    mean, size, largest, median, extreme, share, same = torch.stack(asked).tolist()  # one wait for the device
    return FirstInput(call.layer, mean, size, largest, median, extreme, share, rows=len(x), repeated=bool(same))


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
        ratio, offset, fresh = math.nan, math.nan, False
        if isinstance(variance, Tensor) and isinstance(mean, Tensor):
            fresh = bool(((mean == 0) & (variance == 1)).all())
            if not training and x.numel():
                own = moments(x.movedim(1, -1).flatten(0, -2))
                ratio = float((own.variance / variance.double().clamp_min(1e-300)).median())
                distance = (own.mean - mean.double()).square()
                offset = float((distance / own.variance.clamp_min(1e-30)).median())
        found.norms.append(BatchNormCall(layer, training, values, ratio, fresh, offset))

    return Handler(before=before)


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor)
