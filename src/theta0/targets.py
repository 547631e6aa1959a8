"""A target file: the user's model, batches and loss, and how they train it."""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from theta0._errors import shown
from theta0._losses import Loss, checked
from theta0._models import Step
from theta0._training import checked_positive
from theta0.experiments.optimizers import Optimizer, optimizer_kind
from theta0.measurements.observed_training import NOTHING_OBSERVED, ObservedTraining


@dataclass(frozen=True)
class Target:
    """What a target file defines.

    `learning_rate` is the optimizer's; `build` is the file's `model()`, which builds another one; `step` is given
    instead of a loss; gradients are clipped to `clip_norm`; `observed` is what is known of scripts only, and
    `number` is the optimizer's among several of one script.
    """

    name: str
    model: nn.Module
    batches: Any
    loss: Loss
    optimizer: Optimizer | None
    learning_rate: float | None
    build: Callable[[], nn.Module]
    step: Step | None = None
    observed: ObservedTraining = NOTHING_OBSERVED
    clip_norm: float | None = None
    number: int = 1

    @property
    def training(self) -> dict[str, Any]:
        """How it is trained, as keywords of every verb."""
        return {
            "step": self.step,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "clip_norm": self.clip_norm,
        }


def load_target(name: str) -> Target:
    """Run a target file (`module:` for an importable module) and build what it defines."""
    module = _imported(name[:-1]) if name.endswith(":") and name != ":" else _run_file(Path(name))
    model = _called(module, name, "model")
    if not isinstance(model, nn.Module):
        came = shown(model) if isinstance(model, type) else type(model).__name__
        raise ValueError(f"{name}: expected model() to return a torch.nn.Module, got {came}; return the model itself")
    batches = _called(module, name, "batches")
    optimizer, rate, step = (getattr(module, key, None) for key in ("optimizer", "learning_rate", "step"))
    if hasattr(module, "make_optimizer"):
        optimizer = _guarded(f"{name}: make_optimizer(model)", lambda: module.make_optimizer(model))
    try:
        loss = checked(getattr(module, "loss", None), step)
        optimizer_kind(optimizer, model)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    rate = checked_positive(rate, f"{name}: learning_rate")
    clip = checked_positive(getattr(module, "clip_norm", None), f"{name}: clip_norm")
    return Target(name, model, batches, loss, optimizer, rate, module.model, step, clip_norm=clip)


def _called(module: ModuleType, name: str, function: str) -> Any:
    found = getattr(module, function, None)
    if isinstance(found, nn.Module) or not callable(found):
        came = "nothing of that name" if found is None else f"a {type(found).__name__}"
        raise ValueError(f"{name}: expected a function {function}(), got {came}; write def {function}(): return ...")
    return _guarded(f"{name}: {function}()", found)


def _run_file(path: Path) -> ModuleType:
    wanted = "expected a training script, or a Python file that defines model(), batches() and loss"
    if path.is_dir():
        raise ValueError(f"{path}: {wanted}, got a folder; name the file in it")
    if not path.is_file():
        raise ValueError(f"{path}: {wanted}, found no such file")
    if path.suffix == ".ipynb":
        raise ValueError(
            f"{path}: {wanted}, got a notebook; in it, put the loop in `with theta0.capture_steps() as captured:` and "
            "call theta0.diagnose(**captured.arguments)"
        )
    if path.suffix != ".py":
        raise ValueError(f"{path}: {wanted}, got {path.suffix or 'a name without .py'}; name the code that trains")
    spec = importlib.util.spec_from_file_location(f"theta0_target_{path.stem}", path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[module.__name__] = module  # dataclasses and pickling in the file look it up
    sys.path.insert(0, str(path.resolve().parent))  # the file's own neighbours
    try:
        _guarded(str(path), lambda: loader.exec_module(module))
    finally:
        sys.path.pop(0)
    return module


def _imported(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: ModuleType = _guarded(name, lambda: importlib.import_module(name))
    finally:
        sys.path.pop(0)
    return found


def _guarded(where: str, function: Callable[[], Any]) -> Any:
    """The user's code may raise anything; say what, and on which line of theirs."""
    try:
        return function()
    except SyntaxError as error:
        line = "" if error.lineno is None else f" on line {error.lineno}"
        raise ValueError(f"{where}: syntax error{line}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [
            frame
            for frame in frames
            if "theta0" not in Path(frame.filename).parts and "importlib" not in frame.filename
        ]
        line = f" (line {theirs[-1].lineno} of {Path(theirs[-1].filename).name})" if theirs else ""
        raise ValueError(f"{where} raised {type(error).__name__}: {error}{line}") from error
