"""Does `theta0.explain` name the module whose starting values are at fault? Sixty faults, within 400 gradients each.

Faults of one module's values (scale, shift, constant, copies, dead bias, gain of a normalisation, embedding, offset of
the head) from `injection/`, at random places and sizes, into the small healthy networks there. One counts only if it is
ill: trained for the problem's steps it makes less than half of the healthy network's progress on held-out data. The
networks are dealt to two halves by a fixed seed; the test half is to be looked at once, after the last change.

    python benchmarks/explain.py [--half dev|test] [--count 30] [--out FILE.json]     # resumable
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("dev", "test"), default="dev")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    STORE.mkdir(parents=True, exist_ok=True)
    path = STORE / f"{arguments.half}.jsonl"
    known = truth.read(path)
    rows: dict[str, dict] = {}
    healthy: dict[str, dict] = {}
    with path.open("a") as file:
        for name in candidates(arguments.half):
            if len(rows) == arguments.count:
                break
            if name not in known:
                known[name] = row(name) if is_ill(name, healthy) else {"harmless": True}
                file.write(json.dumps({"name": name, **known[name]}) + "\n")
                file.flush()
            if "harmless" not in known[name]:
                rows[name] = known[name]
                r = rows[name]
                print(
                    f"{name:44} {r['guilty']:20} {r['named']:20} {r['gradients']:5.0f} {r['verdict'][:70]}", flush=True
                )
    right = sum(r["right"] for r in rows.values())
    cost = sum(r["gradients"] for r in rows.values()) / max(1, len(rows))
    print(f"module right {right} of {len(rows)}; mean cost {cost:.0f} gradients")
    if arguments.out:
        arguments.out.write_text(json.dumps({"half": arguments.half, "right": right, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
