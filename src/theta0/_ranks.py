"""Sums and means over the ranks of a process group, where there is one."""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed


def ranks() -> int:
    """How many processes measure together.

    Returns:
        The size of the default process group; 1 where there is none.
    """
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def summed(value: Tensor) -> Tensor:
    """The sum of a tensor over all ranks.

    Returns:
        A new tensor, equal on every rank; the given one where there is one process.
    """
    if ranks() == 1:
        return value
    total = value.clone()
    distributed.all_reduce(total)
    return total


def averaged(values: Sequence[Tensor]) -> list[Tensor]:
    """The means of tensors over all ranks, exchanged all at once; every rank must bring the same shapes.

    Returns:
        New detached tensors, equal on every rank; detached views of the given ones where there is one process.
    """
    detached = [value.detach() for value in values]
    if ranks() == 1 or not detached:
        return detached
    means = summed(torch.cat([value.flatten() for value in detached])) / ranks()
    parts = torch.split(means, [value.numel() for value in detached])
    return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, detached, strict=True)]
