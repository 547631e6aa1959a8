"""What short runs take beside the model, as far as it is known before they begin: memory, temporary files and time."""

import math
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from theta0._progress import Announcement, Progress
from theta0._ranks import from_first
from theta0._state import preserve_randomness
from theta0._state.tensor_files import belongs_in_a_file, free_memory
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

    def __str__(self) -> str:
        """Both sizes in words."""
        files = f" and {_bytes(self.files)} of temporary files" if self.files else ""
        return f"about {_bytes(self.memory)} of memory{files}"


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
    found = _held(model, snapshots, kind, waiting, vectors)
    if found is None or found.memory + found.files < SAID:
        return
    free, room = _free(model)
    short = _short((free, found.memory, "of memory"), (room, found.files, "for files"))
    text = f"Beside the model this takes up to {found}{f'; {short}: {instead}' if short else ''}."
    tell(Announcement(text), math.nan)


def lacking(
    model: nn.Module, *, snapshots: int = 0, kind: OptimizerKind | None = None, waiting: int = 0, vectors: int = 0
) -> str:
    """Why a part of the work is left out: by the estimate it takes more memory than is free.

    What does not fit into files is in memory.

    Args:
        model: the network.
        snapshots: as for `estimated`.
        kind: the optimizer of the runs; None where there are none.
        waiting: as for `estimated`.
        vectors: as for `estimated`.

    Returns:
        The end of a sentence, the first rank's on every one; the empty string where it fits.
    """
    found = _held(model, snapshots, kind, waiting, vectors)
    if found is None:
        return ""
    free, room = _free(model)
    needed = found.memory + max(0.0, found.files - room)
    short = "" if needed + min(found.files, room) < SAID else _short((free, needed, "of memory"))
    return from_first(f"up to {found} would be taken, and {short}" if short else "")


def _held(model: nn.Module, snapshots: int, kind: OptimizerKind | None, waiting: int, vectors: int) -> Estimate | None:
    """What work holds; None, on every rank, where the model is so small that it is little."""
    parameters = [p for p in model.parameters() if not is_lazy(p)]
    copies = snapshots + 3 * (waiting + 1) + vectors
    if _size(parameters) * copies < SAID:
        return None  # whatever the optimizer keeps, to three copies
    state = None if kind is None else state_share(kind)
    return estimated(model, snapshots=snapshots, state=state, waiting=waiting, vectors=vectors)


def _free(model: nn.Module) -> tuple[float, float]:
    """Bytes of memory that are free on the parameters' device, and of room for temporary files."""
    device = next(p.device for p in model.parameters() if not is_lazy(p))
    return free_memory(device), float(shutil.disk_usage(tempfile.gettempdir()).free)


def _short(*wanted: tuple[float, float, str]) -> str:
    """Of what is free and what is needed, that it does not suffice; the empty string where all does."""
    parts = [f"{_bytes(free)} {what}" for free, needed, what in wanted if needed > free]
    return f"only {' and '.join(parts)} are free" if parts else ""


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


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 2 * LONG else f"{seconds / 60:.0f} minutes"
