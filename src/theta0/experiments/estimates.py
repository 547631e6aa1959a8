"""What short runs take beside the model, as far as it is known before they begin: memory, temporary files and time."""

import math
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from theta0._progress import Announcement, Progress
from theta0._state import preserve_randomness
from theta0._state.tensor_files import belongs_in_a_file
from theta0.experiments.optimizers import OptimizerKind

SAID = 2**30  # bytes: below, nothing is announced
LONG = 60.0  # seconds of work that has no limit: below, nothing is announced
VECTORS = 16  # as long as all trained parameters, that a curvature holds at once: 6 of linear layers, 16 of GPT-2 small
_TRIED = 64  # rows and columns of the matrix on which an optimizer's state is measured
_SUMS = 4  # bytes of a number in sums of gradients and in vectors of a curvature


@dataclass(frozen=True)
class Estimate:
    """Bytes that work holds at once beside the model, its data and what one pass keeps for its backward pass.

    Attributes:
        memory: on the devices of the parameters.
        files: in the folder for temporary files.
    """

    memory: int
    files: int


def estimated(
    model: nn.Module, *, snapshots: int = 1, state: float | None = None, waiting: int = 0, vectors: int = 0
) -> Estimate:
    """How much work holds, from the sizes of the parameters alone; parameters on the meta device count as on a CPU.

    With S bytes of parameters and buffers, G of those parameters that are trained, and n trained numbers, work keeps
    `snapshots`·S + `waiting`·`state`·G. It holds beside them the most of: the sum of the batches' gradients (4n);
    where steps are made, their gradients and state (G + `state`·G); and `vectors` of a curvature (4n each). What is
    kept, and on a CPU the sum of the gradients, is in files where it is large (`tensor_files.belongs_in_a_file`).
    Temporaries of an optimizer's step are not counted, nor activations.

    Args:
        model: the network.
        snapshots: copies of it.
        state: what the optimizer keeps of each parameter, in sizes of the parameter (`state_share`); None where no step
            is made.
        waiting: runs that are paused and keep that state.
        vectors: of a curvature, each as long as all trained parameters.

    Returns:
        The estimate.

    Example:
        >>> model = torch.nn.Linear(9, 10, device="meta")  # 100 parameters of 4 bytes
        >>> estimated(model, snapshots=2, state=2.0)
        Estimate(memory=2000, files=0)
    """
    parameters = [p for p in model.parameters() if not is_lazy(p)]
    trained = [p for p in parameters if p.requires_grad]
    whole = _size(chain(parameters, (b for b in model.buffers() if not is_lazy(b))))
    gradients, vector = _size(trained), _SUMS * sum(p.numel() for p in trained)
    on_cpu = all(p.device.type in ("cpu", "meta") for p in trained)
    summed = 0 if on_cpu and belongs_in_a_file(vector) else vector
    held = max(summed, 0.0 if state is None else gradients * (1 + state), vectors * vector)
    files = float(vector - summed)
    for each, count in ((whole, snapshots), ((state or 0.0) * gradients, waiting)):
        if belongs_in_a_file(int(each)):
            files += each * count
        else:
            held += each * count
    return Estimate(round(held), round(files))


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def state_share(kind: OptimizerKind) -> float:
    """What an optimizer keeps of each parameter, in sizes of the parameter: by a step on a small matrix.

    Two for Adam, one for momentum, none for plain gradient descent, a few percent for what factors its moments. Where
    it cannot step such a matrix, two for an adaptive one, else one.

    Example:
        >>> from theta0.experiments import optimizer_kind
        >>> model = torch.nn.Linear(4, 2)
        >>> [state_share(optimizer_kind(name, model)) for name in ("sgd", "momentum", "adam")]
        [0.0, 1.0, 2.0]
    """
    matrix = nn.Parameter(torch.zeros(_TRIED, _TRIED))
    matrix.grad = torch.ones_like(matrix)
    try:
        with preserve_randomness():
            optimizer = kind.make([matrix], 1e-3)
            type(optimizer).step(optimizer)  # the class's: one that accumulates steps later
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):  # of a user's own class
        return 2.0 if kind.adaptive else 1.0
    leaves = [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, Tensor)]
    return round(_size(leaves) / _size([matrix]), 2)


def announce_memory(
    tell: Progress,
    model: nn.Module,
    *,
    snapshots: int = 1,
    kind: OptimizerKind | None = None,
    waiting: int = 0,
    vectors: int = 0,
    instead: str = "a copy of the model with fewer layers takes less",
) -> None:
    """Say what work will hold, before it is begun, where that is much or more than is free.

    Args:
        tell: to whom.
        model: the network.
        snapshots: as for `estimated`.
        kind: the optimizer of the runs; None where there are none.
        waiting: as for `estimated`.
        vectors: as for `estimated`.
        instead: what to do where it is too much.
    """
    parameters = [p for p in model.parameters() if not is_lazy(p)]
    copies = snapshots + 3 * (waiting + 1) + vectors
    if _size(parameters) * copies < SAID:
        return  # whatever the optimizer keeps, to three copies
    state = None if kind is None else state_share(kind)
    found = estimated(model, snapshots=snapshots, state=state, waiting=waiting, vectors=vectors)
    free, room = free_memory(parameters[0].device), shutil.disk_usage(tempfile.gettempdir()).free
    if found.memory + found.files < SAID:
        return
    lacking = [f"{_bytes(free)} of memory"] * (found.memory > free) + [f"{_bytes(room)} for files"] * (
        found.files > room
    )
    files = f" and {_bytes(found.files)} of temporary files" if found.files else ""
    text = f"Beside the model this takes up to about {_bytes(found.memory)} of memory{files}"
    if lacking:
        text += f"; only {' and '.join(lacking)} are free: {instead}"
    tell(Announcement(f"{text}."), math.nan)


def announce_time(tell: Progress, gradients: float, pace: float, left: float = math.inf) -> None:
    """Say how long work may take, before it is begun, where that is more than is left, or long.

    Args:
        tell: to whom.
        gradients: that it takes at most.
        pace: seconds that one takes.
        left: seconds that are left for it; infinite where there is no limit.
    """
    most = gradients * pace
    if not most > min(left, LONG):
        return
    text = f"Up to {gradients:.0f} gradients of {pace:.2g} seconds may take {_duration(most)}"
    if most > left:
        text += f"; {_duration(max(left, 0.0))} are left: what does not fit is left out"
    elif left < math.inf:
        return
    tell(Announcement(f"{text}."), math.nan)


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


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 2 * LONG else f"{seconds / 60:.0f} minutes"
