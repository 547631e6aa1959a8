"""Sums over the ranks of a process group, where there is one."""

import torch
from torch import distributed


def ranks() -> int:
    """How many processes measure together.

    Returns:
        The size of the default process group; 1 where there is none.
    """
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def summed(value: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor over all ranks.

    Returns:
        A new tensor, equal on every rank; the given one where there is one process.
    """
    if ranks() == 1:
        return value
    total = value.clone()
    distributed.all_reduce(total)
    return total
