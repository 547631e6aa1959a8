"""What every verb on targets takes: the targets, a script's own arguments, and what is given instead of theirs."""

import functools
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from theta0.targets import Target

_ARGUMENTS = "theta0.arguments"
_PANEL = "Options of every command"


@dataclass(frozen=True)
class Given:
    """What stands on the command line for every verb; None where nothing does.

    Attributes:
        targets: scripts, target files or modules.
        arguments: of the script, after `--`.
        optimizer: a name, in place of the target's.
        learning_rate: in place of the target's.
        loss: a name, in place of the target's.
        device: to which the model of a target file is moved.
        max_batches: how many batches are read.
        skip: optimizer steps of a script that are passed over.
        loop: which training loop of a script, from 1.
        optimizer_index: which optimizer of a script, from 1.
        seed: of all global generators, before the target is run.
        budget: in seconds.
        as_json: whether to print JSON.
        traceback: whether an error shows where it arose.
        began: when the command did, by `time.monotonic`.
    """

    targets: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    optimizer: str | None = None
    learning_rate: float | None = None
    loss: str | None = None
    device: str | None = None
    max_batches: int | None = None
    skip: int = 0
    loop: int = 1
    optimizer_index: int | None = None
    seed: int | None = None
    budget: float | None = None
    as_json: bool = False
    traceback: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float | None:
        """What is left of the budget, a thousandth of one at least; None where there is none."""
        return None if self.budget is None else max(1e-3, self.budget - (time.monotonic() - self.began))

    @property
    def read(self) -> dict[str, int]:
        """The keyword for how many batches a verb reads, where one is given."""
        return {} if self.max_batches is None else {"max_batches": self.max_batches}


_OPTIONS: dict[str, Any] = {
    "optimizer": Annotated[
        str | None, typer.Option(rich_help_panel=_PANEL, help="sgd, momentum, adam, adamw, or a class of torch.optim.")
    ],
    "learning_rate": Annotated[
        float | None, typer.Option("--lr", rich_help_panel=_PANEL, help="The learning rate it is trained with.")
    ],
    "loss": Annotated[str | None, typer.Option(rich_help_panel=_PANEL, help="cross_entropy, mse, l1 or bce.")],
    "device": Annotated[
        str | None,
        typer.Option(rich_help_panel=_PANEL, help="Move the model of a target file here: cuda, cuda:1, mps, cpu."),
    ],
    "max_batches": Annotated[int | None, typer.Option(rich_help_panel=_PANEL, help="How many batches to read.", min=1)],
    "optimizer_index": Annotated[
        int | None,
        typer.Option(rich_help_panel=_PANEL, help="Which optimizer of a script, from 1; default: every one.", min=1),
    ],
    "skip": Annotated[
        int,
        typer.Option(
            rich_help_panel=_PANEL,
            help="Optimizer steps to pass over, where a script trains something else first.",
            metavar="STEPS",
            min=0,
        ),
    ],
    "loop": Annotated[
        int,
        typer.Option(
            rich_help_panel=_PANEL,
            help="Which training loop of a script, from 1: fine-tuning after pretraining, say, is 2.",
            min=1,
        ),
    ],
    "seed": Annotated[
        int | None, typer.Option(rich_help_panel=_PANEL, help="Seed torch, numpy and random before the target runs.")
    ],
    "budget": Annotated[
        float | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="Seconds: a script is stopped at its next training call; what does not fit is left out, and said.",
            metavar="SECONDS",
            min=0.0,
        ),
    ],
    "as_json": Annotated[
        bool, typer.Option("--json", rich_help_panel=_PANEL, help="Print JSON, and nothing else, on standard output.")
    ],
    "traceback": Annotated[
        bool, typer.Option("--traceback", rich_help_panel=_PANEL, help="On an error, show where in the code it arose.")
    ],
}
_TARGETS = Annotated[
    list[str],
    typer.Argument(
        help="Training scripts as they are, or Python files (or `module:`) with model(), batches() and loss; "
        "a script's own arguments follow --.",
        metavar="TARGET",
        show_default=False,
    ),
]


class TargetCommand(TyperCommand):
    """A command whose arguments after `--` are the script's, whatever they look like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what follows `--` for the script.

        Returns:
            What is left over.
        """
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta[_ARGUMENTS] = tuple(args[len(own) + 1 :])
        return super().parse_args(ctx, own)


def on_targets(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the targets and the options of all verbs, beside its own; it receives them as its first argument.

    Args:
        command: takes a `Given`, and its own options by name.

    Returns:
        The function that typer reads.
    """

    def run(ctx: typer.Context, **options: Any) -> None:
        shared = {name: options.pop(name) for name in _OPTIONS}
        targets = tuple(options.pop("targets"))
        command(Given(targets, ctx.meta.get(_ARGUMENTS, ()), **shared), **options)

    defaults = {each.name: each.default for each in fields(Given)}
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [p.replace(kind=kind) for p in list(inspect.signature(command).parameters.values())[1:]]
    shared = [inspect.Parameter(n, kind, default=defaults[n], annotation=a) for n, a in _OPTIONS.items()]
    first = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [first, inspect.Parameter("targets", kind, annotation=_TARGETS), *own, *shared]
    functools.update_wrapper(run, command, assigned=("__module__", "__name__", "__doc__"))
    del run.__dict__["__wrapped__"]  # its signature is not this one's
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def overridden(target: "Target", given: Given, *, script: bool) -> "Target":
    """A target with what is given on the command line in place of its own.

    Args:
        target: as it is.
        given: what stands on the command line.
        script: whether it was captured.

    Returns:
        The target.

    Raises:
        ValueError: if a script's device or loss would have to change.
    """
    from dataclasses import replace

    if script and given.device is not None:
        raise ValueError(
            f"--device: expected a target file, got the script {target.name}, which chooses its own device"
        )
    if given.loss is not None and target.step is not None:
        raise ValueError(
            f"--loss: expected a target without a training step of its own, got {target.name}, whose own loss is used"
        )
    target = target if given.device is None else moved(target, given.device)
    changes: dict[str, Any] = {
        "optimizer": given.optimizer,
        "learning_rate": given.learning_rate,
        "loss": given.loss,
    }
    return replace(target, **{name: value for name, value in changes.items() if value is not None})


def moved(target: "Target", device: str) -> "Target":
    """A target whose models are on a device; batches follow the model.

    Returns:
        The target.

    Raises:
        ValueError: if there is no such device.
    """
    from dataclasses import replace

    try:
        target.model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device: expected a device that torch finds here, got {device!r} ({reason})") from error
    return replace(target, build=lambda: target.build().to(device))


def seed_all(seed: int | None) -> None:
    """Seed the global generators of torch, numpy and random, where a seed is given."""
    if seed is None:
        return
    import random

    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
