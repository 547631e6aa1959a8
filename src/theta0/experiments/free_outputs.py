"""What a loss can reach, found by gradient steps on the outputs alone: no list of losses is needed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from theta0._batches import Batch
from theta0._losses import Loss, applied, constant_loss, loss_of
from theta0._models import main_output
from theta0._state import preserve_state, seed_draws
from theta0._trace.interpreter import trace
from theta0.measurements.attainable_loss import Compared, Known, comparison_handler
from theta0.measurements.intervals import Interval

_ITERATIONS = 30  # of L-BFGS; twice, to see whether the loss has a minimum
_UNBOUNDED = 0.02  # of the first fall: what still falls by so much in the second half has no minimum
_HUGE = 1e6  # times the first loss: below minus this it has no minimum
_FAR = 10.0  # root mean square of outputs: from farther away the optimizer starts nearer too
_HALF = (torch.float16, torch.bfloat16)
_Choose = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class FreeOutputs:
    """How low a loss gets when the outputs that it is given are chosen freely.

    Attributes:
        first: with the model's own outputs.
        constant: with the best outputs that are the same for every sample; None where there is no such thing.
        least: with any outputs; minus infinity where it falls without end; None where it could not be found.
        confined: with any outputs inside `interval`; None where nothing confines them.
        interval: to which the last operation confines the outputs, whatever is learned.
    """

    first: float
    constant: float | None
    least: float | None
    confined: float | None = None
    interval: Interval | None = None

    @property
    def scale(self) -> float | None:
        """What there is to learn: the best constant outputs' loss above the least one."""
        if self.constant is None or self.least is None or not math.isfinite(self.least):
            return None
        return self.constant - self.least

    @property
    def gap(self) -> float:
        """What the last operation keeps out of reach, as a share of what there is to learn; 0 where it is not known."""
        if self.confined is None or self.scale is None or self.least is None or not self.scale > 0:
            return 0.0
        return (self.confined - self.least) / self.scale


