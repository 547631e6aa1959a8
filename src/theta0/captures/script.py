"""Running a training script until enough of its training was seen."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

from theta0._errors import CaptureError
from theta0._ranks import group_kept
from theta0.captures.captured import Captured, captured_steps, put_back
from theta0.captures.later_training import later_training
from theta0.captures.passes import Recording, Stop
from theta0.captures.recording import recorded

BATCHES = 5  # of training: four for a diagnosis, and one
TRAINED_ON = 32  # for verbs that train and hold batches out


def capture(
    script: str | os.PathLike[str],
    argv: Sequence[str] = (),
    *,
    batches: int = BATCHES,
    budget: float | None = None,
    skip: int = 0,
    loop: int = 1,
) -> Captured:
    """Run a training script as it is, in this process, until enough backward passes were seen, and put its model back.

    The script runs as `__main__` with its own `sys.argv` and is stopped from inside its training loop, as by an
    interrupt: what stands in `finally` still runs. Outermost module calls that train, what is done with their outputs
    up to the loss, and the optimizers are noted; the losses and gradients of the first batch are replayed and have to
    equal the script's own bit for bit. `torch.compile` is off meanwhile.

    Args:
        script: a Python file.
        argv: its arguments.
        batches: how many training batches are enough.
        budget: seconds after which it is stopped at the next training call; None for no limit.
        skip: optimizer steps that are passed over first, where a script trains something else before.
        loop: which of the script's training loops, from 1. Another one begins with the first step of an optimizer that
            was made while the loop before ran, as for fine-tuning after pretraining, or for each fold.

    Returns:
        For each optimizer the model before its first step, the batches, the loss or step, and the learning rate.

    Raises:
        CaptureError: if no training was seen, or it cannot be replayed; the message says what was seen.

    Example:
        >>> import pathlib, tempfile
        >>> lines = [
        ...     "import torch",
        ...     "model = torch.nn.Linear(4, 1)",
        ...     "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        ...     "for _ in range(50):",
        ...     "    loss = model(torch.randn(8, 4)).square().mean()",
        ...     "    optimizer.zero_grad(); loss.backward(); optimizer.step()",
        ... ]
        >>> script = pathlib.Path(tempfile.mkdtemp()) / "train.py"
        >>> _ = script.write_text(chr(10).join(lines))
        >>> captured = capture(script)
        >>> len(captured.steps[0].batches), captured.arguments["learning_rate"]
        (5, 0.1)
    """
    path = Path(script)
    if not path.is_file():
        raise CaptureError(f"{path}: expected a Python script, found no such file")
    return run_script(path, argv, batches=batches, budget=budget, insist=None, keep_main=False, skip=skip, loop=loop)


@contextmanager
def capture_steps(
    *, batches: int = BATCHES, budget: float | None = None, skip: int = 0, loop: int = 1
) -> Iterator[Captured]:
    """Watch a training loop that stands in the block; it is left when enough was seen, and the model is put back.

    What stands in the block behind the loop is not run.

    Args:
        batches: how many training batches are enough.
        budget: seconds after which it is left at the next training call; None for no limit.
        skip: optimizer steps that are passed over first.
        loop: which training loop in the block; see `capture`.

    Yields:
        What is captured, filled when the block is left; also where the loop raises, which then goes on.

    Raises:
        CaptureError: if no training was seen, or it cannot be replayed.

    Example:
        >>> import torch, theta0
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with theta0.capture_steps() as captured:
        ...     for _ in range(100):
        ...         loss = model(torch.eye(4)).square().mean()
        ...         loss.backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> captured.steps[0].learning_rate, len(captured.steps[0].batches), captured.steps[0].model is model
        (0.1, 5, True)
    """
    found = Captured()
    with recorded(batches, budget, skip, loop) as recording:
        try:
            yield found
        except Stop:
            pass
        except BaseException as error:
            found.error = error
    _fill(found, recording, "the block")
    if found.error is not None:
        raise found.error


def run_script(
    path: Path,
    argv: Sequence[str],
    *,
    batches: int,
    budget: float | None,
    insist: Callable[[Captured], None] | None,
    keep_main: bool,
    skip: int = 0,
    loop: int = 1,
) -> Captured:
    """As `capture`.

    Args:
        path: the script.
        argv: its arguments.
        batches: how many are enough.
        budget: in seconds.
        insist: given what was captured where the script catches the request to stop; does not return.
        keep_main: whether the script stays `__main__`, as in a process of its own.
        skip: optimizer steps that are passed over first.
        loop: which training loop.

    Returns:
        What was captured.
    """
    found = Captured()
    with recorded(batches, budget, skip, loop) as recording:
        if insist is not None:
            recording.insist = lambda: insist(_fill(found, recording, str(path)))
        try:
            with group_kept() if keep_main else nullcontext():
                _run(path, argv, keep_main)
            found.ended = not recording.stopped
        except Stop as stop:
            later = later_training(path, stop.__traceback__)
            recording.later = "" if later is None else f"{later}; look at it with --loop {loop + 1} (loop={loop + 1})"
        except (Exception, SystemExit) as error:
            found.error = error if not isinstance(error, SystemExit) or error.code else None
    return _fill(found, recording, str(path))


def _run(path: Path, argv: Sequence[str], keep_main: bool) -> None:
    """Run a file as `python FILE ARGUMENTS` would."""
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except SyntaxError as error:
        raise CaptureError(f"{path}: syntax error on line {error.lineno}: {error.msg}") from error
    module = ModuleType("__main__")
    module.__file__ = str(path.absolute())
    before = sys.argv, sys.modules["__main__"], list(sys.path)
    sys.argv, sys.modules["__main__"] = [str(path), *argv], module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        exec(code, module.__dict__)
    finally:
        if not keep_main:
            sys.argv, sys.modules["__main__"], sys.path[:] = before


def _fill(found: Captured, recording: Recording, name: str) -> Captured:
    """Put the model back and make steps of what was recorded.

    Returns:
        What was captured.

    Raises:
        CaptureError: if nothing was, or a replay differs.
    """
    put_back(recording)
    found.seen = _seen(recording)
    if isinstance(found.error, CaptureError):
        raise found.error
    if not recording.passes:
        raise CaptureError(_nothing(found, recording, name)) from found.error
    try:
        found.steps.extend(captured_steps(recording))
    except CaptureError as error:
        raise CaptureError(f"{name}: {error}") from error
    return found


def _seen(recording: Recording) -> str:
    stepped = sum(len(steps.groups) for steps in recording.optimizers.values())
    parts = {
        "calls of modules that train": recording.calls,
        "backward passes": len(recording.passes) + recording.unseen,
        "optimizer steps": stepped,
    }
    return ", ".join(f"{number} {name}" for name, number in parts.items())


def _nothing(found: Captured, recording: Recording, name: str) -> str:
    what = f"{name}: expected a script that trains, or a file that defines model(), batches() and loss; "
    if isinstance(found.error, SystemExit):
        left = f"it left with exit code {found.error.code} before its first backward pass"
        return f"{what}{left}; pass its arguments after --"
    if found.error is not None:
        return f"{what}it raised {_raised(found.error, name)} before its first backward pass; does it run by itself?"
    if recording.rootless:
        return (
            f"{name}: nothing is trained: expected a loss that operations link with the parameters, got one without "
            f"any at {recording.rootless}. The model runs under no_grad, or the loss went through .detach(), .item() "
            "or numpy; requires_grad_(True) on it only silences PyTorch's error. Compute the loss anew from the "
            "model's outputs, with gradients on"
        )
    unseen = " whose path from a module's call was not seen" if recording.unseen else ""
    return f"{what}it ended after {found.seen}{unseen}; does it train under torch, in its own process and thread?"


def _raised(error: BaseException, script: str) -> str:
    """What was raised, and where: in the script itself, else in the code that it calls."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "theta0" not in Path(f.filename).parts]
    frames = [f for f in frames if f.filename == script] or frames
    line = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else ''}{line}"
