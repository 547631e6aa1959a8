"""The user's optimizer, by name, class, factory or as an instance that is mirrored, at any learning rate."""

import copy
import gc
import inspect
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from theta0._errors import shown
from theta0._training import OPTIMIZERS, Maker, OptimizerSettings, checked_positive, make_optimizer
from theta0.curvature.stability import ADAPTIVE

Optimizer = str | type[torch.optim.Optimizer] | Callable[[Iterable[nn.Parameter]], Any] | torch.optim.Optimizer
Scheduler = Callable[[torch.optim.Optimizer], Any] | torch.optim.lr_scheduler.LRScheduler
_FORESEEN = 10_000  # steps of a schedule in which its highest rate is looked for
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
        foreign: whether it is an instance that holds none of the model's parameters.
        lacking: trained parameters of the model that no group of an instance holds, nor another optimizer.
        decay: the largest weight decay of its groups.
        decoupled: whether that shrinks the weights beside the gradient's step, and is no part of the gradient.
    """

    name: str
    make: Maker
    settings: OptimizerSettings | None
    adaptive: bool
    rate: float | None = None
    closure: bool = False
    foreign: bool = False
    lacking: tuple[str, ...] = ()
    decay: float = 0.0
    decoupled: bool = False

    @property
    def nearest(self) -> str:
        """The name of the known kind that it is, or comes nearest to."""
        return self.settings.optimizer if self.settings is not None else "adam" if self.adaptive else "sgd"


def optimizer_kind(
    optimizer: Optimizer | None,
    model: nn.Module,
    *,
    clip_norm: float | None = None,
    accumulate: int = 1,
    **settings: Any,
) -> OptimizerKind:
    """How to make the user's optimizer at a given rate, and what is done around its steps.

    Args:
        optimizer: "sgd", "momentum", "adam", "adamw" or "rmsprop", or the name of a class of torch's, in any case; a
            class, called with the parameters and `lr`; a factory, called with the parameters; or an optimizer over the
            model's parameters, which is left alone: its class, its groups and their options are taken, and the ratios
            of their rates. None is SGD.
        model: whose parameters an instance has.
        clip_norm: to which the norm of all gradients together is clipped before each step.
        accumulate: over how many batches a step takes the mean of the gradients.
        settings: of a named one, as in `stability.OptimizerSettings`.

    Returns:
        The kind.

    Raises:
        ValueError: if it is none of these, or the settings cannot be used.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> kind = optimizer_kind(torch.optim.Adam(model.parameters(), lr=3e-4), model)
        >>> kind.name, kind.rate
        ('adam', 0.0003)
    """
    kind = _kind(optimizer, model, settings)
    if checked_positive(clip_norm, "clip_norm") is not None:
        kind = replace(kind, make=clipped(kind.make, float(clip_norm or 0.0)))
    if accumulate < 1:
        raise ValueError(f"accumulate: expected a number of batches of at least 1, got {accumulate}")
    return kind if accumulate == 1 else replace(kind, make=accumulated(kind.make, accumulate))


def _kind(optimizer: Optimizer | None, model: nn.Module, settings: Mapping[str, Any]) -> OptimizerKind:
    if optimizer is None or isinstance(optimizer, str):
        return _named(optimizer or "sgd", model, settings)
    if isinstance(optimizer, torch.optim.Optimizer):
        order = [id(p) for p in _parameters(model)]
        made = _described(optimizer, lambda p, rate: _mirrored(optimizer, p, rate, order), _rate_of(optimizer))
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        foreign = not any(id(p) in held for p in model.parameters())
        return replace(made, foreign=foreign, lacking=_lacking(optimizer, model))
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
        f"optimizer, or an optimizer, got {shown(optimizer)}"
    )


def mirrored(optimizer: Optimizer | None, model: nn.Module) -> Optimizer | None:
    """An optimizer for copies of a model: in place of an instance, a factory that mirrors it.

    Returns:
        The optimizer, or the factory.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    kind = optimizer_kind(optimizer, model)
    return lambda parameters: kind.make(list(parameters), kind.rate or 1e-3)


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
    decay, decoupled = chosen.weight_decay, lower == "adamw"
    return OptimizerKind(
        lower,
        lambda p, rate: make_optimizer(chosen, p, rate),
        chosen,
        lower in ADAPTIVE,
        decay=decay,
        decoupled=decoupled,
    )


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer


def _rate_of(optimizer: torch.optim.Optimizer) -> float | None:
    """The highest rate of its first group that is known: a schedule that warms up starts below it."""
    return _highest(optimizer.param_groups[0]) or None


def _highest(group: Mapping[str, Any]) -> float:
    return max(float(group[key]) for key in ("lr", "initial_lr", "max_lr") if key in group)


