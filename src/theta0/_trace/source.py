"""Which line of whose program a torch function was called from."""

import linecache
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

_OURS = str(Path(__file__).parents[1])
_TRACE = str(Path(__file__).parent)
# What a user's model may be made of; everything else of ours calls the model, and what calls that is no source.
_IN_MODELS = (_TRACE, *(str(Path(_OURS, name)) for name in ("layers", "parametrizations", "papers", "regularizers")))
_TORCH = str(Path(torch.__file__).parent)
_STANDARD = sysconfig.get_paths()["stdlib"]
_INSTALLED = tuple({sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], *site.getsitepackages()})


@dataclass(frozen=True)
class Source:
    """Where a function was called.

    Attributes:
        line: `file.py:42` of the nearest frame outside torch, theta0 and installed packages, relative to the working
            directory; the innermost frame where every one is installed; never an absolute path.
        code: the text of that line.
        inner: the innermost frame outside torch and theta0, as `package/file.py:42`, where that is another one.
    """

    line: str
    code: str
    inner: str = ""

    def __str__(self) -> str:
        shown = f"{self.line}: {self.code}" if self.code else self.line
        return f"{shown} (in {self.inner})" if self.inner else shown


# The line of a script whose operation is being replayed.
_REPLAYED: ContextVar[Source | None] = ContextVar("replayed", default=None)


def source_of_error(error: BaseException) -> Source | None:
    """The line of the user's program in which an error arose; None where torch or theta0 raised it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return _source(frames[::-1], None)


def source_of_call() -> Source | None:
    """The source of the torch function that is being interpreted; None where only torch and theta0 are on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "__torch_function__":  # a handler may be the user's
        frame = frame.f_back
    return _source(_stack(frame), _REPLAYED.get())


def source_of_caller() -> Source | None:
    """The source of what called into theta0 through a function of torch that theta0 has wrapped."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH)):
        frame = frame.f_back
    return _source(_stack(frame), None)


@contextmanager
def replaying(source: Source | None) -> Iterator[None]:
    """Within the block, what is called from no line of the user's has this one."""
    token = _REPLAYED.set(source)
    try:
        yield
    finally:
        _REPLAYED.reset(token)


def _stack(frame: FrameType | None) -> list[FrameType]:
    """A frame and those that called it, the innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _source(frames: list[FrameType], replayed: Source | None) -> Source | None:
    """The source among frames, the innermost first."""
    inner = _outside(frames, (_OURS, _TORCH, _STANDARD))
    if inner is None:
        return replayed
    user = _outside(frames, (_OURS, _TORCH, _STANDARD, *_INSTALLED))
    if user is None and replayed is not None:
        return Source(replayed.line, replayed.code, _shown(inner))
    user = user or inner
    code = linecache.getline(user.f_code.co_filename, user.f_lineno).strip()
    return Source(_shown(user), code, "" if user is inner else _shown(inner))


def _outside(frames: Iterable[FrameType], folders: tuple[str, ...]) -> FrameType | None:
    """The nearest frame whose file lies in none of the folders; installed packages lie inside the standard library.

    The search ends where theta0 called the model or the loss: what lies beyond asked for the look.
    """
    for frame in frames:
        name = frame.f_code.co_filename
        if name.startswith(_OURS) and not name.startswith(_IN_MODELS):
            return None
        packaged = any(name.startswith(folder) for folder in _INSTALLED)
        hidden = any(name.startswith(f) and not (f == _STANDARD and packaged) for f in folders)
        if not hidden and not name.startswith("<"):
            return frame
    return None


def _shown(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    folders = [Path(folder) for folder in _INSTALLED] + [Path.cwd()]
    inside = [path.relative_to(folder) for folder in folders if path.is_relative_to(folder)]
    shown = min(inside, key=lambda p: len(p.parts)) if inside else Path(path.name)
    return f"{shown.as_posix()}:{frame.f_lineno}"
