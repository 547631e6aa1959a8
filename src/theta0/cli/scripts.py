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
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from theta0.cli.console import Tell, errors, progress, require_writable, say, show
from theta0.cli.options import Given, overridden, seed_all

if TYPE_CHECKING:
    from theta0.captures import Captured
    from theta0.targets import Target

T = TypeVar("T")
chosen: int | None = None  # in the process that runs a script, its place among the targets


@dataclass(frozen=True)
class Outcome:
    """What a verb found for one target.

    Attributes:
        document: makes the JSON object.
        report: makes what is printed, lines of text or what rich shows.
        code: the exit code.
    """

    document: Callable[[], dict[str, Any]]
    report: Callable[[], Any]
    code: int


def is_script(name: str) -> bool:
    """Whether a file is a training script: a Python file that does not define `model()` and `batches`.

    A file that defines one of them, and does not train itself, is a target in which the other is missing. Functions
    that need arguments are a script's own. The file is read, not run, and torch is not imported for it.

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
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not _needs_arguments(node)}
    assigned = {
        t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }
    defined = (functions & {"model", "batches"}) | (assigned & {"batches"})
    return not defined or (len(defined) < 2 and _trains(tree))


def _needs_arguments(function: ast.FunctionDef) -> bool:
    given = function.args
    positional = len(given.posonlyargs) + len(given.args)
    return positional > len(given.defaults) or any(default is None for default in given.kw_defaults)


def _trains(tree: ast.Module) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Attribute) and called.attr in ("backward", "fit") for called in calls)


def on_each(
    given: Given,
    title: str,
    verb: Callable[["Target", Tell], Outcome],
    *,
    trains: bool = False,
    files: Sequence[Path | None] = (),
    store: Path | None = None,
) -> NoReturn:
    """Run a verb on every target, show what it found, and leave with the worst exit code.

    A script runs in a process of its own: it may change whatever a process has.

    Args:
        given: what stands on the command line.
        title: what is being done.
        verb: makes the outcome for one target, and is given a function that shows how far it is.
        trains: whether it takes as many batches as short training runs with held-out ones need.
        files: what will be written, for one target only.
        store: where runs are kept, and found again after an interrupt.

    Raises:
        typer.Exit: with the exit code.
    """
    codes, documents = [], []
    several = len(given.targets) > 1
    for number, target in enumerate(given.targets):
        if chosen is not None and number != chosen:
            continue
        found: list[dict[str, Any]] | None = [] if given.as_json and several and chosen is None else None
        if chosen is None and is_script(target):
            code = _in_a_process(number, found)
        else:
            code = _here(target, given, title, verb, found, trains=trains, files=files, store=store)
        codes.append(code)
        documents.append({"target": target, "exit_code": code, **(found[0] if found else {})})
    if given.as_json and several and chosen is None:
        say(json.dumps({"targets": documents}, indent=1, allow_nan=False))
    raise typer.Exit(max(codes))


def _in_a_process(number: int, found: list[dict[str, Any]] | None) -> int:
    """Run this command on one of its targets in a process of its own; its JSON goes to `found`, if that is a list."""
    command = [sys.executable, "-m", "theta0.cli.child", str(number), *sys.argv[1:]]
    with subprocess.Popen(command, stdout=None if found is None else subprocess.PIPE) as child:
        try:
            printed = child.communicate()[0]
        except KeyboardInterrupt:
            child.communicate()  # it has been interrupted too, and says what it leaves
            raise typer.Exit(130) from None
    if found is not None and printed.strip():
        found.append(json.loads(printed))
    return child.returncode if child.returncode >= 0 else 2


def _here(
    target: str,
    given: Given,
    title: str,
    verb: Callable[["Target", Tell], Outcome],
    found: list[dict[str, Any]] | None,
    *,
    trains: bool,
    files: Sequence[Path | None],
    store: Path | None,
) -> int:
    """Run a verb on one target in this process.

    Returns:
        The exit code.
    """
    try:
        with errors(given.traceback, store), progress(title) as tell:
            require_writable(*files, store)
            if len(given.targets) > 1 and any(file is not None for file in files):
                raise ValueError(
                    f"expected one target where a file is written, got {len(given.targets)}; run them in turn"
                )
            import torch

            torch.set_flush_denormal(True)  # vanished gradients are denormal numbers, ten times slower on a CPU
            code = _outcomes(target, given, lambda one: verb(one, tell), found, trains=trains)
            from theta0._ranks import leave

            leave()
            return code
    except typer.Exit as left:
        return left.exit_code


def _outcomes(
    target: str,
    given: Given,
    verb: Callable[["Target"], Outcome],
    found: list[dict[str, Any]] | None,
    *,
    trains: bool,
) -> int:
    """Run a verb on a target, once for each optimizer of a script, and show what it found.

    Returns:
        The exit code, the worst of several.
    """
    from theta0.targets import load_target

    seed_all(given.seed)
    if not is_script(target):
        if given.arguments:
            got = " ".join(given.arguments)
            raise ValueError(f"{target}: expected arguments after -- only with a script, got {got}")
        with redirect_stdout(sys.stderr):
            loaded = overridden(load_target(target), given, script=False)
        one = _run(verb, loaded)
        return _shown([one], given.as_json, found)
    from theta0.captures.script import BATCHES, TRAINED_ON, run_script

    def judged(captured: "Captured") -> int:
        own = [overridden(one, given, script=True) for one in _targets(target, captured, given.optimizer_index)]
        return _shown([_run(verb, one) for one in own], given.as_json, found)

    results = sys.stdout

    def insist(captured: "Captured") -> None:
        with redirect_stdout(results):
            code = judged(captured)
        results.flush()
        os._exit(code)  # the script catches everything: nothing else ends it

    wanted = given.max_batches or (TRAINED_ON if trains else BATCHES)
    with redirect_stdout(sys.stderr):
        captured = run_script(
            Path(target),
            given.arguments,
            batches=wanted,
            budget=given.budget,
            insist=insist,
            keep_main=True,
            skip=given.skip,
            loop=given.loop,
        )
    return judged(captured)


def _run(verb: Callable[[T], Outcome], target: T) -> Outcome:
    """Run a verb, with the ranks that `torchrun` has started; what the user's code prints goes to standard error."""
    from theta0._ranks import join

    with redirect_stdout(sys.stderr):
        join()
        return verb(target)


