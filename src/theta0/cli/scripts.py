"""A training script as a target: it runs in a process of its own, and the verb runs there on what was captured."""

import ast
import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from theta0.captures import Captured
    from theta0.targets import Target

T = TypeVar("T")
in_child = False  # set in the process that runs a script


@dataclass(frozen=True)
class Outcome:
    """What a verb found for one target.

    Attributes:
        document: makes the JSON object.
        report: makes what is printed.
        code: the exit code.
    """

    document: Callable[[], dict[str, Any]]
    report: Callable[[], Any]
    code: int


def is_script(name: str) -> bool:
    """Whether a file is a training script: a Python file that defines neither `model()` nor `batches`.

    It is read, not run, and torch is not imported for it.

    Returns:
        False for a target file, and for what is no Python file.
    """
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assigned = {
        t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }
    return not functions & {"model", "batches"} and "batches" not in assigned


def leave_to_child(target: str) -> None:
    """Run the same command in a process of its own where the target is a script, and leave with its exit code.

    Raises:
        typer.Exit: where it is.
    """
    if in_child or Path(target).suffix != ".py":
        return
    if is_script(target):
        raise typer.Exit(subprocess.call([sys.executable, "-m", "theta0.cli.child", *sys.argv[1:]]))


def outcomes(
    target: str,
    arguments: Sequence[str] | None,
    budget: float | None,
    verb: Callable[["Target"], Outcome],
    as_json: bool,
    *,
    trains: bool = False,
) -> int:
    """Run a verb on a target, once for each optimizer of a script, and show what it found.

    Args:
        target: a target file or a script.
        arguments: the script's.
        budget: of the script, in seconds.
        verb: makes the outcome for one target.
        as_json: whether to print JSON.
        trains: whether it takes as many batches as short training runs with held-out ones need.

    Returns:
        The exit code, the worst of several.
    """
    from theta0.targets import load_target

    if not is_script(target):
        if arguments:
            raise ValueError(f"{target}: expected arguments after -- only with a script, got {' '.join(arguments)}")
        return _shown([_run(lambda name: verb(load_target(name)), target)], as_json)
    from theta0.captures.script import BATCHES, TRAINED_ON, run_script

    def judged(captured: "Captured") -> int:
        return _shown([_run(verb, one) for one in _targets(target, captured)], as_json)

    results = sys.stdout

    def insist(captured: "Captured") -> None:
        with redirect_stdout(results):
            code = judged(captured)
        results.flush()
        os._exit(code)  # the script catches everything: nothing else ends it

    wanted = TRAINED_ON if trains else BATCHES
    with redirect_stdout(sys.stderr):
        captured = run_script(
            Path(target), arguments or (), batches=wanted, budget=budget, insist=insist, keep_main=True
        )
    return judged(captured)


def _run(verb: Callable[[T], Outcome], target: T) -> Outcome:
    """Run a verb; what the user's code prints goes to standard error."""
    with redirect_stdout(sys.stderr):
        return verb(target)


def _targets(name: str, captured: "Captured") -> list["Target"]:
    """What was captured, as targets; and a line on standard error for each."""
    from theta0.targets import Target

    found = []
    if captured.error is not None:
        typer.echo(f"{name}: raised {type(captured.error).__name__} after {captured.seen}", err=True)
    for number, step in enumerate(captured.steps, 1):
        kind = "no optimizer" if step.optimizer is None else type(step.optimizer).__name__
        title = f"{name}, optimizer {number} ({kind})" if len(captured.steps) > 1 else name
        typer.echo(f"{title}: {_summary(step, kind)}", err=True)
        build = partial(copy.deepcopy, step.model)
        given = step.batches, step.loss, step.optimizer, step.learning_rate
        found.append(Target(title, step.model, *given, build, step.step, step.gradient_kept))
    return found


def _summary(step: Any, kind: str) -> str:
    rate = "" if step.learning_rate is None else f" at {step.learning_rate:g}"
    parts = [f"{len(step.batches)} batches, {kind}{rate}"]
    parts.append(f"the first loss and {step.compared} gradients, replayed, equal the script's")
    if step.factor.reason:
        parts.append(f"the factor {step.factor.value:g} ({step.factor.reason}) is taken out of the loss")
    elif step.factor.value != 1.0:
        parts.append(f"the loss keeps the script's factor {step.factor.value:g}")
    return "; ".join(parts)


def _shown(found: Sequence[Outcome], as_json: bool) -> int:
    """Print outcomes: one JSON object, with `optimizers` where there are several, or reports."""
    from rich.console import Console

    if as_json:
        documents = [outcome.document() for outcome in found]
        whole = documents[0] if len(documents) == 1 else {"optimizers": documents}
        typer.echo(json.dumps(whole, indent=1, allow_nan=False))
    else:
        for outcome in found:
            Console().print(outcome.report())
    return max(outcome.code for outcome in found)
