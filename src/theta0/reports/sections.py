"""The findings as a page shows them: texts under a heading, consequences folded under their cause."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from theta0.diagnosis.results import Finding
from theta0.reports.causes import by_cause
from theta0.reports.wording import counted_severities, extent, located, number, printable


@dataclass(frozen=True)
class FindingText:
    """What a page says of one finding.

    Charts and tables name it by its number among all findings, from 1; `fate` is empty where nothing was treated.
    """

    number: int
    severity: str
    located: str
    extent: str
    fate: str
    message: str
    value: str
    threshold: str
    source: str
    remedy: str
    follows: tuple["FindingText", ...] = ()


@dataclass(frozen=True)
class FindingSection:
    """Findings under one heading: those that follow from no other, with those that follow from them."""

    title: str
    counts: str
    findings: list[FindingText]


def section(title: str, findings: Sequence[Finding], fates: Iterable[str] = ()) -> FindingSection:
    """Put findings into words, with what became of each where something was treated."""
    outcomes = list(fates) or [""] * len(findings)

    def text(place: int, finding: Finding, follows: tuple[FindingText, ...] = ()) -> FindingText:
        return FindingText(
            number=place,
            severity=finding.severity,
            located=located(finding),
            extent=extent(finding),
            fate=outcomes[place - 1],
            message=printable(finding.message),
            value=number(finding.value),
            threshold=number(finding.threshold),
            source=printable(finding.source),
            remedy=printable(finding.remedy),
            follows=follows,
        )

    shown = [
        text(caused.number, caused.finding, tuple(text(*below) for below in caused.consequences))
        for caused in by_cause(findings)
    ]
    return FindingSection(title, counted_severities(tuple(findings)), shown)
