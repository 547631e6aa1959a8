"""What a forward pass calls, in execution order: linear maps by a parameter, and nonlinearities.

Functions are watched, not modules, so that `F.linear`, `x @ w` and attention's projections count like `nn.Linear`, and
nothing is installed on the user's model. Scripted modules are invisible.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import weak

from theta0._nonlinearities import NONLINEARITIES
from theta0._owners import Owner, Owners

# function → (kind, position of the input, of the weight, of the bias; the weight's keyword; the output's unit axis)
_Signature = tuple[str, int, int, int | None, int]
_LINEAR_MAPS: dict[Callable[..., Any], _Signature] = {
    F.linear: ("linear", 0, 1, 2, -1),
    F.conv1d: ("conv", 0, 1, 2, -2),
    F.conv2d: ("conv", 0, 1, 2, -3),
    F.conv3d: ("conv", 0, 1, 2, -4),
    F.conv_transpose1d: ("conv_transpose", 0, 1, 2, -2),
    F.conv_transpose2d: ("conv_transpose", 0, 1, 2, -3),
    F.conv_transpose3d: ("conv_transpose", 0, 1, 2, -4),
    F.embedding: ("embedding", 0, 1, None, -1),
    torch.addmm: ("matmul", 1, 2, 0, -1),
    torch.matmul: ("matmul", 0, 1, None, -1),
    torch.mm: ("matmul", 0, 1, None, -1),
    Tensor.matmul: ("matmul", 0, 1, None, -1),
    Tensor.mm: ("matmul", 0, 1, None, -1),
    Tensor.__matmul__: ("matmul", 0, 1, None, -1),
}
_KEYWORDS = ("input", "weight", "bias")
_WATCHING: ContextVar[bool] = ContextVar("theta0 watches calls", default=False)
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}


@dataclass(frozen=True, eq=False)
class LinearCall:
    """One application of a weight.

    Attributes:
        layer: the layer's path; `path#n` for the n-th call of it, from 2.
        kind: linear, conv, conv_transpose, embedding, matmul (weight is in × out) or recurrent.
        owner: the weight's owner and parameter names.
        input: what the weight was applied to.
        weight: the tensor applied: the parameter, a view of it, or what a parametrization made of it.
        bias: the bias applied, if any.
        output: the result, before any nonlinearity (for recurrent layers the hidden states).
        unit_axis: the axis of the output that runs over units, from the end.
        sample_axis: the axis of the output that runs over samples where the function fixes it, else None.
        options: further arguments (stride, padding, dilation, groups …), as given.
    """

    layer: str
    kind: str
    owner: Owner
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    output: Tensor
    unit_axis: int
    sample_axis: int | None
    options: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


@dataclass(frozen=True, eq=False)
class NonlinearityCall:
    """One application of a nonlinearity, seen before it is applied.

    Attributes:
        after: the call whose output flows into it, the latest where several do.
        name: its name.
        function: the function called.
        input: what it is applied to; an in-place function overwrites it after the observer has returned.
        arguments: further positional arguments.
        options: keyword arguments.
    """

    after: LinearCall
    name: str
    function: Callable[..., Any]
    input: Tensor
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Observers:
    """What is told of each call."""

    linear: Callable[[LinearCall], None]
    nonlinearity: Callable[[NonlinearityCall], None]


class _Watch(TorchFunctionMode):  # a class because torch's interception point is one
    def __init__(self, owners: Owners, observers: Observers) -> None:
        super().__init__()
        self.owners, self.observers = owners, observers
        self.calls: dict[str, int] = {}
        self.origins: Any = weak.WeakIdKeyDictionary()
        self.sample_axis: int | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if self.owners.making:
            return func(*args, **options)
        if func is F.multi_head_attention_forward:
            return self.attention(func, args, options)
        origin = self.origin(args)
        if func in NONLINEARITIES and origin is not None and isinstance(args[0], Tensor):
            self.observers.nonlinearity(
                NonlinearityCall(origin[1], NONLINEARITIES[func], func, args[0], args[1:], options)
            )
        if func in _RECURRENT:
            args = (_with_gradient(args[0]), *args[1:])
        result = func(*args, **options)
        if func in _LINEAR_MAPS:
            origin = self.linear(func, args, options, result) or origin
        elif func in _RECURRENT:
            origin = self.recurrent(args, result) or origin
        if origin is not None:
            for tensor in result if isinstance(result, tuple) else (result,):
                if isinstance(tensor, Tensor):
                    self.origins[tensor] = origin
        return result

    def origin(self, args: tuple[Any, ...]) -> tuple[int, LinearCall] | None:
        """The latest linear call among those whose outputs flow into the arguments."""
        tensors = [a for arg in args for a in (arg if isinstance(arg, (tuple, list)) else (arg,))]
        found = [self.origins[t] for t in tensors if isinstance(t, Tensor) and t in self.origins]
        return max(found, key=lambda entry: entry[0], default=None)

    def linear(
        self, func: Any, args: tuple[Any, ...], options: dict[str, Any], result: Tensor
    ) -> tuple[int, LinearCall] | None:
        kind, source, weight_at, bias_at, unit_axis = _LINEAR_MAPS[func]
        places = dict(zip(_KEYWORDS, (source, weight_at, bias_at), strict=True))
        given: dict[str, Any] = {
            key: args[at] if at is not None and at < len(args) else options.get(key) for key, at in places.items()
        }
        weight = given["weight"]
        owner = self.owners.find(weight) if isinstance(weight, Tensor) else None
        if owner is None:
            return None
        used = 1 + max(at for at in places.values() if at is not None)  # embeddings' further arguments start at 2
        rest = tuple(args[used:]), {k: v for k, v in options.items() if k not in _KEYWORDS}
        return self.tell(
            LinearCall(
                self.name(owner),
                kind,
                owner,
                given["input"],
                weight,
                given["bias"],
                result,
                unit_axis,
                self.sample_axis,
                rest,
            )
        )

    def recurrent(self, args: tuple[Any, ...], result: tuple[Tensor, ...]) -> tuple[int, LinearCall] | None:
        weights = next((a for a in args[1:] if isinstance(a, (list, tuple)) and len(a) > 2), None)
        owner = self.owners.module_of(weights[0]) if weights else None
        if owner is None or weights is None:
            return None
        batch_first = bool(args[-1]) if isinstance(args[-1], bool) else False
        call = LinearCall(
            self.name(owner), "recurrent", owner, args[0], weights[0], None, result[0], -1, 0 if batch_first else 1
        )
        return self.tell(call)

    def tell(self, call: LinearCall) -> tuple[int, LinearCall]:
        self.observers.linear(call)
        return sum(self.calls.values()), call

    def name(self, owner: Owner) -> str:
        count = self.calls[owner.layer] = self.calls.get(owner.layer, 0) + 1
        return owner.layer if count == 1 else f"{owner.layer}#{count}"

    def attention(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Attention is one opaque call; its projections go through the module global `F.linear`, watched meanwhile."""
        original = F.linear

        def watched(*inner: Any, **named: Any) -> Any:
            return self.__torch_function__(original, (), inner, named)

        F.linear = watched  # put back below, also on failure
        self.sample_axis = 1 if args[0].dim() == 3 else None  # torch hands (length, batch, width) here
        try:
            return func(*args, **options)
        finally:
            F.linear = original
            self.sample_axis = None


