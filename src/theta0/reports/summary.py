"""The few numbers by which a start as given and a treated start are compared."""

import math
from collections.abc import Callable

from theta0._records import Table, by_layer
from theta0.diagnosis.results import Diagnosis
from theta0.reports.wording import layers_of, number, printable, share
from theta0.treatment.results import Run, Treatment

ABSENT = "–"


def main_numbers(treatment: Treatment) -> list[tuple[str, str, str]]:
    """The main numbers of a treatment that were measured: label, value at the start as given, at the treated start."""
    runs = (treatment.untreated, treatment.treated)
    untreated, treated = runs
    before, after = treatment.before, treatment.after
    rows = [
        (label, read(untreated) if untreated else ABSENT, read(treated) if treated else ABSENT)
        for label, read in _run_numbers(runs, len(treatment.confirmations))
    ]
    rows += [(label, read(before), read(after) if after else ABSENT) for label, read in _start_numbers()]
    return [row for row in rows if row[1:] != (ABSENT, ABSENT)]


def _run_numbers(runs: tuple[Run | None, Run | None], orders: int) -> list[tuple[str, Callable[[Run], str]]]:
    steps = max((len(run.losses) for run in runs if run), default=0)
    first = ", first order" if orders > 1 else ""  # the verdict has the mean over all data orders
    return [
        ("held-out loss at the start", lambda run: number(run.held_out_start)),
        (f"held-out loss after {steps} steps{first}", lambda run: number(run.held_out) + _diverged(run, steps)),
        ("optimizer", lambda run: printable(run.optimizer)),
        ("learning rate", lambda run: number(run.rate)),
    ]


def _diverged(run: Run, steps: int) -> str:
    return f" (ended at step {len(run.losses)})" if len(run.losses) < steps else ""


def _start_numbers() -> list[tuple[str, Callable[[Diagnosis], str]]]:
    return [
        ("loss at the start", lambda d: _network(d, "loss")),
        ("largest activation-shift share", lambda d: _extreme(layers_of(d), "shift_share", max)),
        ("smallest share between samples", lambda d: _extreme(layers_of(d), "sample_share", min)),
        ("var z, first layer", lambda d: _at(layers_of(d), "preactivation_variance", 0)),
        ("var z, last layer", lambda d: _at(layers_of(d), "preactivation_variance", -1)),
        ("var ∇z, first layer", lambda d: _at(layers_of(d), "gradient_variance", 0)),
        ("var ∇z, last layer", lambda d: _at(layers_of(d), "gradient_variance", -1)),
        ("largest saturated share", lambda d: _extreme(layers_of(d), "saturated_share", max)),
        ("largest dead share", lambda d: _extreme(layers_of(d), "dead_share", max)),
    ]


def _network(diagnosis: Diagnosis, quantity: str) -> str:
    facts = by_layer(diagnosis.records).get("", {})
    return number(facts[quantity]) if quantity in facts else ABSENT


def _extreme(table: Table, quantity: str, choose: Callable[[list[float]], float]) -> str:
    values = [row[quantity] for row in table.values() if quantity in row]
    if any(math.isnan(value) for value in values):
        return "nan"
    return share(choose(values)) if values else ABSENT


def _at(table: Table, quantity: str, position: int) -> str:
    values = [row[quantity] for row in table.values() if quantity in row]
    return number(values[position]) if values else ABSENT
