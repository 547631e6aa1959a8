"""What is seen of a script: its backward passes, the steps of its optimizers, and all that belongs to one run."""

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from theta0._trace.interpreter import Handler, Interpreter
from theta0.captures.entries import (
    Constants,
    Entry,
    Use,
)
from theta0.captures.stored_data import StoredData
from theta0.measurements.taken_back import StepValues
from theta0.measurements.unloaded_weights import NotLoaded

_ASKED = 3  # times to stop; a script that goes on catches everything
_PATIENCE = 8  # times as many passes as are wanted: then it is enough, whatever is missing


class Stop(BaseException):
    """Ends a script when enough was seen; not an `Exception`, so that scripts do not handle it."""


@dataclass(eq=False)
class Pass:  # what a backward pass reached is known only after it
    """One backward pass of the script.

    Attributes:
        roots: what was differentiated; None in the place of a tensor whose making was not seen.
        gradients_given: the gradient given for each root.
        value: the loss.
        signature: which modules and functions it hangs on, without repetitions.
        exchanged: whether `DistributedDataParallel` averages its gradients over the ranks.
        empty: the parameters that had no gradient, or zeros, before it.
        received: the parameters that it gave a gradient to.
        gradients: of the parameters, where they had none before; of the first pass of each signature only.
        norms: of each parameter's gradient, accumulated ones included, after it.
    """

    roots: list[Use | None]
    gradients_given: list[Tensor | None]
    value: Tensor
    signature: tuple[Any, ...]
    empty: set[int]
    exchanged: bool = False
    received: set[int] = field(default_factory=set)
    gradients: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether it is of one tensor that was seen being made, with no gradient given for it."""
        return len(self.roots) == 1 and self.roots[0] is not None and self.gradients_given[0] is None


@dataclass(eq=False)
class Steps:  # grows while the script runs
    """One optimizer of the script.

    Attributes:
        optimizer: the optimizer itself.
        rate: the highest learning rate of its first group, the schedule's maximum.
        groups: the passes of each step.
        unreached: the last pass before each step that found no gradient, by which it can be said why.
        shares: of each of `groups`, the gradient's norm that the step found over its norm after the last pass; 1
            without scaling or clipping, None where that is not known.
        norms: of each of `groups`, the gradient's norm that the step found; None where that is not known.
        left_over: of each of `groups`, the share of the entries with a gradient whose gradient holds that of an earlier
            step as well; None where that is not known, as of the first step.
        rates: the learning rate of its first group at each step.
        schedule: these, and those to come, as far as a scheduler says.
        rewritten: whether its parameters changed between two of its steps, as by clipping weights.
        sums: of its parameters after its last step.
        values: of its parameters before and after its steps.
        begun: how many groups there were before its last step.
        consumed: how many passes had been seen at its last step.
        restore: puts its state back.
    """

    optimizer: torch.optim.Optimizer
    restore: Callable[[], None]
    rate: float = 0.0
    groups: list[list[Pass]] = field(default_factory=list)
    unreached: list[list[Pass]] = field(default_factory=list)
    shares: list[float | None] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    left_over: list[float | None] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    schedule: tuple[float, ...] = ()
    rewritten: bool = False
    sums: Tensor | None = None
    values: StepValues = field(default_factory=StepValues)
    begun: int = 0
    consumed: int = 0

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that it holds."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def shrunk(self) -> float:
        """The first share that is known, and not zero; 1 without any."""
        return next((share for share in self.shares if share), 1.0)


@dataclass(eq=False)
class Recording:  # grows while the script runs
    """What was seen of a script.

    Attributes:
        wanted: how many passes of each kind are enough.
        deadline: when to stop in any case, by `time.monotonic`.
        calls: how many module calls that train were seen.
        passes: the backward passes.
        unseen: how many backward passes had no module's call behind them.
        rootless: the line of the first that had no operation behind it at all, of a loss that is a leaf.
        optimizers: by identity.
        alive: the optimizers and schedulers that there were at the latest first step of one, stepped or not.
        earlier: the optimizers that there were before.
        restores: put each module called, and each parameter trained, back to before the first step.
        owners: modules found in the script's variables, with the variable's name.
        stopped: how often it was asked to stop.
        trained: the parameters that an optimizer has changed.
        several: whether there are several optimizers.
        entries: how many calls and functions were noted.
        constants: the tensors that the script brought.
        covered: the modules and parameters that `restores` covers.
        live: the calls that were not trained since.
        interpreter: the interpreter that watches the script.
        insist: called where the script catches the request to stop again and again; does not return.
        handler: the interpreter's only one.
        skip: optimizer steps that are still to be passed over.
        loop: which training loop is wanted, counted from the one that runs: 1 for this one.
        together: the optimizers that there were at the first step of the loop that runs; None before one.
        exchanging: whether the latest module called averages its gradients over the ranks.
        stepping: whether an optimizer's step runs.
        places: the parameters that optimizers have trained, by where their values lie.
        written: the line that wrote to each of them last, outside of optimizers.
        stored: the memory of the script's data sets, and what changes it.
        later: the line behind the stopped loop that trains again; "" where none is seen.
        not_loaded: the calls of `load_state_dict` that left out what they were given.
    """

    wanted: int
    deadline: float
    calls: int = 0
    passes: list[Pass] = field(default_factory=list)
    unseen: int = 0
    rootless: str = ""
    optimizers: dict[int, Steps] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    earlier: "weakref.WeakSet[torch.optim.Optimizer]" = field(default_factory=weakref.WeakSet)
    restores: dict[int, Callable[[], None]] = field(default_factory=dict)
    owners: dict[int, tuple[nn.Module, str]] = field(default_factory=dict)
    stopped: int = 0
    trained: set[int] = field(default_factory=set)
    several: bool = False
    entries: int = 0
    constants: Constants = field(default_factory=Constants)
    covered: set[int] = field(default_factory=set)
    live: list[Entry] = field(default_factory=list)
    interpreter: Interpreter | None = None  # None from where nothing more is to be seen
    insist: Callable[[], None] | None = None
    handler: Handler = field(default_factory=Handler)
    exchanging: bool = False
    skip: int = 0
    loop: int = 1
    together: "weakref.WeakSet[torch.optim.Optimizer] | None" = None
    stepping: bool = False
    places: dict[int, int] = field(default_factory=dict)
    written: dict[int, str] = field(default_factory=dict)
    stored: StoredData = field(default_factory=StoredData)
    later: str = ""
    not_loaded: list[NotLoaded] = field(default_factory=list)

    @property
    def enough(self) -> bool:
        """Whether every kind of pass was seen often enough, and a step of every optimizer; or enough is enough."""
        counts: dict[Any, int] = {}
        for one in self.passes:
            counts[one.signature] = counts.get(one.signature, 0) + 1
        stepped = any(steps.groups for steps in self.optimizers.values())
        made = (one for one in self.alive if isinstance(one, torch.optim.Optimizer) and one not in self.earlier)
        idle = any(id(one) not in self.optimizers for one in made)
        complete = stepped and not idle and bool(counts) and min(counts.values()) >= self.wanted
        return complete or len(self.passes) + self.unseen >= _PATIENCE * self.wanted

    def check(self) -> None:
        """Stop the script where it is time to; again where it did not stop.

        Raises:
            Stop: where it is.
        """
        if (self.skip > 0 or self.loop > 1) and time.monotonic() <= self.deadline:
            return
        if self.stopped or self.enough or time.monotonic() > self.deadline:
            self.stopped += 1
            if self.stopped > _ASKED and self.insist is not None:
                self.interpreter = None
                self.insist()
            raise Stop
