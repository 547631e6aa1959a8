"""Faults injected into small networks that train: how often theta0 sees them, and names the cause and the module.

What is injected: the kinds in `injection/` (starting values, computation, loss, data, rate, arithmetic), each a
transformation of (model, batches, loss, optimizer, rate) with a random place and a random size, mild ones too. The
networks (`injection/networks.py`) are small, of different kinds, on made data or scikit-learn's digits, each with a
rate and a number of steps at which it trains. Right codes are listed with each kind, before any verdict.

How truth is made: by training (`injection/truth.py`). An injection is ill only if it costs more than half of the
progress on held-out data whose targets are the true ones; one that costs less than a tenth is harmless and counts as
healthy: an error or warning there is a false alarm. Between the two it is left out. The results are stored in
`results/fault_injection_truth.json`, so that verdicts need no training.

How the halves are split: networks, places and sizes by a fixed seed, before any verdict (`injection/plan.py`); four
kinds are not in the development half. The test half is to be looked at once, when nothing will be changed any more; so
is the unseen half, on networks that took no part in anything before (`injection/unseen.py`).

    python benchmarks/fault_injection.py truth [--half dev|test|fresh|unseen]    # ground truth, an hour; resumable
    python benchmarks/fault_injection.py verdicts [--half dev|test|fresh|unseen] [--out FILE.json] [--table FILE.md]
        [--jobs N] [--backend dask://HOST:PORT]    # on a cluster that has this folder
    python benchmarks/fault_injection.py networks                    # healthy networks at a grid of rates
"""

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from injection import plan, truth, verdicts
from injection.networks import NETWORKS, healthy
from injection.table import markdown, summary
from injection.training import trained

from theta0.jobs import cluster, completed

STORE = Path("build/fault_injection")
RESULTS = Path(__file__).parent / "results"
PLAN, TRUTH = RESULTS / "fault_injection_plan.json", RESULTS / "fault_injection_truth.json"
REMINDER = "The {} half is to be looked at once, after the last change, and reported as it is."


def stored_plan() -> dict[str, list[str]]:
    """Names of the injections of each half, drawn once, before anything was trained or judged."""
    known = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    if set(known) != set(plan.halves()):
        known |= {half: plan.planned(half) for half in plan.halves() if half not in known}
        PLAN.write_text(json.dumps(known, indent=0) + "\n")
    return known


def rows_of(work: str, half: str, network: str, seconds: float, known: dict) -> Iterator[dict]:
    """One network's part, row by row, one an injection."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")  # of operations that are faulty on purpose
    if work == "truth":
        names = [name for name in stored_plan()[half] if name.split("/")[1] == network]
        yield from truth.lines(network, names, known)
    else:
        entries = {k: v for k, v in read_truth()["injections"].items() if k.startswith(f"{half}/{network}/")}
        yield from verdicts.lines(half, network, entries, known, seconds)


def child(work: str, half: str, network: str, store: Path, seconds: float) -> None:
    """Do one network's part and append it, one line an injection."""
    path = store / f"{work}_{half}.jsonl"
    with path.open("a") as file:
        for row in rows_of(work, half, network, seconds, truth.read(path)):
            file.write(json.dumps(row) + "\n")
            file.flush()


def task_rows(task: tuple) -> list[dict]:
    """The same, in a worker that may not see the store."""
    return list(rows_of(*task))


def on_backend(work: str, half: str, arguments: argparse.Namespace) -> None:
    """A task for each network, on joblib's backend; rows are stored as soon as a network is done."""
    path = arguments.store / f"{work}_{half}.jsonl"
    known = truth.read(path)
    tasks = {name: (work, half, name, arguments.seconds, known) for name in plan.halves()[half]}
    with cluster(arguments.backend, arguments.jobs) as backend:
        for network, rows in completed(task_rows, tasks, jobs=arguments.jobs, backend=backend):
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(f"{work} {half} {network}: done", flush=True)


