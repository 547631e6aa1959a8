"""Everything about a model and the random generators that an observation must leave as it came."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def raw(tensor: Tensor | None) -> Any:
    if tensor is None or is_lazy(tensor):
        return None
    flat = tensor.detach().to_dense().contiguous().cpu().view(-1)
    return tuple(tensor.shape), str(tensor.dtype), flat.view(torch.uint8).numpy().tobytes()


def state_of(model: nn.Module) -> dict[str, Any]:
    """Identities, bytes, modes, gradients, hooks and requires_grad, by name."""
    found: dict[str, Any] = {"keys": list(model.state_dict(keep_vars=True))}
    for name, t in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        found[name] = (id(t), type(t), raw(t), t.requires_grad, t.is_leaf, id(t.grad), raw(t.grad))
        found[f"{name} hooks"] = dict(t._backward_hooks or {})
    for path, module in model.named_modules(remove_duplicate=False):
        hooks = {key: tuple(value.items()) for key, value in vars(module).items() if "hooks" in key and value}
        plain = {k: v for k, v in vars(module).items() if isinstance(v, (int, float, str, bool, tuple, type(None)))}
        found[f"module {path}"] = (id(module), type(module), module.training, hooks, plain, sorted(vars(module)))
    return found


def randomness() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return raw(torch.get_rng_state()), random.getstate(), name, keys.tobytes(), rest, torch.initial_seed()