def rate_of(kind: OptimizerKind, given: float | None, scheduler: Scheduler | None = None) -> float | None:
    """The learning rate that is judged: the one given, else the optimizer's own; of a schedule the highest.

    Args:
        kind: the optimizer.
        given: the learning rate given beside it, if any.
        scheduler: a function from an optimizer to its schedule, or the schedule of an instance.

    Returns:
        The rate; None where none is known.

    Raises:
        ValueError: if the rate is no positive number, or the function makes no schedule.
    """
    rate = kind.rate if checked_positive(given, "learning_rate") is None else given
    if rate is None or scheduler is None or isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        return rate  # what a schedule has done so far stands in its optimizer's groups
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = kind.make([parameter], rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of schedules that are stepped beyond their end
        schedule = scheduler(optimizer)
        if not isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
            raise ValueError(
                "scheduler: expected a function from an optimizer to a schedule of torch.optim.lr_scheduler, "
                f"got one that returns {type(schedule).__name__}"
            )
        return max(_foreseen(optimizer, schedule)) or rate


def _foreseen(optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler) -> Iterator[float]:
    """The rates of a schedule, step by step, to its end or as far as it is foreseen."""
    for _ in range(_FORESEEN):
        yield float(optimizer.param_groups[0]["lr"])
        try:
            optimizer.step()
            schedule.step()
        except (TypeError, ValueError):  # it is stepped by a metric, or has come to its end
            return


def clipped(make: Maker, norm: float) -> Maker:
    """As a maker, with the norm of all gradients together clipped before each step.

    Returns:
        The maker.
    """

    def made(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        optimizer = make(parameters, rate)
        optimizer.register_step_pre_hook(lambda *_: _clip(optimizer, norm))
        return optimizer

    return made


def _clip(optimizer: torch.optim.Optimizer, norm: float) -> None:
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], norm)


def accumulated(make: Maker, batches: int) -> Maker:
    """As a maker, of optimizers that step once in several batches, by the mean of the gradients since the last step.

    Returns:
        The maker.
    """

    def made(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        optimizer, seen = make(parameters, rate), [0]
        step, zero_grad = optimizer.step, optimizer.zero_grad

        def stepped(*arguments: Any, **options: Any) -> Any:
            seen[0] += 1
            if seen[0] % batches:
                return None
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            torch._foreach_div_(gradients, float(batches))
            return step(*arguments, **options)

        def emptied(set_to_none: bool = True) -> None:
            if seen[0] % batches == 0:
                zero_grad(set_to_none=set_to_none)

        vars(optimizer).update(step=stepped, zero_grad=emptied)
        return optimizer

    return made


def _described(made: torch.optim.Optimizer, make: Maker, rate: float | None = None) -> OptimizerKind:
    options, name = made.param_groups[0], _KNOWN.get(type(made))
    if name == "sgd" and options["momentum"]:
        name = "momentum"
    shown = name or type(made).__name__
    settings = None if name is None else _settings(name, options)
    adaptive = name in ADAPTIVE or (name is None and ("betas" in options or "eps" in options))
    closure = inspect.signature(type(made).step).parameters.get("closure")
    needed = closure is not None and closure.default is inspect.Parameter.empty
    decay = max(float(group.get("weight_decay") or 0.0) for group in made.param_groups)
    decoupled = name == "adamw" or bool(options.get("decoupled_weight_decay"))
    return OptimizerKind(shown, make, settings, adaptive, rate, needed, decay=decay, decoupled=decoupled)


def _settings(name: str, options: Mapping[str, Any]) -> OptimizerSettings:
    taken = {key: options[key] for key in ("nesterov", "betas", "alpha", "eps") if key in options}
    decay = float(options.get("weight_decay", 0.0)) if name in ("sgd", "momentum", "adamw") else 0.0
    momentum = {"momentum": options["momentum"]} if name == "momentum" else {}
    return OptimizerSettings(name, weight_decay=decay, **momentum, **taken)


def _mirrored(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], rate: float, order: Sequence[int]
) -> torch.optim.Optimizer:
    """An optimizer of the same class with the same options, no state and no hooks.

    It holds those of the parameters that the given one holds, in the same groups; where it holds none, as that of a
    copy of the model does, those at the same places in the model's order, else all of them in its first group. It is
    not made by calling the class: what a constructor takes is not always what it keeps.
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
    held = {id(p) for group in made.param_groups for p in group["params"]}
    copied = len(parameters) == len(order) and not any(id(p) in held for p in parameters)
    names = order if copied else [id(p) for p in parameters]
    for group in made.param_groups:
        own = {id(p) for p in group["params"]}
        group["params"] = [p for p, name in zip(parameters, names, strict=True) if name in own]
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
    rates = [_highest(group) for group in optimizer.param_groups]
    for group, own in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * (own / rates[0] if rates[0] > 0 else 1.0)
    return optimizer


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that are trained; one of its own where nothing is, since no optimizer takes none."""
    return [p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))]
