"""How far long work is, as a bar with percent and remaining time or as plain lines; and when it must have ended."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from theta0._errors import TimeEndedError

SHOWN_AFTER = 2.0  # seconds
ENDED = "the time given ended"
Progress = Callable[[str, float], None]  # what is being done, and the share of the whole that is done; NaN if unknown
_end = ContextVar("when, by time.monotonic, the work must have ended", default=math.inf)


class Announcement(str):  # a class, because what shows progress has to tell it from what is being done
    """What is to be read before the work goes on: a line that stays."""


def speaks() -> bool:
    """Whether this process prints: rank 0 of a process group, or of what `torchrun` has started; or the only one."""
    distributed = sys.modules.get("torch.distributed")  # this module does not wait for torch
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return os.environ.get("RANK", "0") == "0"


def silent(text: str, share: float = math.nan) -> None:
    """Show nothing."""


@contextmanager
def shown(progress: bool | Progress | None, title: str) -> Iterator[Progress]:
    """How far the work in the block is, as the caller of a verb wants it.

    Args:
        progress: True for a bar on standard error (a line for each change of what is done, where that is no terminal);
            a function that is called instead; False or None for nothing.
        title: what is shown before anything is reported.

    Yields:
        A function of what is being done and of the share that is done.
    """
    if callable(progress):
        yield progress
    elif not progress or not speaks():
        yield silent
    else:
        with _bar(title) as tell:
            yield tell


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal and not console.is_jupyter:
        yield _lines(title)
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Bar(*columns, console=console, transient=True) as bar:
        began, task = time.monotonic(), bar.add_task(title, total=None, visible=False)

        def tell(text: str, share: float = math.nan) -> None:
            if isinstance(text, Announcement):
                bar.console.print(text, markup=False, highlight=False)
                return
            bar.update(task, visible=time.monotonic() - began > SHOWN_AFTER)
            if math.isnan(share):
                bar.update(task, description=text)
            else:
                bar.update(task, description=text, total=1.0, completed=min(1.0, share))

        yield tell


def _lines(title: str) -> Progress:
    """Lines that say what is being done, each once, from when the work has taken two seconds."""
    began, last, waiting = time.monotonic(), [title], list[str]()

    def tell(text: str, share: float = math.nan) -> None:
        if isinstance(text, Announcement):
            print(text, file=sys.stderr, flush=True)
            return
        if text != last[0]:
            done = "" if math.isnan(share) else f" ({min(1.0, share):.0%} done)"
            waiting.append(f"{text}{done}")
        last[0] = text
        if waiting and time.monotonic() - began > SHOWN_AFTER:
            print("\n".join(waiting), file=sys.stderr, flush=True)
            waiting.clear()

    return tell


def countdown(seconds: float | None) -> Callable[[], float]:
    """What is left of a time that begins now; infinite where there is no limit."""
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    return lambda: end - time.monotonic()


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Within the block steps of searches, short runs and products of a curvature are made for so long; None: for ever.

    Of two blocks in each other the one that ends first counts.
    """
    token = _end.set(min(_end.get(), time.monotonic() + (math.inf if seconds is None else seconds)))
    try:
        yield
    finally:
        _end.reset(token)


def time_ended() -> bool:
    """Whether the time is over, on every rank when it is on the first; asked where all ranks come."""
    if _end.get() == math.inf:
        return False
    from theta0._ranks import from_first  # only now: this module does not wait for torch

    return from_first(time.monotonic() > _end.get())


def require_time() -> None:
    """Go on only where there is time for it.

    Raises:
        TimeEndedError: if there is not; what works on a model then puts it back, as after any failure.
    """
    if time_ended():
        raise TimeEndedError(ENDED)
