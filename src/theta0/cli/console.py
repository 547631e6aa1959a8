"""What every command shares: arguments, what goes to which stream, how long work and errors are shown."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import print_exc
from typing import Annotated, Any, NoReturn

import typer

from theta0._progress import speaks

Tell = Callable[..., None]  # a text, and the share that is done
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Also write a self-contained page.", metavar="FILE")]
JobsOption = Annotated[int | None, typer.Option(help="How many processes; default one, or all of a backend.", min=1)]
BackendOption = Annotated[
    str | None,
    typer.Option(help="joblib's: loky, dask, ray, or a running cluster: dask://HOST:PORT, ray://HOST:PORT."),
]


def say(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print a text, where this process speaks: of several that work together, rank 0."""
    if speaks():
        typer.echo(text, nl=nl, err=err)


def show(report: Any) -> None:
    """Put a report on standard output: text as it is, anything else as rich lays it out."""
    if isinstance(report, str):
        say(report, nl=bool(report))
        return
    if not speaks():
        return
    from rich.console import Console

    Console().print(report)


def beside(path: Path | None, number: int) -> Path | None:
    """Where the file of one of several optimizers goes: `page.html`, then `page-2.html`; rank 0 alone writes."""
    if not speaks():
        return None
    return path if path is None or number < 2 else path.with_stem(f"{path.stem}-{number}")


@contextmanager
def progress(title: str) -> Iterator[Tell]:
    """How far the work is, on standard error: a bar on a terminal, plain lines in a pipe."""
    from theta0._progress import shown

    with shown(True, title) as tell:
        yield tell


@contextmanager
def errors(show: bool, store: Path | None = None) -> Iterator[None]:
    """Turn what is wrong with the user's target into one paragraph and exit code 2, an interrupt into exit code 130."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        if show and speaks():
            print_exc()
        fail(str(error))
    except Exception as error:
        if show and speaks():
            print_exc()
        fail(
            f"unexpected {type(error).__name__}: {error}; this is a bug in theta0: "
            "please report it with the output of --traceback and of diagnose --json"
        )
    except KeyboardInterrupt:
        kept = store is not None and store.is_file() and store.stat().st_size > 0
        left = f"the runs so far are in {store}: the same command goes on from them" if kept else "nothing was written"
        say(f"theta0: interrupted; {left}.", err=True)
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
    say(f"theta0: {message}", err=True)
    raise typer.Exit(2)