def _with_gradient(sequence: Tensor) -> Tensor:
    """Data that a recurrent layer reads directly, made to carry a gradient: its steps are seen nowhere else."""
    needless = not torch.is_grad_enabled() or sequence.requires_grad or not sequence.is_floating_point()
    return sequence if needless else sequence.detach().requires_grad_()


@contextmanager
def watch(
    model: nn.Module,
    linear: Callable[[LinearCall], None] | None = None,
    nonlinearity: Callable[[NonlinearityCall], None] | None = None,
) -> Iterator[Owners]:
    """Within the block, every linear map and nonlinearity that the model calls is told to the observers.

    Compiled submodules run eagerly meanwhile, since a compiled region is opaque.

    Args:
        model: the model that will be called; only its own weights count.
        linear: told of each linear call, after it.
        nonlinearity: told of each nonlinearity, before it.

    Yields:
        Who owns which weight.
    """
    observers = Observers(linear or (lambda call: None), nonlinearity or (lambda call: None))
    owners = Owners(model)
    with ExitStack() as stack:
        for handle in (
            module_hooks.register_module_forward_pre_hook(owners.enter),
            module_hooks.register_module_forward_hook(owners.leave, always_call=True),
        ):
            stack.callback(handle.remove)
        stack.enter_context(warnings.catch_warnings())  # torch warns of a second firing, which `Owners` bears
        warnings.filterwarnings("ignore", "Using `torch.compile", UserWarning)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_Watch(owners, observers))
        stack.callback(_WATCHING.reset, _WATCHING.set(True))
        yield owners


def watching() -> bool:
    """Whether calls are being watched: a layer then applies its weight to its input and takes no short cut.

    Returns:
        True inside `watch`.
    """
    return _WATCHING.get()
