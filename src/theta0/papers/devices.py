"""Where the sources' networks are trained: one device for all that is computed within a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_DEVICE: ContextVar[torch.device | None] = ContextVar("device", default=None)


def device() -> torch.device:
    """Where networks and the batches they see belong; draws stay on the CPU, so that they are the same everywhere."""
    return _DEVICE.get() or torch.device("cpu")


@contextmanager
def computing_on(name: str) -> Iterator[None]:
    """Train on a device within the block, in this process.

    Args:
        name: such as `cuda`, `cuda:1`, `cpu`.

    Raises:
        ValueError: torch finds no such device here.

    >>> with computing_on("cpu"):
    ...     device()
    device(type='cpu')
    """
    try:
        found = torch.device(name)
        torch.ones(1).to(found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device: expected a device that torch finds here, got {name!r} ({reason})") from error
    token = _DEVICE.set(found)
    try:
        yield
    finally:
        _DEVICE.reset(token)
