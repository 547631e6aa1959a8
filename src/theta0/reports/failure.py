"""A diagnosis as the text of a failed test or of a training that was stopped: about ten lines."""

import textwrap

from theta0._version import help_on
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.diagnosis.rules import rule_of
from theta0.reports.advice import worded
from theta0.reports.causes import Caused, by_cause
from theta0.reports.wording import counted, diagnosis_verdict, finding_verdict, located, number, printable

_WIDTH = 100
_CAUSES = 2  # told in full
_MESSAGE = 3  # lines of each


def failure_text(diagnosis: Diagnosis, findings: tuple[Finding, ...]) -> str:
    """The verdict, the first causes among some findings with what to do, and how to see the rest.

    Args:
        diagnosis: the result.
        findings: those of its findings that make it a failure.

    Returns:
        At most twelve lines.
    """
    causes = [caused for caused in by_cause(diagnosis.findings) if caused.finding in findings]
    causes = causes or [Caused(0, finding, ()) for finding in findings]
    lines = [diagnosis_verdict(diagnosis)]
    for caused in causes[:_CAUSES]:
        lines += _told(caused.finding)
    others = [caused.finding for caused in causes[_CAUSES:]]
    others += [finding for caused in causes for _, finding in caused.consequences]
    if others:
        places = ", ".join(map(located, others))
        lines.append(textwrap.shorten(f"and {counted(len(others), 'other')}: {places}", _WIDTH, placeholder=" …"))
    first = diagnosis.findings[0].code if diagnosis.findings else ""
    page = f"; {help_on(first)}" if rule_of(first) is not None else ""
    return "\n".join([*lines, f"{number(diagnosis.cost)} gradients; print(diagnosis) shows every layer{page}."])


def _told(finding: Finding) -> list[str]:
    message = worded(printable(finding.message), "")
    body = textwrap.wrap(message, _WIDTH - 2, max_lines=_MESSAGE, placeholder=" …")
    if finding.source_line:
        body[_MESSAGE - 2 :] = [printable(finding.source_line)]
    remedy = [f"→ {worded(printable(finding.remedy), '')}"] if finding.remedy else []
    return [finding_verdict(finding), *(f"  {line}" for line in [*body, *remedy])]
