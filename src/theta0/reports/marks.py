"""Which numbers of a table of layers are out of bounds: those that a finding judges, and those that are not finite."""

import math

from theta0._records import Table
from theta0.diagnosis.results import Diagnosis, Severity
from theta0.diagnosis.rules import RULES
from theta0.reports.folding import SHARES

_QUANTITIES = {rule.code: rule.quantities for rule in RULES}


def out_of_bounds(diagnosis: Diagnosis, table: Table) -> dict[tuple[str, str], Severity]:
    """The cells of a table that an error or a warning is about, by layer and quantity, with the worst severity."""
    found: dict[tuple[str, str], Severity] = {}
    for finding in sorted(diagnosis.findings, key=lambda f: f.severity == "error"):
        measured = _QUANTITIES.get(finding.code, ())
        for layer in {finding.layer, *finding.layers} if finding.severity != "note" else ():
            row = {quantity: table[layer][quantity] for quantity in measured if quantity in table.get(layer, {})}
            least = min(row, key=row.__getitem__, default=None)
            if least is not None and not _well_within(least, row[least], finding.threshold):
                found[layer, least] = finding.severity
    nonfinite = {(layer, q): value for layer, row in table.items() for q, value in row.items()}
    return found | {cell: "error" for cell, value in nonfinite.items() if not math.isfinite(value)}


def _well_within(quantity: str, value: float, threshold: float) -> bool:
    """Whether a share that must not be large is far from being so: the finding is then about another number."""
    return quantity in SHARES and quantity != "sample_share" and value < threshold / 2
