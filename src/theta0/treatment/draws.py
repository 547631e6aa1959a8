"""Remedies that draw: what was never initialised, units that are copies, zeros that keep gradients at zero."""

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init

from theta0._batches import initialised, load_batches
from theta0._errors import InapplicableError
from theta0._losses import Loss
from theta0._randomness import Randomness, normal, streams, uniform
from theta0._state import transaction
from theta0._trace.layers import Layer, layers
from theta0._weights import assign_weight, tied_parameters, trained_tensors
from theta0.measurements.zero_gradients import still_zero
from theta0.treatment.results import Applied

_GARBAGE = 1e10  # no draw gives such numbers
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_GAINED = {"relu", "leaky_relu", "tanh", "selu"}


def redraw(model: nn.Module, batches: Iterable[Any], loss: Loss = None, *, generator: Randomness = None) -> Applied:
    """Draw what was not drawn: parameters that are not finite, hold memory as it was, or whose units are all alike.

    Matrices and kernels get a normal draw with the gain of the nonlinearity that they feed (He et al., 2015), those of
    no layer that is seen a uniform one (Glorot & Bengio, 2010); the biases of such layers and other vectors get zeros,
    scales of normalizations ones. Zero weights are not touched: they may be meant.
    """
    inner = initialised(model)
    found = trained_tensors(inner)
    bad = [name for name, (_, _, p) in found.items() if _undrawn(p) or (p.dim() > 1 and _alike(p))]
    if not bad:
        raise InapplicableError("expected a parameter that is not finite or whose units are copies, got none")
    owners = {id(found[name][0]) for name in bad}
    constant = [n for n, (m, _, p) in found.items() if id(m) in owners and p.dim() == 1 and _alike(p) and p.any()]
    stream = streams(generator)
    with transaction(inner):
        for name in bad:
            _start(
                *found[name][::2], found[name][1], stream(name)
            )  # finite values, so that a forward pass shows layers
        seen = {n: layer for layer in _seen(inner, batches) for n in layer.parameters}
        for name in dict.fromkeys([*bad, *constant]):
            module, attribute, parameter = found[name]
            gain = _gain(seen[name]) if name in seen and parameter.dim() > 1 else None
            _start(module, parameter, attribute, stream(name), gain=gain)
    return Applied()


def type_defaults(
    model: nn.Module, batches: Iterable[Any], loss: Loss = None, *, generator: Randomness = None
) -> Applied:
    """Give every layer the initialization of its type, as torch draws it when the layer is made.

    Bare parameters of two axes or more get N(0, 0.02²), vectors zeros; a frozen parameter and a weight that a
    parametrization makes are left alone, and a weight tied to an embedding gets N(0, 0.02²) too.
    """
    return Applied(draw_defaults(initialised(model), streams(generator)))


def draw_defaults(
    model: nn.Module, stream: Callable[[str], torch.Generator], *, only: Collection[str] | None = None
) -> dict[str, str]:
    """Draw trained parameters, all or those named, as their modules' types do.

    Returns:
        What was left as it was, and why.
    """
    left: dict[str, str] = {}
    tied = tied_parameters(model)
    with transaction(model):
        for name, (module, attribute, parameter) in trained_tensors(model).items():
            if only is not None and name not in only:
                continue
            if ".parametrizations." in f".{name}":
                left[name] = "parametrized"
            elif name in tied or (attribute not in ("weight", "bias") and not _has_reset(module)):
                values = normal(parameter.shape, 0.02, stream(name)) if parameter.dim() > 1 else torch.zeros(())
                assign_weight(module, attribute, values.expand(parameter.shape))
            else:
                _start(module, parameter, attribute, stream(name))
    return left


def has_default(module: nn.Module) -> bool:
    """Whether a module's type has an initialization of its own."""
    return isinstance(module, (*_NORMS, nn.Embedding, nn.MultiheadAttention)) or _has_reset(module)


