"""How far a label-free initialization has come, in a safetensors file."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from theta0._checkpoints import read_tensors, write_tensors

_METHOD = "mmd progress"
_COUNTERS = ("seed", "step", "kept", "open", "total", "losses")


@dataclass(eq=False)
class Progress:  # the one thing that changes while the loop runs
    """Where a run stands.

    Attributes:
        seed: of all its draws.
        step: steps made.
        best: the parameters kept so far, in the order of the trained ones.
        best_loss: the mean loss of the window that ended there.
        kept: the step at which it ended.
        open: how many steps the window under way has.
        total: the sum of their losses.
        losses: the mean losses of the windows so far.
    """

    seed: int
    best: list[Tensor]
    step: int = 0
    best_loss: float = math.inf
    kept: int = 0
    open: int = 0
    total: float = 0.0
    losses: list[float] = field(default_factory=list)


def write_progress(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, state: Progress) -> None:
    """Write the current and the best parameters, the optimizer's moments and the counters.

    Args:
        path: the file, replaced as a whole; None writes nothing.
        model: holds the current parameters.
        optimizer: an Adam over the trained ones.
        state: the rest.
    """
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


def read_progress(path: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Progress:
    """Go on from a file, if there is one.

    Args:
        path: the file, or None.
        model: gets the parameters of the file.
        optimizer: gets its moments.
        seed: of a new run.

    Returns:
        The state in the file; a fresh one if there is none.

    Raises:
        ValueError: if the file is no such state, or that of another model.
    """
    trained = _trained(model)
    if path is None or not path.exists():
        return Progress(seed, [p.detach().clone() for _, p in trained])
    tensors, metadata = read_tensors(path)
    names = {key.removeprefix("current.") for key in tensors if key.startswith("current.")}
    fitting = all(tensors[f"current.{name}"].shape == p.shape for name, p in trained if name in names)
    if metadata.get("method") != _METHOD or names != {name for name, _ in trained} or not fitting:
        raise ValueError(
            f"{path}: expected the progress of mmd_ on this model, got a file of method "
            f"{metadata.get('method', 'unknown')!r} or of other parameters; name another checkpoint file"
        )
    with torch.no_grad():
        for name, parameter in trained:
            parameter.copy_(tensors[f"current.{name}"])
            found = {k: tensors[f"{k}.{name}"] for k in ("step", "exp_avg", "exp_avg_sq") if f"{k}.{name}" in tensors}
            if found:
                optimizer.state[parameter] = {k: v if k == "step" else v.to(parameter) for k, v in found.items()}
    counters = json.loads(metadata["progress"])
    best = [tensors[f"best.{name}"].to(parameter) for name, parameter in trained]
    return Progress(best=best, best_loss=min(counters["losses"], default=math.inf), **counters)


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
