"""Which line of whose program a torch function was called from."""

import linecache
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

_OURS = str(Path(__file__).parents[1])
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


def source_of_call() -> Source | None:
    """The source of the torch function that is being interpreted; None where only torch and theta0 are on the stack."""
    inner = _outside(sys._getframe(1), (_OURS, _TORCH, _STANDARD))
    if inner is None:
        return None
    user = _outside(inner, (_OURS, _TORCH, _STANDARD, *_INSTALLED)) or inner
    code = linecache.getline(user.f_code.co_filename, user.f_lineno).strip()
    return Source(_shown(user), code, "" if user is inner else _shown(inner))


def _outside(frame: FrameType | None, folders: tuple[str, ...]) -> FrameType | None:
    """The nearest frame whose file lies in none of the folders; installed packages lie inside the standard library."""
    while frame is not None:
        name = frame.f_code.co_filename
        packaged = any(name.startswith(folder) for folder in _INSTALLED)
        hidden = any(name.startswith(f) and not (f == _STANDARD and packaged) for f in folders)
        if not hidden and not name.startswith("<"):
            return frame
        frame = frame.f_back
    return None


def _shown(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    folders = [Path(folder) for folder in _INSTALLED] + [Path.cwd()]
    inside = [path.relative_to(folder) for folder in folders if path.is_relative_to(folder)]
    shown = min(inside, key=lambda p: len(p.parts)) if inside else Path(path.name)
    return f"{shown.as_posix()}:{frame.f_lineno}"