def break_zero_gradients(
    model: nn.Module, batches: Iterable[Any], loss: Loss = None, *, generator: Randomness = None
) -> Applied:
    r"""Draw the zeros that keep gradients at zero: of each module the first such tensor, from U(-b, b), b = 1/√fan-in.

    Of two zero factors one draw suffices, and the function stays what it was. Biases are not drawn; the fan-in of
    another vector is its length.
    """
    inner = initialised(model)
    batch = load_batches(batches, inner, max_batches=1)[0]
    found, stream = trained_tensors(inner), streams(generator)
    with transaction(inner):
        for attempt in range(2):
            stuck = still_zero(inner, batch, loss, found)
            zeros = [name for name in stuck if "bias" not in found[name][1] and not found[name][2].any()]
            if not zeros:
                break
            first = {id(found[name][0]): name for name in reversed(zeros)}
            for name in first.values():
                module, attribute, parameter = found[name]
                fan = math.prod(parameter.shape[1:]) if parameter.dim() > 1 else parameter.numel()
                assign_weight(module, attribute, uniform(parameter.shape, fan**-0.5, stream(f"{name}/{attempt}")))
        if attempt == 0 and not zeros:
            raise InapplicableError("expected a zero weight whose gradient stays zero, got none")
    return Applied()


def _seen(model: nn.Module, batches: Iterable[Any]) -> list[Layer]:
    return layers(model, load_batches(batches, model, max_batches=1)[0])


def _undrawn(parameter: Tensor) -> bool:
    finite = parameter.detach().isfinite()
    return not bool(finite.all()) or bool((parameter.detach().abs() > _GARBAGE).any())


def _alike(parameter: Tensor) -> bool:
    """Whether all units have the same weights, and not zero ones."""
    rows = parameter.detach()
    return rows.shape[0] > 1 and bool((rows == rows[:1]).all()) and bool(rows.any())


def _gain(layer: Layer) -> float | None:
    if layer.kind not in ("linear", "conv", "conv_transpose", "matmul"):
        return None
    gain = init.calculate_gain(layer.nonlinearity) if layer.nonlinearity in _GAINED else 1.0  # type: ignore[arg-type]
    if layer.nonlinearity in ("gelu", "silu", "mish", "elu"):
        gain = math.sqrt(2)
    return gain / math.sqrt(layer.fan_in)


def _start(
    module: nn.Module, parameter: Tensor, attribute: str, stream: torch.Generator, *, gain: float | None = None
) -> None:
    """Values for one tensor: by the gain given, else as its module's own default, else by its shape."""
    if gain is not None:
        assign_weight(module, attribute, normal(parameter.shape, gain, stream))
    elif isinstance(module, _NORMS):
        assign_weight(module, attribute, torch.full(parameter.shape, float(attribute == "weight")))
    elif isinstance(module, nn.Embedding):
        assign_weight(module, attribute, normal(parameter.shape, 1.0, stream))
    elif isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        assign_weight(module, attribute, uniform(parameter.shape, module.hidden_size**-0.5, stream))
    elif isinstance(module, nn.MultiheadAttention) and parameter.dim() > 1:
        assign_weight(module, attribute, uniform(parameter.shape, math.sqrt(6 / sum(parameter.shape)), stream))
    elif parameter.dim() > 1:
        fan = math.prod(parameter.shape[1:])
        known = attribute == "weight" and _has_reset(module)
        bound = fan**-0.5 if known else math.sqrt(6 / (fan + parameter.shape[0] * math.prod(parameter.shape[2:])))
        assign_weight(module, attribute, uniform(parameter.shape, bound, stream))
    else:
        assign_weight(module, attribute, torch.zeros(parameter.shape))


def _has_reset(module: nn.Module) -> bool:
    reset: Callable[[], None] | None = getattr(module, "reset_parameters", None) or getattr(
        module, "_reset_parameters", None
    )
    return callable(reset)
