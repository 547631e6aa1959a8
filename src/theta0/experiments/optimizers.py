"""The user's optimizer, by name, class, factory or as an instance that is mirrored, at any learning rate."""

import copy
import gc
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from theta0._training import OPTIMIZERS, OptimizerSettings, make_optimizer
from theta0.curvature.stability import ADAPTIVE

Optimizer = str | type[torch.optim.Optimizer] | Callable[[Iterable[nn.Parameter]], Any] | torch.optim.Optimizer
Maker = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]
_KNOWN = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
}


@dataclass(frozen=True, eq=False)
class OptimizerKind:
    """An optimizer that can be made again and again.

    Attributes:
        name: as it is shown.
        make: from the trained parameters and a learning rate to a new optimizer.
        settings: what decides its stability; None for a kind that `stability.largest_rate` does not know.
        adaptive: whether a step's length hardly depends on the gradient's.
        rate: its own learning rate, where an instance or a factory brings one.
        closure: whether its step evaluates the loss itself, several times, which the runs do not do.
        lacking: trained parameters of the model that no group of an instance holds, nor another optimizer.
    """

    name: str
    make: Maker
    settings: OptimizerSettings | None
    adaptive: bool
    rate: float | None = None
    closure: bool = False
    lacking: tuple[str, ...] = ()

    @property
    def nearest(self) -> str:
        """The name of the known kind that it is, or comes nearest to."""
        return self.settings.optimizer if self.settings is not None else "adam" if self.adaptive else "sgd"


def optimizer_kind(optimizer: Optimizer | None, model: nn.Module, **settings: Any) -> OptimizerKind:
    """How to make the user's optimizer at a given rate.

    Args:
        optimizer: "sgd", "momentum", "adam", "adamw" or "rmsprop", or the name of a class of torch's, in any case; a
            class, called with the parameters and `lr`; a factory, called with the parameters; or an optimizer over the
            model's parameters, which is left alone: its class, its groups and their options are taken, and the ratios
            of their rates. None is SGD.
        model: whose parameters an instance has.
        settings: of a named one, as in `stability.OptimizerSettings`.

    Returns:
        The kind.

    Raises:
        ValueError: if it is none of these, or the settings cannot be used.
    """
    if optimizer is None or isinstance(optimizer, str):
        return _named(optimizer or "sgd", model, settings)
    if isinstance(optimizer, torch.optim.Optimizer):
        described = _described(optimizer, lambda p, rate: _mirrored(optimizer, p, rate), _rate_of(optimizer))
        return replace(described, lacking=_lacking(optimizer, model))
    if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
        kind: Any = optimizer  # torch declares no `lr` for the base class
        return _described(kind(_parameters(model), lr=1e-3), lambda p, rate: kind(p, lr=rate))
    if callable(optimizer):
        factory: Callable[[list[nn.Parameter]], Any] = optimizer
        made = factory(_parameters(model))
        if isinstance(made, torch.optim.Optimizer):
            return _described(made, lambda p, rate: _at(factory(p), rate), _rate_of(made))
    raise ValueError(
        f"optimizer: expected one of {', '.join(OPTIMIZERS)}, an optimizer class, a function from parameters to an "
        f"optimizer, or an optimizer, got {optimizer!r:.100}"
    )


def steppable(kind: OptimizerKind) -> OptimizerKind:
    """The kind, if short runs can step it.

    Returns:
        The kind.

    Raises:
        ValueError: if its step needs a closure.
    """
    if kind.closure:
        raise ValueError(
            f"optimizer: expected one whose step() needs no closure, got {kind.name}, which evaluates the loss several "
            "times a step; name another one, for example 'adam'"
        )
    return kind


def _named(name: str, model: nn.Module, settings: Mapping[str, Any]) -> OptimizerKind:
    lower = name.lower()
    classes = {kind.__name__.lower(): kind for kind in vars(torch.optim).values() if _is_class(kind)}
    if lower not in OPTIMIZERS and lower in classes:
        return optimizer_kind(classes[lower], model)
    chosen = OptimizerSettings(lower if lower in OPTIMIZERS else name, **settings)  # says which names there are
    return OptimizerKind(lower, lambda p, rate: make_optimizer(chosen, p, rate), chosen, lower in ADAPTIVE)


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer


def _rate_of(optimizer: torch.optim.Optimizer) -> float | None:
    return float(optimizer.param_groups[0]["lr"]) or None


def _described(made: torch.optim.Optimizer, make: Maker, rate: float | None = None) -> OptimizerKind:
    options, name = made.param_groups[0], _KNOWN.get(type(made))
    if name == "sgd" and options["momentum"]:
        name = "momentum"
    shown = name or type(made).__name__
    settings = None if name is None else _settings(name, options)
    adaptive = name in ADAPTIVE or (name is None and ("betas" in options or "eps" in options))
    closure = inspect.signature(type(made).step).parameters.get("closure")
    needed = closure is not None and closure.default is inspect.Parameter.empty
    return OptimizerKind(shown, make, settings, adaptive, rate, needed)


def _settings(name: str, options: Mapping[str, Any]) -> OptimizerSettings:
    taken = {key: options[key] for key in ("nesterov", "betas", "alpha", "eps") if key in options}
    decay = float(options.get("weight_decay", 0.0)) if name in ("sgd", "momentum", "adamw") else 0.0
    momentum = {"momentum": options["momentum"]} if name == "momentum" else {}
    return OptimizerSettings(name, weight_decay=decay, **momentum, **taken)


def _mirrored(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], rate: float
) -> torch.optim.Optimizer:
    """An optimizer of the same class with the same options, no state and no hooks.

    It holds those of the parameters that the given one holds, in the same groups; all of them, in its first group,
    where it holds none, as that of a copy of the model does. It is not made by calling the class: what a constructor
    takes is not always what it keeps.
    """
    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    kept = {name: value for name, value in vars(optimizer).items() if name != "step"}  # schedulers replace `step`
    vars(made).update({name: OrderedDict() if "hooks" in name else value for name, value in kept.items()})
    made.state = defaultdict(dict)
    made.param_groups = [
        {key: value if key == "params" else copy.copy(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]
    _at(made, rate)
    for group in made.param_groups:
        held = {id(p) for p in group["params"]}
        group["params"] = [p for p in parameters if id(p) in held]
    if not any(group["params"] for group in made.param_groups):
        made.param_groups[0]["params"] = list(parameters)
    return made


def _lacking(optimizer: torch.optim.Optimizer, model: nn.Module) -> tuple[str, ...]:
    """The trained parameters that neither it nor any other optimizer holds; none where it holds none of the model's.

    One that was made before a layer was replaced still holds the others, frozen ones too.
    """
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, p in trained.items() if id(p) not in own]
    if not missing or not any(id(p) in own for p in model.parameters()):
        return ()
    others = (o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer) and "param_groups" in vars(o))
    held = {id(p) for other in others for group in other.param_groups for p in group["params"]}
    return tuple(name for name in missing if id(trained[name]) not in held)


def _at(optimizer: torch.optim.Optimizer, rate: float) -> torch.optim.Optimizer:
    """The optimizer with its first group at a rate, and the others as much above or below it as they were."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    for group, own in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * (own / rates[0] if rates[0] > 0 else 1.0)
    return optimizer


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that are trained; one of its own where nothing is, since no optimizer takes none."""
    return [p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))]
