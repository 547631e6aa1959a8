"""Residual branches, found by watching additions; and remedies that make them start small."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import weak

from theta0._batches import Batch, initialised, materialised, outputs_or_told
from theta0._owners import Owners
from theta0._randomness import Randomness
from theta0._untouched import untouched
from theta0.treatment.writing import InapplicableError, Report, scaled_in_place, transaction

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
    """

    module: nn.Module
    attribute: str
    bias: Tensor | None
    name: str


class _Flow(TorchFunctionMode):  # a class because torch's interception point is one
    """From which earlier results each result was made, as bits of an integer, and where two of them are added."""

    def __init__(self, owners: Owners) -> None:
        super().__init__()
        self.owners = owners
        self.ancestors: Any = weak.WeakIdKeyDictionary()
        self.weighted = 0  # bits of the results of weights
        self.endings: dict[int, Ending] = {}
        self.found: dict[tuple[int, str], Ending] = {}
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        given = [t for t in _tensors([*args, *options.values()]) if t in self.ancestors]
        masks = [self.ancestors[t] for t in given]
        if func in _ADDITIONS and len(masks) == 2:
            self.addition(*masks)
        result = func(*args, **options)
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

    def addition(self, one: int, other: int) -> None:
        """A branch is added to what it was made from, or to a shorter way there."""
        if not one & other:
            return
        branch, skip = max((one & ~other, other & ~one), (other & ~one, one & ~other), key=self._weights)
        if self._weights((branch, skip)) > self._weights((skip, branch)):
            last = (branch & self.weighted).bit_length() - 1
            ending = self.endings[last]
            self.found.setdefault((id(ending.module), ending.attribute), ending)

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
        return Ending(owner.module, owner.attribute, bias, owner.parameters[0])


def _tensors(values: Any) -> list[Tensor]:
    flat = [v for value in values for v in (value if isinstance(value, (tuple, list)) else (value,))]
    return [v for v in flat if isinstance(v, Tensor)]


def branch_endings(model: nn.Module, batch: Batch) -> list[Ending]:
    """The last weight of each residual branch, in execution order.

    A branch is what is added to a tensor that it was made from, or, where the shortcut has weights of its own, the
    summand with more weights since the two parted. The last weight may belong to a layer, a normalisation, an
    attention's output or a parameter that multiplies. The model is left as it was.

    Returns:
        Each ending once.
    """
    owners = Owners(model)
    flow = _Flow(owners)
    with untouched(model), torch.no_grad():
        handles = (
            module_hooks.register_module_forward_pre_hook(owners.enter),
            module_hooks.register_module_forward_hook(owners.leave, always_call=True),
        )
        try:
            with flow:
                outputs_or_told(model, batch)
        finally:
            for handle in handles:
                handle.remove()
    return list(flow.found.values())


def branch_scale_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    generator: Randomness = None,
    report: Report | None = None,
) -> nn.Module:
    r"""Multiply the end of each residual branch by $1/\sqrt L$, L the number of branches.

    A stack of L branches of equal variance then adds as much to its input as one branch did (Hanin & Rolnick, 2018,
    section 3; De & Smith, 2020).

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored.
        generator: ignored: nothing is drawn.
        report: receives the endings left as they were, and why.

    Returns:
        The model.
    """
    return _scaled_branches(model, batches, lambda count: 1 / math.sqrt(count), report)


def branch_zero_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    generator: Randomness = None,
    report: Report | None = None,
) -> nn.Module:
    """Start each residual branch at zero, so that the network starts as its shortcuts (Zhang et al., 2019, Fixup).

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored.
        generator: ignored: nothing is drawn.
        report: receives the endings left as they were, and why.

    Returns:
        The model.
    """
    return _scaled_branches(model, batches, lambda count: 0.0, report)


def _scaled_branches(
    model: nn.Module, batches: Iterable[Any], factor: Callable[[int], float], report: Report | None
) -> nn.Module:
    inner = initialised(model)
    endings = branch_endings(inner, materialised(batches, inner, max_batches=1)[0])
    trained = {name for name, p in inner.named_parameters(remove_duplicate=False) if p.requires_grad}
    usable = [ending for ending in endings if ending.name in trained]
    if len(usable) < 2:
        raise InapplicableError(f"expected at least two residual branches that end with a weight, got {len(usable)}")
    left: dict[str, str] = {ending.name: "frozen" for ending in endings if ending.name not in trained}
    with transaction(inner):
        for ending in usable:
            try:
                scaled_in_place(ending.module, ending.attribute, factor(len(usable)))
            except ValueError as error:
                left[ending.name] = str(error)
            else:
                if ending.bias is not None and isinstance(ending.bias, nn.Parameter) and ending.bias.requires_grad:
                    ending.bias.data.mul_(factor(len(usable)))
        if len(left) == len(endings):
            raise ValueError("; ".join(f"{name}: {why}" for name, why in left.items()))
    if report is not None:
        report(left)
    return model
