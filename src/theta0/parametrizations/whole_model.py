"""One reparametrization on all weights of a model, and back to plain weights."""

import gc
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from theta0._batches import initialised
from theta0._models import in_place
from theta0._state import seed_draws, transaction
from theta0.parametrizations._registration import put_parameter_, same_parameter, stand_in_
from theta0.parametrizations._torch_classes import own_class_, read_weights_when_called_
from theta0.parametrizations._units import fan_in, hooked_weight_names, transposed_groups, weight_names
from theta0.parametrizations.centered_weight_norm import CenteredDirection, centered_weight_norm
from theta0.parametrizations.linearly_constrained import Centered, HouseholderBasis, linearly_constrained

Method = Literal["lcw", "cwn", "weight-norm", "spectral-norm"]
_Weight = tuple[str, nn.Module, str]  # the module's path, the module, the weight's name in it


@dataclass(frozen=True)
class Parametrized:
    """What `reparametrize` did.

    Attributes:
        method: the method.
        weights: the full names of the weights that are now computed.
        skipped: the full names of the weights left plain, and why.
    """

    method: str
    weights: tuple[str, ...]
    skipped: Mapping[str, str]


def reparametrize(model: nn.Module, method: Method, *, skip: Collection[str] = ()) -> Parametrized:
    """Reparametrize the weights of all Linear, convolutional, attention and recurrent layers, in place.

    `"lcw"` is `linearly_constrained` in ambient coordinates, `"cwn"` is `centered_weight_norm`; `"weight-norm"` and
    `"spectral-norm"` are torch's own. Left plain, with a reason in the result: what `skip` names, frozen weights, units
    with one input (depthwise 1 × 1 convolutions; LCW and CWN), weights of zeros or equal ones (all but LCW), weights
    parametrized already or made by a hook, and weights tied to an owner that cannot be parametrized alike (an
    embedding). Weights tied among layers that can are parametrized jointly and stay tied.

    A computed weight is given values by assignment, `layer.weight = values`. Initializers that write in place, and so
    `reset_parameters`, reach a temporary tensor and change nothing.

    Under `"lcw"` the weights remain the same `Parameter` objects, so an optimizer made before goes on working. Under
    `"spectral-norm"` as well; `"cwn"` and `"weight-norm"` put new ones in their place: make the optimizer afterwards.
    An optimizer that still holds the old ones is looked for, and warned of. `torch.compile` fuses the weights' making
    into its graphs; recurrent layers it runs eagerly, as it does without parametrization.

    Args:
        model: changed in place; as it was if anything fails.
        method: the reparametrization.
        skip: paths of modules, with all that is in them, or full names of weights.

    Returns:
        What was done.

    Raises:
        ValueError: if the method or an entry of `skip` is unknown, no weight is left, or the model is wrapped in
            DistributedDataParallel already, which would miss new parameters.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from theta0.parametrizations import parametrize_, remove_
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 3))
        >>> model = parametrize_(model, "lcw")
        >>> bool((model[0].weight.sum(1).abs() < 1e-6).all())  # the weights of each unit sum to zero
        True
        >>> outputs = model(torch.ones(1, 8))
        >>> torch.allclose(remove_(model)(torch.ones(1, 8)), outputs, atol=1e-6)  # plain weights, the same function
        True
    """
    if not isinstance(method, str) or method not in _METHODS:
        raise ValueError(f"method: expected one of {', '.join(map(repr, _METHODS))}, got {method!r}")
    if isinstance(model, nn.parallel.DistributedDataParallel) and method in ("cwn", "weight-norm"):
        raise ValueError(
            f"model: {method!r} makes new parameters; parametrize it before DistributedDataParallel wraps it: "
            f"DistributedDataParallel(theta0.parametrize_(model, {method!r}))"
        )
    inner = initialised(model)
    chosen, skipped = _chosen(inner, method, skip)
    if not chosen:
        why = "; ".join(f"{name}: {reason}" for name, reason in skipped.items()) or "it has no such layer"
        raise ValueError(f"model: expected a weight that {method!r} can take, got none ({why})")
    before = [module._parameters[name] for _, module, name in chosen]
    with transaction(inner):
        seed_draws(0)  # spectral norm draws the start of its power iteration
        _register(chosen, method)
        _warn_of_optimizers(inner, before, depth=4)  # through `in_place`
    return Parametrized(method, tuple(_full(*weight) for weight in chosen), skipped)


parametrize_ = in_place(reparametrize)


