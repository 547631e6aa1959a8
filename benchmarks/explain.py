"""Does `theta0.explain` name the module whose starting values are at fault? Sixty faults, within 400 gradients each.

Faults of one module's values (scale, shift, constant, copies, dead bias, gain of a normalisation, embedding, offset of
the head) from `injection/`, at random places and sizes, into the small healthy networks there. One counts only if it is
ill: trained for the problem's steps it makes less than half of the healthy network's progress on held-out data. The
networks are dealt to two halves by a fixed seed; the test half is to be looked at once, after the last change, and so
is the unseen one, of networks that took no part in anything before.

    python benchmarks/explain.py [--half dev|test|unseen] [--count 60] [--out FILE.json] [--table FILE.md]  # resumable
"""

import argparse
import json
import random
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from injection import plan, truth
from injection.table import _share as share

from theta0 import explain

KINDS = (
    "weight_scale_up", "weight_scale_down", "weight_shift", "constant_fill", "copied_units", "dead_bias", "norm_gain",
    "embedding_scale", "head_offset",
)  # fmt: skip
BUDGET, SEED, FIRST_DRAW = 400, 7, 100  # draws of places and sizes that `fault_injection.py` does not use
STORE = Path("build/explain")


def candidates(half: str) -> Iterator[str]:
    """Names of injections of single modules, kinds in turn, networks in a drawn order."""
    rng, networks = random.Random(f"{SEED}/{half}"), plan.halves()[half]
    for draw in range(FIRST_DRAW, FIRST_DRAW + 20):
        for kind in rng.sample(KINDS, len(KINDS)):
            for network in rng.sample(networks, 3):
                yield f"{half}/{network}/{kind}/{draw}"


def is_ill(name: str, healthy: dict[str, dict]) -> bool:
    """Whether the fault costs more than half of the healthy progress."""
    network = name.split("/")[1]
    found = plan.injected(name, 0)
    if found is None or not found.single:
        return False
    if network not in healthy:
        healthy[network] = truth.healthy_scores(network)
    return truth.share(found, 0, healthy[network]) < truth.ILL


def row(name: str) -> dict:
    """What `explain` says of an injection."""
    found = plan.injected(name, 0)
    problem = found.problem
    start = time.process_time()
    said = explain(problem.model, problem.train, problem.loss, optimizer=problem.optimizer, learning_rate=problem.rate, budget=BUDGET)  # fmt: skip  # noqa: E501
    right = said.module == found.places[0]
    return {
        "name": name, "size": found.size, "guilty": found.places[0], "named": said.module, "right": right,
        "verdict": said.verdict, "gradients": said.cost, "seconds": time.process_time() - start,
        "modules": len(list(problem.model.named_parameters())),
    }  # fmt: skip


def markdown(rows: dict[str, dict]) -> str:
    """A table of the kinds of fault: the right module named, another one, something else proven, nothing."""
    lines = ["| fault | right module | another module | another change | not proven | gradients |", "| --- |" + " --- |" * 5]  # fmt: skip  # noqa: E501
    for kind in [*sorted({name.split("/")[2] for name in rows}), ""]:
        found = [row for name, row in rows.items() if kind in ("", name.split("/")[2])]
        right = sum(row["right"] for row in found)
        other = sum(bool(row["named"]) and not row["right"] for row in found)
        change = sum(not row["named"] and row["verdict"].startswith("Proven") for row in found)
        cells = [share(right, len(found)), other, change, len(found) - right - other - change]
        cost = sum(row["gradients"] for row in found) / max(1, len(found))
        lines.append(f"| {kind or '**all**'} | {' | '.join(map(str, cells))} | {cost:.0f} |")
    return "\n".join(lines) + "\n"


def judged(half: str, count: int, store: Path) -> dict[str, dict]:
    """The first so many ill injections of a half with what `explain` says; truth and verdicts are kept apart."""
    rows: dict[str, dict] = {}
    healthy: dict[str, dict] = {}
    ill, known = truth.read(store / f"truth_{half}.jsonl"), truth.read(store / f"{half}.jsonl")
    with (store / f"truth_{half}.jsonl").open("a") as truths, (store / f"{half}.jsonl").open("a") as verdicts:
        for name in candidates(half):
            if len(rows) == count:
                break
            if name not in ill:
                ill[name] = {"ill": is_ill(name, healthy)}
                print(json.dumps({"name": name, **ill[name]}), file=truths, flush=True)
            if not ill[name]["ill"]:
                continue
            if name not in known:
                known[name] = row(name)
                print(json.dumps(known[name]), file=verdicts, flush=True)
            rows[name] = r = known[name]
            print(f"{name:44} {r['guilty']:20} {r['named']:20} {r['gradients']:5.0f} {r['verdict'][:70]}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("dev", "test", "unseen"), default="dev")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--again", action="store_true", help="forget the stored verdicts, not which faults are ill")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    STORE.mkdir(parents=True, exist_ok=True)
    if arguments.again:
        (STORE / f"{arguments.half}.jsonl").unlink(missing_ok=True)
    rows = judged(arguments.half, arguments.count, STORE)
    right = sum(r["right"] for r in rows.values())
    print(markdown(rows))
    if arguments.table:
        arguments.table.write_text(markdown(rows))
    if arguments.out:
        arguments.out.write_text(json.dumps({"half": arguments.half, "right": right, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
