"""What a diagnosis costs: time in gradients of the same model on the same batch, and memory in plain steps.

Each network in a fresh process, one thread, process time, gradient and diagnosis in turn. The ratio is per batch over
four batches, without a learning rate and without the probe; gradients of the probe of zero gradients are taken off, as
counted. Memory is the growth of the resident set's peak over what stands once model and data are made, against that of
one plain step.

    python benchmarks/bench_diagnose.py [--before FILE] [--only resnet,vit] [--out benchmarks/results/diagnose.json]

torchvision and timm are needed; beside a CPU build of torch, torchvision may need a file that declares its operators
first: --before FILE.
"""

import argparse
import ctypes
import gc
import importlib
import json
import platform
import runpy
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

BATCHES, ROUNDS = 4, 5
MODELS = {
    "resnet18": ("torchvision", 224),
    "convnext_atto": ("timm", 96),
    "vit_tiny_patch16_224": ("timm", 224),
    "mixer_s32_224": ("timm", 224),
    "xcit_nano_12_p16_224": ("timm", 224),
    "nf_resnet26": ("timm", 96),
    "cait_xxs24_224": ("timm", 224),
    "poolformer_s12": ("timm", 224),
    "mobilenetv3_small_050": ("timm", 96),
    "efficientnet_lite0": ("timm", 96),
    "regnetx_002": ("timm", 96),
}
LIMITS = {"resnet18": 2.0}
LIMIT, MEMORY_LIMIT = 3.0, 2.5


def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field))


def growth(function):
    """Kilobytes by which the peak of the resident set rises."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    function()
    return resident("VmHWM") - before


def seconds(function):
    start = time.process_time()
    function()
    return time.process_time() - start


def made(name):
    source, side = MODELS[name]
    torch.manual_seed(0)
    if source == "torchvision":
        model = importlib.import_module("torchvision.models").get_model(name, weights=None)
    else:
        model = importlib.import_module("timm").create_model(name, pretrained=False)
    batches = [(torch.randn(8, 3, side, side), torch.arange(8)) for _ in range(BATCHES)]
    return model.train(), batches


def step(model, batch):
    loss = F.cross_entropy(model(batch[0]), batch[1])
    torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


def child(name, what):
    from theta0 import diagnose

    torch.set_num_threads(1)
    model, batches = made(name)
    if what != "time":
        run = (
            (lambda: step(model, batches[0]))
            if what == "step"
            else lambda: diagnose(model, batches, "cross_entropy", probe_steps=0)
        )
        return growth(run)
    step(model, batches[0])
    diagnose(model, batches[:1], "cross_entropy", probe_steps=0)
    rows = []
    for _ in range(ROUNDS):
        one = seconds(lambda: [step(model, batch) for batch in batches]) / BATCHES
        found = []
        whole = seconds(lambda: found.append(diagnose(model, batches, "cross_entropy", probe_steps=0)))  # noqa: B023 - called at once
        rows.append((one, whole, (whole / one - (found[0].cost - BATCHES)) / BATCHES))
    return {"gradient": statistics.median(r[0] for r in rows), "ratio": statistics.median(r[2] for r in rows),
            "least": min(r[2] for r in rows), "most": max(r[2] for r in rows), "counted": found[0].cost}  # fmt: skip


def run(name, what, before):
    command = [sys.executable, __file__, *before, "--child", name, what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only", default="", help="parts of names, joined by commas")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kept = runpy.run_path(str(arguments.before)) if arguments.before else None  # it may hold what must stay alive
        print(json.dumps(child(*arguments.child)))
        del kept
        return
    before = ["--before", str(arguments.before)] if arguments.before else []
    rows = {}
    for name in MODELS:
        if not any(part in name for part in arguments.only.split(",")):
            continue
        row = run(name, "time", before)
        row["memory"] = run(name, "diagnosis", before) / run(name, "step", before)
        row["held"] = row["ratio"] <= LIMITS.get(name, LIMIT) and row["memory"] <= MEMORY_LIMIT
        rows[name] = row
        spread = f"({row['least']:.2f}-{row['most']:.2f})"
        figures = f"{row['ratio']:5.2f} {spread} gradients a batch, {row['memory']:4.2f} x memory"
        print(
            f"{name:24} {figures}, gradient {row['gradient'] * 1e3:6.0f} ms {'' if row['held'] else 'OVER'}", flush=True
        )
    if arguments.out:
        environment = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        arguments.out.write_text(json.dumps({"networks": rows, "environment": environment}, indent=1) + "\n")


if __name__ == "__main__":
    main()