def remove_(model: nn.Module) -> nn.Module:
    """Make the weights under `parametrize_`'s kinds of parametrization plain again, computing the same function.

    Also those that were parametrized by other means than `parametrize_`. Names and order of the `state_dict` are
    those from before. Parametrizations of other kinds stay, and so does one of these kinds where it is stacked on
    another. Weights keep their `Parameter` under LCW and spectral norm; the other methods leave new ones: make the
    optimizer afterwards. Spectral norm stops where its iteration stands.

    Args:
        model: changed in place; as it was if anything fails.

    Returns:
        The model.

    Example:
        >>> from torch import nn
        >>> from theta0 import parametrize_
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 3))
        >>> names = list(model.state_dict())
        >>> list(remove_(parametrize_(model, "lcw")).state_dict()) == names
        True
    """
    inner = initialised(model)
    before = list(inner.parameters())
    with transaction(inner):
        plain: dict[int, tuple[nn.Parameter, Tensor, Any]] = {}  # by what made the weight, which tied owners share
        for _, module, name in _removable(inner):
            _make_plain(module, name, plain)
        for parameter, value, _ in plain.values():
            parameter.copy_(value)
        _warn_of_optimizers(inner, before)
    return model


def _removable(model: nn.Module) -> list[_Weight]:
    known = (Centered, HouseholderBasis, CenteredDirection, _TORCH_WEIGHT_NORM, _TORCH_SPECTRAL_NORM)
    found: list[_Weight] = []
    for path, module in model.named_modules():
        if parametrize.is_parametrized(module):
            for name, made in module.parametrizations.items():
                if all(isinstance(part, known) for part in made):
                    found.append((path, module, name))
    return found


def _make_plain(module: nn.Module, name: str, plain: dict[int, tuple[nn.Parameter, Tensor, Any]]) -> None:
    made: Any = module.parametrizations[name]  # type: ignore[index]
    for part in made:
        part.training = False  # spectral norm moves with every reading while it trains
    trained = any(parameter.requires_grad for parameter in made.parameters(recurse=False))
    value = getattr(module, name).clone()
    own_class_(module)
    own = stand_in_(made)
    parametrize.remove_parametrizations(module, name)
    if id(made) in plain:
        put_parameter_(module, name, plain[id(made)][0])
    elif own is not None:
        put_parameter_(module, name, own)
    elif name in module._buffers:  # what torch makes of a frozen weight that had two parameters
        module.register_parameter(name, nn.Parameter(module._buffers.pop(name), requires_grad=False))  # type: ignore[arg-type]
    weight: Any = module._parameters[name]
    weight.requires_grad_(trained)
    if weight.grad is not None and weight.grad.shape != weight.shape:
        weight.grad = None
    plain.setdefault(id(made), (weight, value, made))  # holds `made`, so that its id stays its own
    _in_order(module)


def _in_order(module: nn.Module) -> None:
    """Put parameters back into the order in which torch's layers make them: a removed one comes last."""
    attention = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    order = [*getattr(module, "_flat_weights_names", ()), *attention, "weight", "weight_ih", "weight_hh"]
    place = {name: at for at, name in enumerate(order)}
    held = sorted(module._parameters.items(), key=lambda entry: place.get(entry[0], len(order)))
    module._parameters.clear()
    module._parameters.update(held)


def _chosen(model: nn.Module, method: Method, skip: Collection[str]) -> tuple[list[_Weight], dict[str, str]]:
    asked = _asked(model, skip)
    owners: dict[int, list[_Weight]] = {}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((path, module, name))
    reasons: dict[str, str | None] = {
        _full(path, module, name): "made by a hook before each forward pass"
        for path, module in model.named_modules()
        for name in hooked_weight_names(module)
    }
    found = [(path, module, name) for path, module in model.named_modules() for name in weight_names(module)]
    for weight in found:
        reasons[_full(*weight)] = _plain_because(weight, method, asked)
    for path, module, name in found:
        tied, groups = owners.get(id(module._parameters.get(name)), []), transposed_groups(module)
        for other in tied:
            plain = reasons.get(_full(*other), "another kind of layer") is not None
            if reasons[_full(path, module, name)] is None and (plain or transposed_groups(other[1]) != groups):
                what = "which keeps a plain weight" if plain else "whose units lie along another axis"
                reasons[_full(path, module, name)] = f"tied to {_full(*other)!r}, {what}"
    chosen = [weight for weight in found if reasons[_full(*weight)] is None]
    return chosen, {name: reason for name, reason in reasons.items() if reason is not None}


