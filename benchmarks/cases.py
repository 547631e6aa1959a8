"""Verdicts on starting points whose cause is known: a folder of target files and a JSON of what each should be told.

The JSON maps a file's stem to `{"first_finding_any_of": [codes], "control": bool}`; a control is clean where nothing
is an error or a warning. `fixed()` in a target file is the known remedy; `FIXED` may hold its `LR` and its `batch`.
Every file runs in a process of its own, one thread. Memory is the peak above what stands before (libraries are warm),
weights and data counted in, over that of two training steps with the target's own optimizer.

    python benchmarks/cases.py --cases DIR [--expected FILE] [--out FILE.json] [--only 09,10]
"""

import argparse
import ctypes
import gc
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

LEAST_MEMORY = 4096  # kilobytes: below, the allocator's pages decide
MOST_GRADIENTS, MOST_SECONDS, MOST_MEMORY = 120, 30, 4  # with the probe


def resident(field="VmRSS"):
    """Kilobytes that the process holds now, or held at most since `forget_peak`; NaN where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((float(line.split()[1]) for line in lines if line.startswith(field)), float("nan"))


def forget_peak():
    gc.collect()
    if platform.system() == "Linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")


def peak_of(function):
    forget_peak()
    before = resident()
    result = function()
    return result, resident("VmHWM") - before


def kilobytes(*trees):
    from torch.utils._pytree import tree_leaves

    return sum(t.numel() * t.element_size() for t in tree_leaves(trees) if isinstance(t, torch.Tensor)) / 1024


def said(findings):
    return [{"code": f.code, "severity": f.severity, "layer": f.layer, "value": f.value} for f in findings]


def fixed_start(module, target):
    """The remedy's model, batches, loss, optimizer and rate; None where the file has no `fixed()`."""
    if not hasattr(module, "fixed"):
        return None
    changed = getattr(module, "FIXED", {})
    batch = changed.get("batch")
    batches = target.batches if batch is None else [batch(i) for i in range(len(list(target.batches)))]
    loss, optimizer = changed.get("LOSS", target.loss), changed.get("OPTIMIZER", target.optimizer)
    return module.fixed(), batches, loss, optimizer, changed.get("LR", target.learning_rate)


def child(path):
    """Diagnose one target; its result as a dictionary."""
    from theta0 import diagnose
    from theta0._batches import load_batches
    from theta0._state import preserve_state
    from theta0._training import steps_from
    from theta0.targets import load_target

    torch.set_num_threads(1)
    warm = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    diagnose(warm, [(torch.ones(4, 2), torch.arange(4) % 2)], "cross_entropy", optimizer="adam", learning_rate=1e-3)
    target = load_target(path)
    data = load_batches(target.batches, target.model)
    options = {"optimizer": target.optimizer or "sgd", "rate": target.learning_rate or 0.01, "steps": 2}
    with preserve_state(target.model):
        steps_from(target.model, data[:1], target.loss, **options)  # kernels are built at their first use
    standing = kilobytes(list(target.model.parameters()), [(b.inputs, b.targets) for b in data])
    start = time.perf_counter()
    found, diagnosed = peak_of(
        lambda: diagnose(
            target.model, target.batches, target.loss, optimizer=target.optimizer, learning_rate=target.learning_rate
        )
    )
    row = {"seconds": time.perf_counter() - start, "gradients": found.cost, "findings": said(found.findings)}
    row["messages"] = [f.message for f in found.findings]
    fixed = fixed_start(sys.modules[f"theta0_target_{Path(path).stem}"], target)
    if fixed is not None:
        model, batches, loss, optimizer, rate = fixed
        row["fixed"] = said(diagnose(model, batches, loss, optimizer=optimizer, learning_rate=rate).findings)
    _, trained = peak_of(lambda: steps_from(target.model, data[:1], target.loss, **options))
    row["memory_ratio"] = (standing + diagnosed) / max(standing + trained, LEAST_MEMORY)
    return row


def judged(row, expected):
    """What counts: first finding right, an expected code at all, a control clean, the fixed start free of errors."""
    severe = [f for f in row.get("findings", ()) if f["severity"] != "note"]
    codes, wanted = [f["code"] for f in row.get("findings", ())], expected["first_finding_any_of"]
    row["expected"], row["control"] = wanted, expected["control"]
    if expected["control"]:
        row["clean"] = "error" not in row and not severe
    else:
        row["first"] = bool(codes) and codes[0] in wanted
        row["any"] = any(code in wanted for code in codes)
    if "fixed" in row:
        row["fixed_errors"] = [f["code"] for f in row["fixed"] if f["severity"] == "error"]
    cheap = row.get("gradients", 0) <= MOST_GRADIENTS and row.get("seconds", 0) <= MOST_SECONDS
    row["cheap"] = cheap and not row.get("memory_ratio", 0) > MOST_MEMORY
    return row


def run(path, expected, limit):
    command = [sys.executable, __file__, "--child", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        lines = done.stdout.strip().splitlines()
        row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr.strip()[-800:]}
    except subprocess.TimeoutExpired:
        row = {"error": f"more than {limit} s"}
    return judged(row, expected)


def line(name, row):
    codes = [
        f["code"] + {"error": "", "warning": " (w)", "note": " (n)"}[f["severity"]] for f in row.get("findings", ())
    ]
    if row["control"]:
        mark = "clean" if row["clean"] else "NOT CLEAN"
    else:
        mark = "first" if row["first"] else "any" if row["any"] else "MISSED"
    numbers = f"{row.get('gradients', 0):5.1f} {row.get('seconds', 0):5.1f}s {row.get('memory_ratio', 0):4.1f}x"
    told = row.get("error", ", ".join(codes[:4]) or "nothing").splitlines()[-1:]
    fixed = "fixed: " + ", ".join(row["fixed_errors"]) if row.get("fixed_errors") else ""
    return f"{name[:34]:34} {mark:9} {numbers}{'' if row['cheap'] else ' DEAR'}  {' '.join(told)}  {fixed}"


def summary(rows):
    ill = [r for r in rows.values() if not r["control"]]
    controls = [r for r in rows.values() if r["control"]]
    fixed = [r for r in ill if "fixed_errors" in r]
    return {
        "first finding right": f"{sum(r['first'] for r in ill)} of {len(ill)}",
        "an expected code": f"{sum(r['any'] for r in ill)} of {len(ill)}",
        "controls clean": f"{sum(r['clean'] for r in controls)} of {len(controls)}",
        "fixed() free of errors": f"{sum(not r['fixed_errors'] for r in fixed)} of {len(fixed)}",
        "fixed() free of warnings too": f"{sum(all(f['severity'] == 'note' for f in r['fixed']) for r in fixed)}",
        "within the cost": f"{sum(r['cheap'] for r in rows.values())} of {len(rows)}",
        "errors": [name for name, r in rows.items() if "error" in r],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--expected", type=Path, help="default: expected.json in the folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help="parts of file names, joined by commas")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child)))
        return
    if arguments.cases is None:
        parser.error("--cases is needed")
    expected = json.loads((arguments.expected or arguments.cases / "expected.json").read_text())
    parts = [part.strip() for part in (arguments.only or "").split(",") if part.strip()]
    names = [name for name in expected if not parts or any(part in name for part in parts)]
    rows = {}
    for name in names:
        rows[name] = run(arguments.cases / f"{name}.py", expected[name], arguments.limit)
        print(line(name, rows[name]), flush=True)
    total = summary(rows)
    for what, value in total.items():
        print(f"{what:30} {value}")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        found = {"summary": total, "cases": rows, "environment": environment}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