def free_outputs(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> FreeOutputs | None:
    """Choose the outputs by L-BFGS on the loss: the same for all samples, any, and any inside their interval.

    The model is run once per batch and left as it was. A last softmax is imposed as it is, any other interval by
    o = low + (high - low) σ(z), or by a softplus where one end is free.

    Args:
        model: the model, in the mode in which it is trained.
        batches: the constant is common to all, the other two are taken on the first.
        loss: a name or callable of outputs and targets.

    Returns:
        The losses; None where the loss is the model's own or cannot be taken of other outputs.
    """
    if loss is None:
        return None
    with preserve_state(model), torch.enable_grad():
        seed_draws(0)
        given, interval = _outputs_with_interval(model, batches[0], loss)
        outputs = [given, *(_detached(loss_of(model, batch, loss)[1]) for batch in batches[1:])]
        first = sum(_loss(loss, o, b) for o, b in zip(outputs, batches, strict=True)) / len(batches)
        least = _minimum(loss, outputs[:1], batches[:1], lambda leaves: leaves)
        confined = None
        allowed = _allowed(given, interval)
        if allowed is not None:
            confined = _minimum(loss, outputs[:1], batches[:1], lambda leaves: [allowed(z) for z in leaves])
        constant = _constant(loss, outputs, batches, allowed or (lambda z: z))
        if least is not None and constant is not None:
            least = min(least, constant)  # outputs that are the same for all are chosen too
    return FreeOutputs(first, constant, least, confined, interval)


def _outputs_with_interval(model: nn.Module, batch: Batch, loss: Loss) -> tuple[Any, Interval | None]:
    handler = comparison_handler(Compared())
    with trace(model, handler) as interpreter:
        _, outputs = loss_of(model, batch, loss)
        known: Known | None = interpreter.note_of(main_output(outputs), handler)
    return _detached(outputs), None if known is None else known.interval


def _allowed(outputs: Any, interval: Interval | None) -> Callable[[Tensor], Tensor] | None:
    """What maps free numbers to what the last operation allows: a softmax itself, else into its interval."""
    values = main_output(outputs)
    if interval is None or values is None or not (math.isfinite(interval.low) or math.isfinite(interval.high)):
        return None
    for function, probabilities in ((torch.softmax, values), (torch.log_softmax, values.exp())):
        sums = ((axis, probabilities.sum(axis)) for axis in range(values.dim() - 1, 0, -1))
        one = next((axis for axis, total in sums if torch.allclose(total, torch.ones_like(total), atol=1e-3)), None)
        if one is not None and interval.by == function.__name__:
            return lambda z: function(z, one)
    return lambda z: _inside(z, interval)


def _constant(
    loss: Loss, outputs: Sequence[Any], batches: Sequence[Batch], allowed: Callable[[Tensor], Tensor]
) -> float | None:
    """In closed form where there is one, over all batches together if they can be joined."""
    together = _joined(outputs, batches)
    if together is not None:
        found = constant_loss(loss, *together)
    else:
        each = [constant_loss(loss, o, b) for o, b in zip(outputs, batches, strict=True)]
        found = None if any(c is None for c in each) else sum(c for c in each if c is not None) / len(each)
    if found is not None:
        return found if math.isfinite(found) else None
    sizes = [batch.size for batch in batches]
    if any(_leaves(o)[0].shape[1:] != _leaves(outputs[0])[0].shape[1:] for o in outputs if _leaves(o)):
        return None
    reached = _minimum(loss, outputs, batches, lambda leaves: [allowed(z) for z in _rows(sizes)(leaves)])
    return reached if reached is not None and math.isfinite(reached) else None


def _joined(outputs: Sequence[Any], batches: Sequence[Batch]) -> tuple[Any, Batch] | None:
    parts, targets = [main_output(o) for o in outputs], [b.targets for b in batches]
    if not all(isinstance(t, Tensor) for t in (*parts, *targets)):
        return None
    if len({(t.shape[1:], t.dtype) for t in targets}) > 1 or len({p.shape[1:] for p in parts if p is not None}) > 1:
        return None
    size = sum(batch.size for batch in batches)
    return torch.cat([p for p in parts if p is not None]), replace(batches[0], targets=torch.cat(targets), size=size)


def _rows(sizes: Sequence[int]) -> _Choose:
    """Outputs of all batches from one sample's."""

    def choose(leaves: list[Tensor]) -> list[Tensor]:
        per_batch = len(leaves) // len(sizes)
        rows = leaves[:per_batch]
        return [row[:1].expand(size, *row.shape[1:]) for size in sizes for row in rows]

    return choose


def _inside(z: Tensor, interval: Interval) -> Tensor:
    low, high = interval.low, interval.high
    if math.isfinite(low) and math.isfinite(high):
        return low + (high - low) * torch.sigmoid(z)
    return low + nn.functional.softplus(z) if math.isfinite(low) else high - nn.functional.softplus(z)


def _minimum(loss: Loss, outputs: Sequence[Any], batches: Sequence[Batch], choose: _Choose) -> float | None:
    """The least mean loss over what `choose` makes of free tensors shaped as the outputs; -inf where there is none.

    From the outputs as they are; where these are large, from outputs of size one too.
    """
    leaves = [leaf.detach().double() for o in outputs for leaf in _leaves(o)]
    size = max((float(leaf.square().mean().sqrt()) for leaf in leaves if leaf.numel()), default=0.0)
    starts = [1.0, 1 / size] if _FAR < size < math.inf else [1.0]
    found = [_minimum_from(start, loss, outputs, batches, choose) for start in starts]
    return min((least for least in found if least is not None), default=None)


def _minimum_from(
    start: float, loss: Loss, outputs: Sequence[Any], batches: Sequence[Batch], choose: _Choose
) -> float | None:
    shapes = [tree_flatten(o) for o in outputs]
    floating = [[place for place, leaf in enumerate(leaves) if _is_free(leaf)] for leaves, _ in shapes]
    free = [
        (start * (leaf.float() if leaf.dtype in _HALF else leaf)).clone().requires_grad_()
        for (leaves, _), places in zip(shapes, floating, strict=True)
        for leaf in (leaves[p] for p in places)
    ]
    if not free or any(leaf.dim() == 0 for leaf in free):
        return None

    def value() -> Tensor:
        chosen, terms = iter(choose(free)), []
        for (leaves, form), places, batch in zip(shapes, floating, batches, strict=True):
            filled = [next(chosen) if place in places else leaf for place, leaf in enumerate(leaves)]
            seed_draws(0)  # a loss may draw
            terms.append(applied(loss, tree_unflatten(filled, form), batch))
        return torch.stack(terms).mean()

    try:
        size = abs(float(value().detach()))  # the optimizer's tolerances are absolute, and a loss may be 1e-9 or 1e9
        unit = size if math.isfinite(size) and size > 0 else 1.0
        found = _descended(lambda: value() / unit, free)
        return None if found is None else unit * found
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
    ):  # the loss refuses other outputs than the model's
        return None


def _descended(value: Callable[[], Tensor], free: list[Tensor]) -> float | None:
    optimizer = torch.optim.LBFGS(free, lr=1, max_iter=_ITERATIONS, line_search_fn="strong_wolfe")
    reached: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        found = value()
        reached.append(float(found.detach()))
        gradients = torch.autograd.grad(found, free, allow_unused=True)
        for leaf, gradient in zip(free, gradients, strict=True):
            leaf.grad = torch.zeros_like(leaf) if gradient is None else gradient
        return found

    def descend() -> None:
        try:
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        except IndexError:  # torch's line search, where values cease to be finite
            if not reached or math.isfinite(reached[-1]):
                raise

    descend()
    half = min((r for r in reached if math.isfinite(r)), default=math.nan)
    descend()
    least = min((r for r in reached if math.isfinite(r)), default=math.nan)
    if math.isnan(least) or not math.isfinite(reached[0]):
        return None
    falls_on = half - least > _UNBOUNDED * abs(reached[0] - half) or least < -_HUGE * max(1.0, abs(reached[0]))
    return -math.inf if falls_on else least


def _loss(loss: Loss, outputs: Any, batch: Batch) -> float:
    seed_draws(0)
    return float(applied(loss, outputs, batch).detach())


def _detached(outputs: Any) -> Any:
    leaves, form = tree_flatten(outputs)
    return tree_unflatten([leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves], form)


def _leaves(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(outputs)[0] if _is_free(leaf)]


def _is_free(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
