"""What `treat` makes of starting points whose remedy is known: a folder of target files, a process each, one thread.

A file is a target with `batch(i)`, `STEPS`, `fixed()` and perhaps `FIXED`. On those whose start is at fault
(`START_CAUSED`, or all with `--all-caused`) the treated start is trained for STEPS steps on `batch(0)`, `batch(1)` …,
with the target's optimizer at its rate or the treatment's: the mean of the last ten losses is held against that of
`fixed()`, trained likewise, and passes at twice that or less. On the others nothing may be kept, the model must be
bit-identical, and the reason must say whose fault it is; a control
(`ctrl_…`) must stay as it is, or train to a lower loss than as given.

    python benchmarks/treatments.py --cases DIR [--only 09,19] [--steps 100] [--out FILE.json]
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

START_CAUSED = ["01", "02", "06", "07", "09", "14", "17", "18", "19", "20", "24", "26", "37", "40", "41", "44", "47"]
TIMES = 2.0


def final(module, model, *, rate, changed=None):
    """Mean of the last ten training losses after STEPS steps; infinite where it diverged."""
    from theta0._batches import load_batches
    from theta0._training import steps_from

    changed = changed or {}
    batch, steps = changed.get("batch", module.batch), module.STEPS
    data = load_batches([batch(i) for i in range(steps)], model, max_batches=None)
    optimizer, loss = changed.get("OPTIMIZER", module.optimizer), changed.get("LOSS", module.loss)
    rate = changed.get("LR", rate)
    losses = steps_from(model, data, loss, optimizer=optimizer, rate=rate, steps=steps)
    return sum(losses[-10:]) / 10 if len(losses) == steps else math.inf


def bits(model):
    return [(name, tensor.detach().clone()) for name, tensor in model.state_dict().items()]


def same(one, other):
    """Bit for bit, NaN included."""
    return len(one) == len(other) and all(
        a == b and torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))
        for (a, x), (b, y) in zip(
            ((n, t.reshape(-1)) for n, t in one), ((n, t.reshape(-1)) for n, t in other), strict=True
        )
    )


def child(path, steps):
    from theta0 import treat
    from theta0.targets import load_target

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    target = load_target(path)
    module = sys.modules[f"theta0_target_{Path(path).stem}"]
    before, start = bits(target.model), time.perf_counter()
    found = treat(
        target.model,
        target.batches,
        target.loss,
        optimizer=target.optimizer,
        learning_rate=target.learning_rate,
        steps=steps,
        generator=0,
    )
    row = {"seconds": time.perf_counter() - start, "gradients": found.cost, "kept": found.kept, "remedy": found.remedy}
    row |= {"reason": found.reason, "rate": found.rate, "unchanged": same(before, bits(target.model))}
    row["tried"] = [f"{attempt.remedy}: {attempt.reason[:100]}" for attempt in found.attempts]
    row["findings"] = [f.code for f in found.before.findings if f.severity != "note"]
    if found.kept:
        row["reached"] = final(module, target.model, rate=found.rate or target.learning_rate)
    if path.startswith("ctrl") or "/ctrl" in path:
        row["given"] = final(module, load_target(path).model, rate=target.learning_rate)
    row["fixed"] = final(module, module.fixed(), rate=target.learning_rate, changed=getattr(module, "FIXED", {}))
    return row


def judged(row, caused, control):
    row["caused"] = caused
    if caused:
        row["passed"] = row.get("reached", math.inf) <= TIMES * row.get("fixed", -math.inf)
    elif control:
        row["passed"] = row.get("unchanged", False) or row.get("reached", math.inf) <= row.get("given", -math.inf)
    else:
        told = "Not the start's fault" in row.get("reason", "")
        row["passed"] = bool(row.get("unchanged")) and not row.get("kept", True) and told
    return row


def run(path, caused, limit, steps):
    command = [sys.executable, __file__, "--child", str(path), "--steps", str(steps)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        lines = done.stdout.strip().splitlines()
        row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr.strip()[-800:]}
    except subprocess.TimeoutExpired:
        row = {"error": f"more than {limit} s"}
    return judged(row, caused, path.stem.startswith("ctrl"))


def line(name, row):
    mark = "pass" if row["passed"] else "FAIL"
    if "error" in row:
        return f"{name[:32]:32} {mark} {row['error'].splitlines()[-1]}"
    numbers = f"{row.get('reached', math.nan):9.4g} against {row['fixed']:9.4g}" if row["caused"] else " " * 27
    return f"{name[:32]:32} {mark} {numbers} {row['gradients']:6.0f} gradients {row['seconds']:5.0f}s  {row['remedy']}: {row['reason'][:110]}"  # noqa: E501


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--only", help="parts of file names, joined by commas")
    parser.add_argument("--all-caused", action="store_true", help="every file's start is at fault")
    parser.add_argument("--steps", type=int, default=100, help="of the treatment's runs")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for one file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child, arguments.steps)))
        return
    if arguments.cases is None:
        parser.error("--cases is needed")
    parts = [part.strip() for part in (arguments.only or "").split(",") if part.strip()]
    paths = sorted(path for path in arguments.cases.glob("*.py") if not parts or any(p in path.stem for p in parts))
    rows = {}
    for path in paths:
        caused = arguments.all_caused or any(path.stem.startswith(f"case_{n}_") for n in START_CAUSED)
        rows[path.stem] = run(path, caused, arguments.limit, arguments.steps)
        print(line(path.stem, rows[path.stem]), flush=True)
    for caused, what in ((True, "start at fault, within twice the known remedy"), (False, "others told and untouched")):
        group = [row["passed"] for row in rows.values() if row["caused"] == caused]
        print(f"{what}: {sum(group)} of {len(group)}")
    if arguments.out:
        environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        arguments.out.write_text(json.dumps({"cases": rows, "environment": environment}, indent=1) + "\n")


if __name__ == "__main__":
    main()
