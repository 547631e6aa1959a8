"""Findings with what follows from each: a report explains the causes, and names the consequences under them."""

from collections.abc import Sequence
from dataclasses import dataclass

from theta0.diagnosis.results import Finding


@dataclass(frozen=True)
class Caused:
    """A finding that follows from no other, and those that follow from it.

    `number` is its place among all findings, from 1; consequences, too, have theirs.
    """

    number: int
    finding: Finding
    consequences: tuple[tuple[int, Finding], ...]


def by_cause(findings: Sequence[Finding]) -> list[Caused]:
    """Fold each finding that names an earlier one as its cause under that one's own first cause."""
    roots: dict[str, int] = {}  # of each code, the number of the first cause
    folded: dict[int, list[tuple[int, Finding]]] = {}
    for number, finding in enumerate(findings, start=1):
        root = roots.get(finding.cause)
        if root is None:
            folded[number] = []
        else:
            folded[root].append((number, finding))
        if finding.severity != "note":
            roots.setdefault(finding.code, number if root is None else root)
    return [Caused(number, findings[number - 1], tuple(below)) for number, below in folded.items()]
