"""Work split, and sums and means, over the ranks of a process group, where there is one."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import distributed

Number = TypeVar("Number", int, float)


def ranks() -> int:
    """How many processes measure together: the size of the default process group, 1 where there is none."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def summed(value: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all ranks, equal on each; the given one where there is one process."""
    if ranks() == 1:
        return value
    total = value.clone()
    distributed.all_reduce(total)
    return total


def averaged(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The means of tensors over all ranks, detached, exchanged all at once; each must bring the same shapes."""
    detached = [value.detach() for value in values]
    if ranks() == 1 or not detached:
        return detached
    means = summed(torch.cat([value.flatten() for value in detached])) / ranks()
    parts = torch.split(means, [value.numel() for value in detached])
    return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, detached, strict=True)]


def share(items: torch.Tensor) -> torch.Tensor:
    """This rank's part of a list that all ranks have: consecutive entries; parts differ by one at most."""
    if ranks() == 1:
        return items
    return items.tensor_split(ranks())[distributed.get_rank()]


def gathered(part: torch.Tensor, total: int) -> torch.Tensor:
    """The parts of all ranks, each its `share` of `total` entries, in order along the first axis.

    It is equal on every rank; each rank's derivative is that of its own part.
    """
    if ranks() == 1:
        return part
    whole: torch.Tensor = _Gathered.apply(part, total)  # type: ignore[no-untyped-call]
    return whole


def from_first(number: Number) -> Number:
    """The first rank's number."""
    if ranks() == 1:
        return number
    held = [number]
    distributed.broadcast_object_list(held, src=0)
    return held[0]


class _Gathered(
    torch.autograd.Function
):  # torch's own gather sums derivatives over ranks, which counts them twice here
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, total: int) -> torch.Tensor:
        sizes = [len(piece) for piece in torch.arange(total).tensor_split(ranks())]
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part.detach()
        pieces = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(pieces, padded)
        rank = distributed.get_rank()
        ctx.rows = sum(sizes[:rank]), sum(sizes[: rank + 1])
        return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        begin, end = ctx.rows
        return gradients[0][begin:end], None