def _asked(model: nn.Module, skip: Collection[str]) -> set[tuple[int, str]]:
    """The weights that `skip` names, under any of their paths, by module and attribute."""
    modules = dict(model.named_modules(remove_duplicate=False))
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    listed = isinstance(skip, Collection) and not isinstance(skip, str)
    asked: set[tuple[int, str]] = set()
    unknown: list[Any] = [] if listed else [skip]
    for entry in skip if listed else ():
        path, _, name = entry.rpartition(".") if isinstance(entry, str) else ("", "", "")
        if isinstance(entry, str) and entry in modules:
            asked |= {(id(module), name) for module in modules[entry].modules() for name in weight_names(module)}
        elif entry in parameters or (path in modules and name in weight_names(modules[path])):
            asked.add((id(modules[path]), name))
        else:
            unknown.append(entry)
    if unknown:
        raise ValueError(f"skip: expected a collection of module paths or weight names of this model, got {unknown}")
    return asked


def _plain_because(weight: _Weight, method: Method, asked: Collection[tuple[int, str]]) -> str | None:
    _, module, name = weight
    if (id(module), name) in asked:
        return "skipped as asked"
    parameter = module._parameters.get(name)
    if parameter is None:
        return "parametrized already"
    if not parameter.requires_grad:
        return "frozen"
    groups = transposed_groups(module)
    size = fan_in(tuple(parameter.shape), groups)
    if method in ("lcw", "cwn") and size < 2:
        return f"fan-in {size}, where only the zero weight sums to zero"
    if method == "cwn" and CenteredDirection(groups).without_direction(parameter):
        return "a unit of equal weights, which has no direction once centred"
    if method == "weight-norm" and _has_zero_unit(parameter.detach(), groups):
        return "a unit of zero weights, which has no direction"
    if method == "spectral-norm" and not parameter.is_meta and not bool(parameter.detach().any()):
        return "all weights zero, which no norm can scale"
    return None


def _has_zero_unit(weight: Tensor, groups: int) -> bool:
    """Whether one of the lengths that torch's weight normalization takes is zero: one for each output of a group."""
    by_unit = weight.transpose(0, 1) if groups else weight
    return not weight.is_meta and bool((by_unit.flatten(1) == 0).all(1).any())


def _register(chosen: Iterable[_Weight], method: Method) -> None:
    made: dict[int, Any] = {}
    kept: list[Any] = []  # so that ids stay unique
    for _, module, name in chosen:
        parameter: Any = module._parameters[name]
        kept.append(parameter)
        own_class_(module)
        _METHODS[method](module, name)
        read_weights_when_called_(module)
        if method != "lcw" and id(parameter) in made:  # ambient LCW keeps the tied Parameter itself
            module.parametrizations[name] = made[id(parameter)]  # type: ignore[index, operator]
        made[id(parameter)] = module.parametrizations[name]  # type: ignore[index]


def _full(path: str, module: nn.Module, name: str) -> str:
    return f"{path}.{name}" if path else name


def _warn_of_optimizers(model: nn.Module, before: Iterable[nn.Parameter | None], *, depth: int = 3) -> None:
    present = {id(parameter) for parameter in model.parameters()}
    gone = {id(parameter) for parameter in before if parameter is not None and id(parameter) not in present}
    if gone and any(id(p) in gone for optimizer in _optimizers() for g in optimizer.param_groups for p in g["params"]):
        warnings.warn(
            "an optimizer made before holds weights that are no longer the model's: it would train nothing of them. "
            "Make the optimizer again, from model.parameters()",
            stacklevel=depth,
        )


def _optimizers() -> Iterator[torch.optim.Optimizer]:
    return (held for held in gc.get_objects() if issubclass(type(held), torch.optim.Optimizer))


def _weight_norm(layer: nn.Module, name: str) -> nn.Module:
    parametrizations.weight_norm(layer, name, dim=1 if transposed_groups(layer) else 0)
    return layer


def _spectral_norm(layer: nn.Module, name: str) -> nn.Module:
    with same_parameter(layer, name):
        parametrizations.spectral_norm(layer, name)
    return layer


_TORCH_WEIGHT_NORM, _TORCH_SPECTRAL_NORM = parametrizations._WeightNorm, parametrizations._SpectralNorm
_METHODS: dict[str, Callable[[nn.Module, str], nn.Module]] = {
    "lcw": linearly_constrained,
    "cwn": centered_weight_norm,
    "weight-norm": _weight_norm,
    "spectral-norm": _spectral_norm,
}
