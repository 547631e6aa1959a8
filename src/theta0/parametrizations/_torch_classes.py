"""The class that torch makes for a parametrized layer: one for each layer, and right for recurrent ones."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


def own_class_(layer: nn.Module) -> None:
    """Give an already parametrized layer a class that no copy of it shares.

    `copy.deepcopy` leaves copies with one class, on which torch then sets and deletes properties: a parametrization
    removed from the copy would break the layer that it was copied from.
    """
    if parametrize.is_parametrized(layer):
        kind = type(layer)
        body = {key: value for key, value in vars(kind).items() if key not in ("__dict__", "__weakref__")}
        layer.__class__ = type(kind.__name__, kind.__bases__, body)


def read_weights_when_called_(layer: nn.Module) -> None:
    """Let a parametrized recurrent layer compute with its weights as they are at each call.

    torch's recurrent layers hand a list kept since construction, `_flat_weights`, to the fused kernels: once a weight
    is parametrized, that list is stale. Here it is read anew, each weight once in a forward pass. cuDNN finds the
    weights in separate pieces and says so once, which costs it a copy.
    """
    if not isinstance(layer, nn.RNNBase):
        return
    kind: Any = type(layer)
    kind._flat_weights = property(_weights_now, lambda self, value: None)
    kind.flatten_parameters = lambda self: None
    kind.register_parameter = _register_parameter
    kind.forward = _forward
    layer.__dict__.pop("_flat_weights", None)


def _weights_now(self: Any) -> list[Tensor | None]:
    return [getattr(self, name, None) for name in self._flat_weights_names]


def _register_parameter(self: Any, name: str, parameter: nn.Parameter | None) -> None:
    """What `remove_parametrizations` calls: with the last weight plain again, the plain class finds its list."""
    nn.Module.register_parameter(self, name, parameter)
    if all(name in self._parameters for name in self._flat_weights_names):
        self.__dict__["_flat_weights"] = [self._parameters[name] for name in self._flat_weights_names]


def _forward(self: Any, *inputs: Any, **options: Any) -> Any:
    kind: Any = type(self).__mro__[1]
    plain = kind.forward
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return plain(self, *inputs, **options)
    with parametrize.cached():  # the plain class reads its weights several times a pass
        return plain(self, *inputs, **options)
