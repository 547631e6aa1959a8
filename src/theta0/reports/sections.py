"""The findings as a page shows them: texts under a heading, consequences folded under their cause."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from theta0.diagnosis.results import Finding
from theta0.reports.causes import by_cause
from theta0.reports.wording import counted_severities, extent, located, number, printable


@dataclass(frozen=True)
class FindingText:
    """What a page says of one finding.

    Attributes:
        number: its place among all findings, from 1; charts and tables name it by this.
        severity: `error`, `warning` or `note`.
        located: what it is and where it begins.
        extent: how far it reaches.
        fate: what became of it through the treatment; empty where there was none.
        message: two sentences.
        value: the number that shows it.
        threshold: the number that it was held against.
        source: where the threshold comes from.
        remedy: the command or line that mends it.
        source_line: the line of the user's program where it arises; empty where none is known.
        follows: what follows from it.
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
    source_line: str
    follows: tuple["FindingText", ...] = ()


@dataclass(frozen=True)
class FindingSection:
    """Findings under one heading.

    Attributes:
        title: the heading.
        counts: how many of each severity.
        findings: those that follow from no other, with those that follow from them.
    """

    title: str
    counts: str
    findings: list[FindingText]


def section(title: str, findings: Sequence[Finding], fates: Iterable[str] = ()) -> FindingSection:
    """Put findings into words.

    Args:
        title: the heading.
        findings: in the order of the diagnosis.
        fates: what became of each; empty where nothing was treated.
    """
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
            source_line=printable(finding.source_line),
            follows=follows,
        )

    shown = [
        text(caused.number, caused.finding, tuple(text(*below) for below in caused.consequences))
        for caused in by_cause(findings)
    ]
    return FindingSection(title, counted_severities(tuple(findings)), shown)
