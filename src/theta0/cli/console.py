"""What every command shares: arguments, what goes to which stream, how long work and errors are shown."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import print_exc
from typing import Annotated, Any, NoReturn

import typer

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="A training script as it is, or a Python file (or `module:`) with model(), batches() and loss.",
        metavar="TARGET",
    ),
]
ScriptArguments = Annotated[
    list[str] | None, typer.Argument(help="After --: the script's own arguments.", metavar="[-- ARGUMENTS]")
]
BudgetOption = Annotated[
    float | None, typer.Option(help="Seconds after which a script is stopped at its next training call.", min=0.0)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Also write a self-contained page.", metavar="FILE")]
TracebackOption = Annotated[bool, typer.Option("--traceback", help="On an error, show where in the code it arose.")]


def show(document: Callable[[], dict[str, Any]], report: Callable[[], Any], as_json: bool) -> None:
    """Put a result on standard output: one JSON object, or a report."""
    if as_json:
        typer.echo(json.dumps(document(), indent=1, allow_nan=False))
        return
    from rich.console import Console

    Console().print(report())


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Say on standard error what is being done: a spinner on a terminal, plain lines in a pipe."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr)
        return
    with console.status(first) as status:
        yield status.update


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show on standard error how much is done: a bar on a terminal, plain lines in a pipe."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: print(f"{title}: {done} of {total}", file=sys.stderr)
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(title)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def errors(show: bool, store: Path | None = None) -> Iterator[None]:
    """Turn what is wrong with the user's target into one paragraph and exit code 2, an interrupt into exit code 130."""
    try:
        yield
    except (ValueError, OSError) as error:
        if show:
            print_exc()
        fail(str(error))
    except Exception as error:
        if show:
            print_exc()
        fail(
            f"expected to get through, got {type(error).__name__}: {error}; this is a fault of theta0's: "
            "please report it with what --traceback shows"
        )
    except KeyboardInterrupt:
        kept = store is not None and store.is_file() and store.stat().st_size > 0
        told = f"the runs so far are in {store}: the same command goes on from them" if kept else "nothing was written"
        typer.echo(f"theta0: interrupted; {told}.", err=True)
        raise typer.Exit(130) from None


def require_writable(*paths: Path | None) -> None:
    """Find out before the work, not after it, that a file cannot be written."""
    for path in paths:
        folder = path.parent if path is not None else Path()
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if path is not None and (path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK)):
            what = "a folder" if path.is_dir() else f"{folder} in its way"
            raise ValueError(f"{path}: expected a file that can be written, got {what}; choose another name")


def fail(message: str) -> NoReturn:
    """Leave with a message on standard error and exit code 2."""
    typer.echo(f"theta0: {message}", err=True)
    raise typer.Exit(2)
