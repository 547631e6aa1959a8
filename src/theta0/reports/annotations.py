"""Findings as annotations of a pull request: the workflow commands that GitHub Actions reads from standard output."""

import re

from theta0.diagnosis.results import Diagnosis, Finding
from theta0.reports.advice import worded
from theta0.reports.wording import located, printable

_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}
_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::|$)")


def annotations(diagnosis: Diagnosis, *, target: str = "") -> list[str]:
    r"""Findings as workflow commands, one a line: `::error file=train.py,line=42,title=…::…`.

    A finding stands at the user's line where it arises, else at the target's file, else at the run as a whole.

    Args:
        diagnosis: the result.
        target: the file that was diagnosed, as seen from the repository's root; the empty string where there is none.

    Returns:
        The lines, errors first as in the diagnosis.

    Example:
        >>> finding = Finding("gradient-cut", "error", "net.0", 0.0, 0.0, "It ends, here.\nGo on.", "", "", (),
        ...                   source_line="train.py:42: x = x.detach()")
        >>> print(*annotations(Diagnosis((), (finding,), 1.0)), sep="\n")
        ::error file=train.py,line=42,title=theta0%3A gradient-cut at net.0::It ends, here.%0AGo on.
    """
    return [_annotation(finding, target) for finding in diagnosis.findings]


def _annotation(finding: Finding, target: str) -> str:
    found = _LINE.match(finding.source_line)
    file = target.partition(", optimizer ")[0]
    place = {"file": found["file"], "line": found["line"]} if found else {"file": file} if file.endswith(".py") else {}
    properties = place | {"title": f"theta0: {located(finding)}"}
    listed = ",".join(f"{name}={_escaped(printable(value), property=True)}" for name, value in properties.items())
    remedy = f"\n{finding.remedy}" if finding.remedy else ""
    return f"::{_LEVELS[finding.severity]} {listed}::{_escaped(worded(finding.message + remedy, target))}"


def _escaped(text: str, *, property: bool = False) -> str:
    """As `@actions/core` escapes: percent first, then line ends, in properties also what separates them."""
    pairs = [("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *([(":", "%3A"), (",", "%2C")] if property else [])]
    for character, code in pairs:
        text = text.replace(character, code)
    return text
