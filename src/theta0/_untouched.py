"""Leave a model, and the random number generators, exactly as they came."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

# Where nn.Module keeps what can be registered: copied one level deeper than other attributes.
_REGISTRIES = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Within the block the model may be run, trained or reparametrised; afterwards it is bit for bit as before.

    What is restored, also when the block raises: parameter and buffer values, the tensor objects themselves, `.grad`,
    `requires_grad`, train or eval modes, hooks, classes (a parametrization changes them) and plain attributes of every
    module; and the random state of torch (CPU and accelerator), numpy and `random`. Compiled regions run eagerly
    meanwhile: they are opaque, and compiling them for a look at them would leave its cache behind.
    """
    restore_model = snapshot(model)
    restore_randomness = randomness_snapshot()
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        restore_model()
        restore_randomness()


def snapshot(model: nn.Module) -> Callable[[], None]:
    """Remember a model's whole state.

    Memory: one copy of the parameters and buffers.

    Returns:
        A function that puts the model back into that state, bit for bit; it may be called more than once.
    """
    modules = [(module, module.__class__, _attributes(module)) for module in model.modules()]
    tensors = [(tensor, tensor.detach().clone()) for tensor in _tensors(model)]
    leaves = [(p, p.grad, p.requires_grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]

    def restore() -> None:
        for module, kind, attributes in modules:
            module.__class__ = kind
            module.__dict__.clear()
            module.__dict__.update(_copied(attributes))
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.data.copy_(value)
            for parameter, gradient, requires_grad, kept in leaves:
                parameter.requires_grad_(requires_grad)
                parameter.grad = gradient
                if gradient is not None and kept is not None:
                    gradient.copy_(kept)

    return restore


def randomness_snapshot() -> Callable[[], None]:
    """Remember the state of every global random number generator.

    Returns:
        A function that puts them back.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    accelerators = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if accelerators is not None:
            torch.cuda.set_rng_state_all(accelerators)

    return restore


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    """Initialised parameters and buffers, each once."""
    found = [*model.parameters(), *model.buffers()]
    return [t for t in found if not is_lazy(t) and not t.is_meta]


def _attributes(module: nn.Module) -> dict[str, Any]:
    return _copied(module.__dict__)


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value.copy() if name in _REGISTRIES else value for name, value in attributes.items()}
