"""What a unit is in each kind of layer: which parameters hold units' incoming weights, and how they lie in them."""

import math
import re

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn.utils import parametrize

_KINDS = "a Linear or Conv1d-3d layer, a transposed convolution, a MultiheadAttention or a recurrent layer"


def weight_names(layer: nn.Module) -> tuple[str, ...]:
    """The parameters of a layer whose units have incoming weights, parametrized or not; none for other kinds."""
    found = _candidates(layer)
    return tuple(n for n in found if layer._parameters.get(n) is not None or parametrize.is_parametrized(layer, n))


def hooked_weight_names(layer: nn.Module) -> tuple[str, ...]:
    """The units' weights that a hook makes anew before each call: torch's older weight normalization, pruning."""
    return tuple(name for name in _candidates(layer) if isinstance(layer.__dict__.get(name), Tensor))


def _candidates(layer: nn.Module) -> list[str]:
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) or transposed_groups(layer):
        return ["weight"]
    if isinstance(layer, nn.MultiheadAttention):
        return ["in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"]
    if isinstance(layer, nn.RNNBase):
        return [n for n in layer._flat_weights_names if n.startswith(("weight_ih_l", "weight_hh_l"))]
    return ["weight_ih", "weight_hh"] if isinstance(layer, nn.RNNCellBase) else []


def transposed_groups(layer: nn.Module) -> int:
    """The groups of a transposed convolution, whose weight is (in, out / groups, *kernel); 0 for every other layer."""
    transposed = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
    return layer.groups if isinstance(layer, transposed) else 0


def fan_in(shape: tuple[int, ...], groups: int) -> int:
    """How many weights one unit has, of a weight of this shape."""
    return shape[0] // groups * math.prod(shape[2:]) if groups else math.prod(shape[1:])


def rows(weight: Shaped[Tensor, "*shape"], groups: int) -> Shaped[Tensor, "units fan_in"]:
    """A weight with one row for each unit."""
    if groups:
        weight = torch.unflatten(weight, 0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return weight.flatten(1)


def unrolled(by_unit: Shaped[Tensor, "units fan_in"], shape: tuple[int, ...], groups: int) -> Shaped[Tensor, "*shape"]:
    """The inverse of `rows`, for a weight of this shape."""
    if not groups:
        return by_unit.reshape(shape)
    inside = (groups, shape[1], shape[0] // groups, *shape[2:])
    return by_unit.reshape(inside).transpose(1, 2).reshape(shape)


def checked_weight(layer: nn.Module, name: str, by: str) -> nn.Parameter:
    """The parameter to constrain, if the layer and the parameter can carry the constraint."""
    known = [key for key, _ in layer.named_parameters(recurse=False)]
    if not weight_names(layer) and not _has_weights(layer):
        raise ValueError(f"{by} takes {_KINDS}, not {kind_of(layer)}: {layer}")
    if parametrize.is_parametrized(layer, name):
        made = ", ".join(type(part).__name__ for part in layer.parametrizations[name])  # type: ignore[index]
        raise ValueError(
            f"{name!r} of {layer} is already parametrized ({made}); "
            f"torch.nn.utils.parametrize.remove_parametrizations(layer, {name!r}) makes it plain again"
        )
    weight = layer._parameters.get(name)
    if weight is None:
        raise ValueError(f"{layer} has no parameter {name!r}; its parameters are {known}")
    if isinstance(weight, nn.UninitializedParameter):
        raise ValueError(f"{name!r} of {layer} is not initialized yet: run one forward pass first")
    expected = _declared_shape(layer, name)
    if tuple(weight.shape) != expected:
        raise ValueError(
            f"{name!r} of {described(layer)} has shape {tuple(weight.shape)}, expected {expected or 'a weight'}: name "
            "the weight, and untie it from any layer constrained in orthonormal coordinates"
        )
    if (size := fan_in(expected, transposed_groups(layer))) < 2:
        raise ValueError(
            f"{described(layer)} has a fan-in of {size} ({name!r} has shape {expected}): the only zero-sum weight of "
            "such a unit is zero. Leave this layer unconstrained, or use fewer groups or a larger kernel"
        )
    return weight


def kind_of(layer: nn.Module) -> str:
    """The name of a layer's class, without what torch puts before it when a weight is parametrized."""
    return parametrize.type_before_parametrizations(layer).__name__


def described(layer: nn.Module) -> str:
    """A layer in one line."""
    sizes = f"{layer.in_features}, {layer.out_features}" if isinstance(layer, nn.Linear) else layer.extra_repr()
    return f"{kind_of(layer)}({sizes})"


def _has_weights(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear | nn.MultiheadAttention | nn.RNNBase | nn.RNNCellBase | nn.modules.conv._ConvNd)


def _declared_shape(layer: nn.Module, name: str) -> tuple[int, ...]:
    """The shape that a layer's sizes ask for; empty where no unit has its weights in this parameter."""
    if isinstance(layer, nn.Linear):
        return (layer.out_features, layer.in_features)
    if isinstance(layer, nn.modules.conv._ConvNd):
        groups, ends = layer.groups, (layer.out_channels, layer.in_channels)
        first, second = ends[::-1] if transposed_groups(layer) else ends
        return (first, second // groups, *layer.kernel_size)
    if name not in weight_names(layer):
        return ()
    if isinstance(layer, nn.MultiheadAttention):
        wide = {"in_proj_weight": (3 * layer.embed_dim, layer.embed_dim), "q_proj_weight": (layer.embed_dim,) * 2}
        return wide.get(name, (layer.embed_dim, layer.kdim if name[0] == "k" else layer.vdim))
    if isinstance(layer, nn.RNNBase):
        gates = {"LSTM": 4, "GRU": 3}.get(layer.mode, 1)
        hidden = layer.proj_size or layer.hidden_size
        first_layer = re.fullmatch(r"weight_ih_l0(_reverse)?", name)
        inputs = layer.input_size if first_layer else hidden * (2 if layer.bidirectional else 1)
        return (gates * layer.hidden_size, inputs if "_ih_" in name else hidden)
    assert isinstance(layer, nn.RNNCellBase)
    gates = 4 if isinstance(layer, nn.LSTMCell) else 3 if isinstance(layer, nn.GRUCell) else 1
    return (gates * layer.hidden_size, layer.input_size if name == "weight_ih" else layer.hidden_size)
