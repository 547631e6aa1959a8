"""How far a training that keeps its best window has come, and that in a safetensors file."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from theta0._checkpoints import read_tensors, write_tensors

WINDOW = 100  # steps over which the loss is averaged before parameters are kept
_METHOD = "mmd progress"
_COUNTERS = ("settings", "start", "step", "kept", "open", "total", "losses")


@dataclass(eq=False)
class Progress:  # the one thing that changes while the loop runs
    """Where a run stands.

    Attributes:
        best: the tensors kept so far, in the order of the trained ones.
        settings: what decides its steps, by name.
        start: a mark of the model that it was given.
        step: steps made.
        best_loss: the mean loss of the window that ended there.
        kept: the step at which it ended.
        open: how many steps the window under way has.
        total: the sum of their losses.
        losses: the mean losses of the windows so far.
    """

    best: list[Tensor]
    settings: dict[str, int | float] = field(default_factory=dict)
    start: str = ""
    step: int = 0
    best_loss: float = math.inf
    kept: int = 0
    open: int = 0
    total: float = 0.0
    losses: list[float] = field(default_factory=list)

    def add(self, loss: float) -> None:
        """Count a step."""
        self.step, self.open, self.total = self.step + 1, self.open + 1, self.total + loss


def long_enough(count: int, steps: int) -> bool:
    """Whether the steps after the last whole window count as one: more than half a window, or of a shorter run."""
    return 2 * count > min(WINDOW, steps)


def close_window(state: Progress, trained: Sequence[Tensor]) -> None:
    """Keep the parameters if the mean loss of the window under way is the lowest, and begin a new one."""
    mean = state.total / state.open
    if mean < state.best_loss:
        state.best, state.best_loss, state.kept = [p.detach().clone() for p in trained], mean, state.step
    state.losses.append(mean)
    state.total, state.open = 0.0, 0


def write_progress(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, state: Progress) -> None:
    """Write current and best parameters, Adam's moments and the counters; the file is replaced as a whole."""
    if path is None:
        return
    tensors: dict[str, Tensor] = {}
    for (name, parameter), best in zip(_trained(model), state.best, strict=True):
        moments = optimizer.state[parameter]
        tensors |= {
            f"current.{name}": parameter.detach(),
            f"best.{name}": best,
            **{f"{key}.{name}": moments[key] for key in ("step", "exp_avg", "exp_avg_sq") if key in moments},
        }
    counters = {key: getattr(state, key) for key in _COUNTERS}
    partial = path.with_name(path.name + ".part")
    write_tensors(partial, tensors, {"method": _METHOD, "progress": json.dumps(counters)})
    partial.replace(path)


def read_progress(
    path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict[str, int | float]
) -> Progress:
    """Go on from a file, if there is one: the model and Adam get what it holds; else begin.

    Raises:
        ValueError: if the file is no such state, or that of another model, start or setting.
    """
    trained = _trained(model)
    start = "" if path is None else _mark(model)
    if path is None or not path.exists():
        return Progress([p.detach().clone() for _, p in trained], settings, start)
    tensors, metadata = read_tensors(path)
    names = {key.removeprefix("current.") for key in tensors if key.startswith("current.")}
    fitting = all(tensors[f"current.{name}"].shape == p.shape for name, p in trained if name in names)
    if metadata.get("method") != _METHOD or names != {name for name, _ in trained} or not fitting:
        raise ValueError(
            f"{path}: expected the progress of mmd_ on this model, got a file of method "
            f"{metadata.get('method', 'unknown')!r} or of other parameters; name another checkpoint file"
        )
    counters = json.loads(metadata["progress"])
    _require_the_same(path, counters, settings, start)
    with torch.no_grad():
        for name, parameter in trained:
            parameter.copy_(tensors[f"current.{name}"])
            found = {k: tensors[f"{k}.{name}"] for k in ("step", "exp_avg", "exp_avg_sq") if f"{k}.{name}" in tensors}
            if found:
                optimizer.state[parameter] = {k: v if k == "step" else v.to(parameter) for k, v in found.items()}
    best = [tensors[f"best.{name}"].to(parameter) for name, parameter in trained]
    return Progress(best=best, best_loss=min(counters["losses"], default=math.inf), **counters)


def _require_the_same(path: Path, counters: dict[str, Any], settings: dict[str, int | float], start: str) -> None:
    remedy = "pass the same to go on, or name another checkpoint file to start over"
    if "settings" not in counters:
        raise ValueError(
            f"{path}: expected progress with its settings and its start, got a file of an older version without "
            "them; name another checkpoint file to start over"
        )
    for name, asked in settings.items():
        if counters["settings"].get(name) != asked:
            drawn = " (the seed drawn from it)" if name == "generator" else ""
            raise ValueError(
                f"{name}: expected {counters['settings'].get(name)}{drawn}, as in the run whose progress is in {path}, "
                f"got {asked}; {remedy}"
            )
    if counters["start"] != start:
        raise ValueError(
            f"model: expected the start of the run whose progress is in {path} (mark {counters['start']}), got other "
            f"values (mark {start}), such as another draw or what an interrupted run left; {remedy}"
        )


def _mark(model: nn.Module) -> str:
    """A digest of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