def groups(work: str, half: str, arguments: argparse.Namespace) -> None:
    """A process for each network, several at a time; one over its limit is ended, what it wrote stays."""
    if arguments.backend:
        on_backend(work, half, arguments)
        return
    waiting, running, fork = list(plan.halves()[half]), {}, multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            network = waiting.pop(0)
            process = fork.Process(target=child, args=(work, half, network, arguments.store, arguments.seconds))
            process.start()
            running[network] = (process, time.monotonic() + arguments.limit)
        time.sleep(0.2)
        for network, (process, end) in list(running.items()):
            if process.is_alive() and time.monotonic() < end:
                continue
            process.kill()
            process.join()
            del running[network]
            state = "done" if process.exitcode == 0 else f"ended with {process.exitcode}; run again to go on"
            print(f"{work} {half} {network}: {state}", flush=True)


def read_truth() -> dict:
    return json.loads(TRUTH.read_text())


def collect_truth(store: Path) -> None:
    """Put the stores of all halves together into one compact file, as far as they are done, with what it holds."""
    known = read_truth() if TRUTH.exists() else {"networks": {}, "injections": {}}
    rows = {name: row for half in plan.halves() for name, row in truth.read(store / f"truth_{half}.jsonl").items()}
    networks = {name.split("/")[1]: row for name, row in rows.items() if name.startswith("healthy/")} | known[
        "networks"
    ]
    found = known["injections"] | {name: row for name, row in rows.items() if not name.startswith("healthy/")}
    found = dict(sorted(found.items()))
    header = {"ill below": truth.ILL, "harmless from": truth.HARMLESS, "seed": plan.SEED, "halves": plan.halves(), "held out": plan.held_out_kinds(), "torch": torch.__version__}  # fmt: skip  # noqa: E501
    lines = [json.dumps(header)[:-1], '"networks": {' + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in networks.items()) + "}"]  # fmt: skip  # noqa: E501
    lines.append('"injections": {' + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "}}")
    TRUTH.write_text(",\n".join(lines) + "\n")
    print(f"{len(networks)} networks, {len(found)} injections in {TRUTH.name}")


def report(half: str, arguments: argparse.Namespace) -> None:
    """Compare verdicts with the truth; write results and table."""
    entries = {k: v for k, v in read_truth()["injections"].items() if k.startswith(f"{half}/")}
    rows = truth.read(arguments.store / f"verdicts_{half}.jsonl")
    result = summary(entries, rows, plan.held_out_kinds())
    text = markdown(result, half)
    print(text)
    if arguments.table:
        arguments.table.write_text(text)
    if arguments.out:
        arguments.out.write_text(json.dumps({"half": half, "summary": result, "verdicts": rows}, indent=1) + "\n")


def grid() -> None:
    """Each healthy network at five rates: the share of the reference score that it gains."""
    for name in NETWORKS:
        base, gains = healthy(name, 0), []
        for factor in (0.1, 0.3, 1, 3, 10):
            problem = healthy(name, 0, rate=factor * base.rate)
            gains.append(f"{problem.rate:.2g}: {1 - trained(problem, 0).score / problem.reference:.2f}")
        print(f"{name:20}", *gains, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("truth", "verdicts", "networks"))
    parser.add_argument("--half", choices=tuple(plan.halves()), default="dev")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--store", type=Path, default=STORE, help="what is done is kept here, and not done again")
    parser.add_argument("--again", action="store_true", help="forget the stored verdicts of this half")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--backend", help="joblib's: loky, dask, ray, dask://HOST:PORT, ray://HOST:PORT; no --limit")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for one network")
    parser.add_argument("--seconds", type=float, default=30, help="process seconds for one diagnosis")
    arguments = parser.parse_args()
    arguments.store.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if arguments.work == "networks":
        grid()
    elif arguments.work == "truth":
        stored_plan()
        groups("truth", arguments.half, arguments)
        collect_truth(arguments.store)
    else:
        if arguments.half in ("test", "unseen"):
            print(REMINDER.format(arguments.half))
        if arguments.again:
            (arguments.store / f"verdicts_{arguments.half}.jsonl").unlink(missing_ok=True)
        groups("verdicts", arguments.half, arguments)
        report(arguments.half, arguments)


if __name__ == "__main__":
    main()
