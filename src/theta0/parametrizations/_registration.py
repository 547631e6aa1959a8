"""A weight's `Parameter` keeps its storage and its gradient accumulator while it is parametrized and made plain again.

torch points the `Parameter` at another storage (`Tensor.set_`), which drops its gradient accumulator. What listens
there is dropped with it: `DistributedDataParallel` waits for gradients that never come, and post-accumulate hooks are
silent. Here torch registers a stand-in, and the `Parameter` itself takes its place with the value written into it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def same_parameter(layer: nn.Module, name: str) -> Iterator[None]:
    """Within the block a parametrization of a plain weight is registered; the weight's `Parameter` stays as it was.

    One whose parametrization needs another shape, or several tensors, is torch's affair: it is replaced, or pointed at
    other values.
    """
    own: Any = layer._parameters[name]
    layer._parameters[name] = nn.Parameter(own.detach().clone(), own.requires_grad)
    try:
        yield
    except BaseException:
        layer._parameters[name] = own
        raise
    made: Any = layer.parametrizations[name]  # type: ignore[index]
    if made.is_tensor and made.original.shape == own.shape:
        own.data.copy_(made.original.data)
        made._parameters["original"] = own


def stand_in_(made: Any) -> nn.Parameter | None:
    """Put a stand-in into a parametrization that torch is about to remove.

    Returns:
        The `Parameter` whose place it takes; None where there are several, or its shape is not the weight's.
    """
    own = made._parameters.get("original") if made.is_tensor else None
    if own is None or made().shape != own.shape:
        return None
    made._parameters["original"] = nn.Parameter(own.detach().clone(), own.requires_grad)
    return own  # type: ignore[no-any-return]


def put_parameter_(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Let a plain weight be this `Parameter`, for a recurrent layer's list of its weights too."""
    module._parameters[name] = parameter
    listed = getattr(module, "_flat_weights_names", ())
    if name in listed and "_flat_weights" in module.__dict__:
        module.__dict__["_flat_weights"] = [getattr(module, each, None) for each in listed]
