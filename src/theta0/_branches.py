"""Residual branches, found by watching additions, and how the stream that they are added to grows."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import weak

from theta0._batches import Batch, checked_forward
from theta0._owners import Owners
from theta0._state import preserve_state

_ADDITIONS = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
_PRODUCTS = {torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__}
# Where each function takes what it puts out last from: weight and bias.
_WEIGHTS: Mapping[Callable[..., Any], tuple[int, int]] = {
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), (1, 99)),
    **dict.fromkeys((F.linear, F.conv1d, F.conv2d, F.conv3d), (1, 2)),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), (1, 2)),
    F.multi_head_attention_forward: (11, 12),
    F.batch_norm: (3, 4),
    F.layer_norm: (2, 3),
    F.group_norm: (2, 3),
    F.instance_norm: (3, 4),
}
_KEYWORDS = {F.multi_head_attention_forward: ("out_proj_weight", "out_proj_bias")}


@dataclass(frozen=True, eq=False)
class Ending:
    """What a residual branch ends with.

    Attributes:
        module: the module that owns its last weight.
        attribute: the weight's name there.
        bias: the bias added with it, if any.
        name: the weight's full name.
        layer: the layer's path, as other measurements call it.
    """

    module: nn.Module
    attribute: str
    bias: Tensor | None
    name: str
    layer: str


@dataclass(frozen=True)
class Sum:
    """One addition of a branch to the residual stream.

    Attributes:
        layer: what the branch ends with.
        rms: root mean square of the sum, over samples, positions and units.
    """

    layer: str
    rms: float


@dataclass(frozen=True)
class ResidualStream:
    """The residual branches of a network and the sums that they make.

    Attributes:
        endings: the last weight of each branch, each once.
        sums: one for each addition, in execution order.
    """

    endings: tuple[Ending, ...]
    sums: tuple[Sum, ...]


class _Flow(TorchFunctionMode):  # a class because torch's interception point is one
    """From which earlier results each result was made, as bits of an integer, and where two of them are added."""

    def __init__(self, owners: Owners) -> None:
        super().__init__()
        self.owners = owners
        self.ancestors: Any = weak.WeakIdKeyDictionary()
        self.weighted = 0  # bits of the results of weights
        self.endings: dict[int, Ending] = {}
        self.found: dict[tuple[int, str], Ending] = {}
        self.sums: list[Sum] = []
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if self.owners.making:
            return func(*args, **options)
        given = [t for t in _tensors([*args, *options.values()]) if t in self.ancestors]
        masks = [self.ancestors[t] for t in given]
        added = self.addition(*masks) if func in _ADDITIONS and len(masks) == 2 else None
        result = func(*args, **options)
        if added is not None and result.is_floating_point():
            # Now, because the sum may be overwritten in place; in float64, because its squares may overflow.
            size = torch.linalg.vector_norm(result.detach(), dtype=torch.float64) / math.sqrt(max(1, result.numel()))
            self.sums.append(Sum(added.layer, float(size)))
        made = 0
        for mask in masks:
            made |= mask
        ending = self.ending(func, args, options)
        self.count += 1
        made |= 1 << self.count
        if ending is not None:
            self.endings[self.count] = ending
            self.weighted |= 1 << self.count
        for tensor in _tensors(result if isinstance(result, (tuple, list)) else [result]):
            self.ancestors[tensor] = made
        return result

    def addition(self, one: int, other: int) -> Ending | None:
        """A branch is added to what it was made from, or to a shorter way there.

        Returns:
            What the branch ends with; None where nothing of the kind is added.
        """
        if not one & other:
            return None
        branch, skip = max((one & ~other, other & ~one), (other & ~one, one & ~other), key=self._weights)
        if self._weights((branch, skip)) > self._weights((skip, branch)):
            last = (branch & self.weighted).bit_length() - 1
            ending = self.endings[last]
            return self.found.setdefault((id(ending.module), ending.attribute), ending)
        return None

    def _weights(self, pair: tuple[int, int]) -> int:
        return (pair[0] & self.weighted).bit_count()

    def ending(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Ending | None:
        """The weight by which a function makes its result, if it does by one."""
        if func in _WEIGHTS:
            at, names = _WEIGHTS[func], _KEYWORDS.get(func, ("weight", "bias"))
            weight, bias = (args[i] if i < len(args) else options.get(n) for i, n in zip(at, names, strict=True))
        elif func in _PRODUCTS:
            weight, bias = next((a for a in args if isinstance(a, nn.Parameter)), None), None
        else:
            return None
        owner = self.owners.find(weight) if isinstance(weight, Tensor) else None
        if owner is None or not owner.parameters:
            return None
        return Ending(owner.module, owner.attribute, bias, owner.parameters[0], owner.layer)


def _tensors(values: Any) -> list[Tensor]:
    flat = [v for value in values for v in (value if isinstance(value, (tuple, list)) else (value,))]
    return [v for v in flat if isinstance(v, Tensor)]


def branch_endings(model: nn.Module, batch: Batch) -> list[Ending]:
    """The last weight of each residual branch, in execution order; see `residual_stream`.

    Returns:
        Each ending once.
    """
    return list(residual_stream(model, batch).endings)


def residual_stream(model: nn.Module, batch: Batch) -> ResidualStream:
    """The last weight of each residual branch and the size of each sum, in execution order, by one forward pass.

    A branch is what is added to a tensor that it was made from, or, where the shortcut has weights of its own, the
    summand with more weights since the two parted. The last weight may belong to a layer, a normalisation, an
    attention's output or a parameter that multiplies. The model is left as it was.

    Returns:
        Endings and sums; none where nothing is added to what it was made from.
    """
    owners = Owners(model)
    flow = _Flow(owners)
    with preserve_state(model), torch.enable_grad():  # a forward pass may differentiate, as of a differential equation
        handles = (
            module_hooks.register_module_forward_pre_hook(owners.enter),
            module_hooks.register_module_forward_hook(owners.leave, always_call=True),
        )
        try:
            with flow:
                checked_forward(model, batch)
        finally:
            for handle in handles:
                handle.remove()
    return ResidualStream(tuple(flow.found.values()), tuple(flow.sums))
