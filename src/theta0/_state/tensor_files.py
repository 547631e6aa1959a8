"""Tensors in a temporary file, for what is too large to be held in memory beside a training step."""

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIMIT = 256 * 2**20  # bytes that are held in memory
_SHARE = 16  # part of the free memory, above which a piece of work's copies, a dozen, do not fit beside its steps
_SMALL = 2**20  # bytes, for which free memory is not asked
_PIECE = 2**22  # numbers that are read or written at once


def belongs_in_a_file(size: int) -> bool:
    """Whether so many bytes are held in a file: above `LIMIT` or a share of free memory, with room for twice as many.

    Raises:
        ValueError: if `THETA0_SNAPSHOT`, which decides otherwise, is not one of its three values.
    """
    where = os.environ.get("THETA0_SNAPSHOT", "auto")
    if where not in ("auto", "memory", "disk"):
        raise ValueError(f"THETA0_SNAPSHOT: expected auto, memory or disk, got {where!r}")
    large = size > LIMIT or (size > _SMALL and size > free_memory(torch.device("cpu")) / _SHARE)
    wanted = where == "disk" or (where == "auto" and large)
    return wanted and shutil.disk_usage(tempfile.gettempdir()).free > 2 * size


def free_memory(device: torch.device) -> float:
    """Bytes of memory that are free on a device: of a CPU's, those of this process's control group too.

    Returns:
        Infinite where the system does not say.
    """
    if device.type == "cuda" and torch.cuda.is_available():
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    if device.type not in ("cpu", "meta"):
        return math.inf
    group = Path("/sys/fs/cgroup")
    most, used = (_text(group / name).strip() for name in ("memory.max", "memory.current"))
    whole = _listed(Path("/proc/meminfo"), "MemAvailable:", 1024)
    if not (most.isdigit() and used.isdigit()):
        return whole
    cached = _listed(group / "memory.stat", "inactive_file", 1)  # given back when it is needed
    return min(whole, float(most) - float(used) + (cached if math.isfinite(cached) else 0.0))


def _listed(path: Path, name: str, unit: int) -> float:
    """A number of a file of names and numbers; infinite where it is not there."""
    rows = (line.split() for line in _text(path).splitlines())
    return next((float(row[1]) * unit for row in rows if row[:1] == [name]), math.inf)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class TensorFile(Mapping[str, Tensor]):  # a class, because it holds an open file
    """Tensors by name, in the folder for temporary files; gone with this object, also where the process is killed.

    They are written and added to in pieces, so that no copy of a whole tensor is made.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="theta0-")  # noqa: SIM115 - closed with this object
        self._places: dict[str, tuple[int, torch.Size, torch.dtype]] = {}
        self._end = 0
        weakref.finalize(self, self._file.close)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Tensor:
        place, shape, dtype = self._places[name]
        return self._read(place, shape, dtype)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write a tensor that is not there yet."""
        self._places[name] = (self._end, tensor.shape, tensor.dtype)
        for piece in _pieces(tensor):
            self._end = self._write(self._end, piece)

    def add(self, name: str, tensor: Tensor, factor: float, dtype: torch.dtype) -> None:
        """Add a multiple of a tensor to one of a type, which is zero where it is not there yet."""
        known = name in self._places
        place = self._places.setdefault(name, (self._end, tensor.shape, dtype))[0]
        for piece in _pieces(tensor):
            value = self._read(place, piece.shape, dtype) if known else torch.zeros(piece.shape, dtype=dtype)
            place = self._write(place, value.add_(piece.to("cpu", dtype), alpha=factor))
        self._end = max(self._end, place)

    def read_into(self, name: str, tensor: Tensor) -> None:
        """Read a tensor into another one, as laid out as the one that was written."""
        place, _, dtype = self._places[name]
        for piece in _pieces(tensor):
            piece.data.copy_(self._read(place, piece.shape, dtype))
            place = self._file.tell()

    def _write(self, place: int, piece: Tensor) -> int:
        self._file.seek(place)
        self._file.write(piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return self._file.tell()

    def _read(self, place: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        value = torch.empty(shape, dtype=dtype)
        self._file.seek(place)
        self._file.readinto(value.view(-1).view(torch.uint8).numpy().data)
        return value


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    whole = tensor.detach()
    return torch.split(whole.view(-1), _PIECE) if whole.is_contiguous() else [whole]


def set_aside(leaves: Iterable[Any]) -> Callable[[], None]:
    """Move the values of tensors to a file where they are large together, and free their memory.

    Returns:
        A function that gives the very tensors their values again; until then they are empty.
    """
    tensors = [leaf for leaf in leaves if type(leaf) is Tensor and leaf.layout == torch.strided]
    if not belongs_in_a_file(sum(t.numel() * t.element_size() for t in tensors)):
        return lambda: None
    file, laid_out = TensorFile(), [(t.shape, t.stride()) for t in tensors]
    for number, tensor in enumerate(tensors):
        file.write(str(number), tensor)
        tensor.data = tensor.new_empty(0)

    def bring_back() -> None:
        for number, (tensor, (shape, stride)) in enumerate(zip(tensors, laid_out, strict=True)):
            tensor.data = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
            file.read_into(str(number), tensor)

    return bring_back
