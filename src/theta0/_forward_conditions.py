"""The conditions under which a forward pass can be differentiated twice, and repeats exactly."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map

from theta0._batches import Batch
from theta0._trace.interpreter import no_dropout
from theta0._untouched import untouched

_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Within the block a forward pass of the model has a double backward; afterwards the model is as it was.

    Dropout is off (modules, functionals, attention and recurrent layers); attention runs on the kernel written in
    plain operations, since the fused ones have no double backward; recurrent layers run without cuDNN for the same
    reason; compiled regions run eagerly. Modes stay as found, so batch normalisation in training mode uses
    batch statistics; the running ones are put back.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if recurrent:
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.training = False
            elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
                module.dropout = 0.0
        yield


@contextmanager
def steady(model: nn.Module) -> Iterator[None]:
    """Within the block functional dropout is off and compiled regions run eagerly; buffers are put back afterwards."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with torch.compiler.set_stance("force_eager"), no_dropout():
            yield
    finally:
        for buffer, value in kept:
            buffer.data.copy_(value)  # through .data: the graph may have saved the buffer


@contextmanager
def repeatable(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """As `steady`, and draws depend on the seed alone.

    Without it spectral normalisation, which moves its buffers at every pass, or stochastic depth would make each
    product one of another matrix.
    """
    torch.manual_seed(seed)
    with steady(model):
        yield


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters over which curvature is taken: those that require a gradient, each once.

    Returns:
        At least one.

    Raises:
        ValueError: if there is none, or they are sharded.
    """
    for name, parameter in model.named_parameters():
        # By name: the class lives in a sub-package that not every build of torch has.
        kinds = {kind.__name__ for kind in type(parameter).__mro__} | {type(parameter.data).__name__}
        if kinds & {"DTensor", "FlatParameter"} or hasattr(parameter, "_sharded_size"):
            raise ValueError(
                f"{name}: expected a whole parameter, got one sharded over processes (FSDP); second derivatives need "
                "whole tensors: measure the module before it is wrapped, or gather its state into a plain copy"
            )
    found = [p for p in model.parameters() if p.requires_grad]
    if not found:
        raise ValueError(
            "model: expected a parameter that requires a gradient, got none; curvature is taken over the parameters "
            "that are trained, so unfreeze some with requires_grad_(True)"
        )
    return found


def in_single_precision(model: nn.Module, batches: Sequence[Batch]) -> tuple[nn.Module, list[Batch]]:
    """Half-precision networks are measured on a float32 copy: rounding at 1e-2 would hide the eigenvalue.

    Returns:
        The model and batches, or copies of them.
    """
    if not any(p.dtype in _HALF for p in model.parameters()):
        return model, list(batches)
    return copy.deepcopy(model).float(), cast(batches, torch.float32)


def cast(batches: Sequence[Batch], dtype: torch.dtype) -> list[Batch]:
    """Batches whose floating tensors have another precision.

    Returns:
        New batches.
    """

    def converted(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return [replace(b, inputs=tree_map(converted, b.inputs), targets=tree_map(converted, b.targets)) for b in batches]