def _targets(name: str, captured: "Captured", index: int | None) -> list["Target"]:
    """What was captured, as targets, of one optimizer if its number is given; and a line on standard error for each."""
    from theta0.targets import Target

    found = []
    if index is not None and index > len(captured.steps):
        raise ValueError(f"--optimizer-index: expected at most {len(captured.steps)}, {name} has no more, got {index}")
    if captured.error is not None:
        say(f"{name}: raised {type(captured.error).__name__} after {captured.seen}", err=True)
    for number, step in enumerate(captured.steps, 1):
        kind = "no optimizer" if step.optimizer is None else type(step.optimizer).__name__
        title = f"{name}, optimizer {number} ({kind})" if len(captured.steps) > 1 else name
        say(f"{title}: {_summary(step, kind)}", err=True)
        build = partial(copy.deepcopy, step.model)
        taken = step.batches, step.loss, step.optimizer, step.learning_rate, build
        seen: dict[str, Any] = {"step": step.step, "observed": step.observed, "clip_norm": step.clip_norm}
        found.append(Target(title, step.model, *taken, **seen, number=number))
    if not captured.ended:
        say(f"{name}: stopped after these batches; for a later training loop, use --loop N", err=True)
    return found if index is None else [found[index - 1]]


def _summary(step: Any, kind: str) -> str:
    rate = "" if step.learning_rate is None else f" at {step.learning_rate:g}"
    parts = [f"read {len(step.batches)} batches, {kind}{rate}"]
    parts.append(f"computed again, the first loss and its {step.compared} gradients equal the script's")
    if step.clip_norm is not None:
        parts.append(f"gradients are clipped to a norm of {step.clip_norm:g}")
    if step.factor.reason:
        parts.append(f"the factor {step.factor.value:g} ({step.factor.reason}) is taken out of the loss")
    elif step.factor.value != 1.0:
        parts.append(f"the loss keeps the script's factor {step.factor.value:g}")
    return "; ".join(parts)


def _shown(outcomes: Sequence[Outcome], as_json: bool, found: list[dict[str, Any]] | None) -> int:
    """Print outcomes: one JSON object, with `optimizers` where there are several, or reports; or keep the object."""
    if as_json:
        documents = [outcome.document() for outcome in outcomes]
        whole = documents[0] if len(documents) == 1 else {"optimizers": documents}
        if found is not None:
            found.append(whole)
        else:
            say(json.dumps(whole, indent=1, allow_nan=False))
    else:
        for outcome in outcomes:
            show(outcome.report())
    return max(outcome.code for outcome in outcomes)
