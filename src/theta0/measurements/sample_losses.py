"""The loss of one sample: what a batch's loss is the mean or the sum of, and its gradients one sample at a time."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from theta0._batches import Batch, sliced
from theta0._losses import Loss, loss_of, named_loss
from theta0._models import outputs_of, without_labels

_CHUNK = 32  # samples differentiated at a time under vmap


@dataclass(frozen=True, eq=False)
class SampleLoss:
    """The sum of sample losses ℓ_i over any part of a batch; the batch's own loss is their mean or their sum.

    The loss of a part is multiplied by `weight` and, where `by_size` (a mean), by the part's number of samples.
    """

    loss: Loss
    weight: float
    by_size: bool

    @property
    def mean(self) -> bool:
        """Whether the batch's loss is a mean."""
        return self.by_size or isinstance(self.loss, str)

    def ratio(self, batch: Batch) -> int:
        """What the batch's loss is multiplied by to be the sum of its sample losses: n for a mean, 1 for a sum."""
        return batch.size if self.mean else 1

    def total(self, model: nn.Module, part: Batch) -> Tensor:
        """Σ ℓ_i over a part."""
        if isinstance(self.loss, str):
            return _summed(model, part, self.loss) * self.weight
        return loss_of(model, part, self.loss)[0] * (self.weight * (part.size if self.by_size else 1))


def sample_loss(model: nn.Module, batch: Batch, loss: Loss, value: float) -> SampleLoss:
    """How a batch's loss is made of sample losses, found out on two halves of the batch.

    Named losses are means over elements; labels of -100 count for nothing, as in torch.

    Raises:
        ValueError: if the batch's loss is not the mean or the sum over its samples.
    """
    size, middle = batch.size, (batch.size + 1) // 2
    if isinstance(loss, str):
        with torch.no_grad():
            whole = float(_summed(model, batch, loss))
        candidates = [SampleLoss(loss, value * size / whole if whole else 1.0, by_size=False)]
    else:
        candidates = [SampleLoss(loss, 1.0, by_size=True), SampleLoss(loss, 1.0, by_size=False)]
    if size == 1:
        return candidates[0]
    halves = [sliced(batch, slice(0, middle)), sliced(batch, slice(middle, size))]
    sums: list[float] = []
    for candidate in candidates:
        with torch.no_grad():
            parts = [float(candidate.total(model, half)) for half in halves]
        ratio = candidate.ratio(batch)
        sums.append(sum(parts) / ratio)
        if abs(sums[-1] - value) <= tolerance(model) * max(sum(map(abs, parts)) / ratio, abs(value)):
            return candidate
    found = " or ".join(f"{s:.6g}" for s in sums)
    raise ValueError(
        f"loss: expected the mean or the sum of one loss per sample, got {value:.6g} on batch {batch.number} where its "
        f"two halves make {found}; a sample has no gradient of its own if samples meet in the model or in the loss "
        "(masked means, class weights, contrastive terms, targets that broadcast): fix the loss's denominator, use "
        'reduction="sum", name the loss ("cross_entropy" handles ignored labels), or pass sub_batches=D'
    )


def tolerance(model: nn.Module) -> float:
    """How far two ways of computing the same may be apart: 1e-4 of their size in single precision, else 1e-9."""
    kinds = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return max([1e-9, *(1e3 * torch.finfo(kind).eps for kind in kinds)])


def per_sample_gradients(
    model: nn.Module, batch: Batch, losses: SampleLoss, names: Sequence[str]
) -> Iterator[tuple[int, Float[Tensor, "n entries"]]]:
    """Gradients of single samples, by `vmap(grad)` some at a time, or one by one where vmap cannot follow.

    Yielded are the number of the first sample and a block of gradients, all parameters flattened side by side.
    """
    parameters = dict(model.named_parameters())
    wanted = {name: parameters[name] for name in names}
    for start in range(0, batch.size, _CHUNK):
        stop = min(start + _CHUNK, batch.size)
        part = sliced(batch, slice(start, stop))
        rows = _mapped(model, part, losses, wanted)
        yield start, _one_by_one(model, part, losses, wanted) if rows is None else rows


def _mapped(
    model: nn.Module, part: Batch, losses: SampleLoss, wanted: Mapping[str, Tensor]
) -> Float[Tensor, "n entries"] | None:
    """By vmap; None where it raises, or disagrees with plain differentiation on the part's first sample."""
    leaves, spec = tree_flatten((part.inputs, part.targets))
    axes = [0 if _per_sample(leaf, part.size) else None for leaf in leaves]
    objective = _Objective(model, losses)

    def value(values: dict[str, Tensor], *sample: Any) -> Tensor:
        whole = [leaf[None] if axis == 0 else leaf for leaf, axis in zip(sample, axes, strict=True)]
        inputs, targets = tree_unflatten(whole, spec)
        alone = replace(part, inputs=inputs, targets=targets, size=1)
        result = functional_call(objective, values, (alone,))
        assert isinstance(result, Tensor)
        return result

    detached = {f"model.{name}": p.detach() for name, p in wanted.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's notes on slow batching rules
            found = vmap(grad(value), in_dims=(None, *axes))(detached, *leaves)
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError):
        return None
    rows = torch.cat([found[name].flatten(1) for name in detached], 1).detach()
    first = _one_by_one(model, sliced(part, slice(0, 1)), losses, wanted)
    close = (rows[:1] - first).norm() <= tolerance(model) * 10 * first.norm()
    return rows if bool(close) else None


def _one_by_one(
    model: nn.Module, part: Batch, losses: SampleLoss, wanted: Mapping[str, Tensor]
) -> Float[Tensor, "n entries"]:
    rows = [
        gradients_of(losses.total(model, sliced(part, slice(i, i + 1))), list(wanted.values()), part)
        for i in range(part.size)
    ]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


def gradients_of(value: Tensor, parameters: Sequence[Tensor], batch: Batch) -> list[Tensor]:
    """Plain gradients, dense, zero where a parameter is not used."""
    if not value.requires_grad:
        return [torch.zeros_like(p) for p in parameters]
    try:
        found = torch.autograd.grad(value, list(parameters), allow_unused=True)
    except RuntimeError as error:
        raise ValueError(f"batch {batch.number}: the backward pass raised {str(error).splitlines()[0]}") from error
    return [
        torch.zeros_like(p) if g is None else (g.to_dense() if g.is_sparse else g).detach()
        for p, g in zip(parameters, found, strict=True)
    ]


class _Objective(nn.Module):  # so that a loss that reads the model's parameters sees the substituted ones
    def __init__(self, model: nn.Module, losses: SampleLoss) -> None:
        super().__init__()
        self.model, self.losses = model, losses

    def forward(self, part: Batch) -> Tensor:
        """Σ ℓ_i."""
        return self.losses.total(self.model, part)


def _per_sample(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == size


def _summed(model: nn.Module, part: Batch, loss: str) -> Tensor:
    """A named loss summed over elements."""
    return named_loss(loss, outputs_of(model, without_labels(part.inputs)), part, reduction="sum")
