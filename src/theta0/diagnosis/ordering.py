"""Findings in the order of their causes: what, if fixed, would remove the others, comes first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from theta0.diagnosis.evidence import BY_HEART, Evidence
from theta0.diagnosis.outcome import fall
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule

_SEVERITIES = {"error": 0, "warning": 1, "note": 2}


def revised(findings: Sequence[Finding], rules: Mapping[str, Rule], evidence: Evidence) -> list[Finding]:
    """Each finding as its rule sees it beside the others, all of them as they were judged, less those withdrawn."""
    found = []
    for finding in findings:
        revise = rules[finding.code].revise
        kept = finding if revise is None else revise(finding, _others(finding, findings), evidence)
        found += [] if kept is None else [kept]
    return found


def refuted(findings: Sequence[Finding], rules: Mapping[str, Rule], evidence: Evidence) -> list[Finding]:
    """What holds training back is a note where a run at the user's rate is seen to train well.

    So it is where a long run from the same start, which small networks get, trains well at another rate.
    """
    held = [f for f in findings if _refutable(f, rules[f.code])]
    run, probe = evidence.training if held else None, evidence.probe if held else None
    if run is None and probe is not None and probe.longer:
        run = next((r for r in probe.runs if r.outcome == "trains" and probe.trains_much(BY_HEART, r.rate)), None)
    if run is None or probe is None:
        return list(findings)
    said = f" Training is not held back by it: {fall(run, probe.first)}."
    return [
        replace(f, severity="note", message=f.message + said, remedy="", evidence=(run,)) if f in held else f
        for f in findings
    ]


def _refutable(finding: Finding, rule: Rule) -> bool:
    """Data that are far beyond what a rule warns of stay wrong: a short run that gains some says little of the rest."""
    return rule.refutable and finding.severity in (("warning",) if rule.place is Place.DATA else ("warning", "error"))


def ordered(findings: Sequence[Finding], rules: Mapping[str, Rule], evidence: Evidence) -> list[Finding]:
    """Errors, then warnings, then notes; within each, causes first, and consequences with their `cause`.

    Those at the same place keep their order.
    """
    positions = {link.layer: number for number, link in enumerate(evidence.links)}

    def placed(finding: Finding) -> tuple[Place, str]:
        place = rules[finding.code].place
        if isinstance(place, Place):
            return place, finding.layer
        return place(finding, _others(finding, findings), evidence)

    def key(finding: Finding) -> tuple[int, int, int]:
        place, layer = placed(finding)
        position = positions.get(layer, len(positions)) if place is Place.FORWARD else 0
        return _SEVERITIES[finding.severity], place, position

    weighed = _confirmed(_raised(findings, rules, placed), rules, key)
    return _explained(sorted(weighed, key=key), rules)


def _others(finding: Finding, findings: Sequence[Finding]) -> list[Finding]:
    return [other for other in findings if other is not finding]


def _raised(
    findings: Sequence[Finding], rules: Mapping[str, Rule], placed: Callable[[Finding], tuple[Place, str]]
) -> list[Finding]:
    """What is wrong before the first layer, or with the loss, weighs as much as what follows from it."""
    errors = {f.code for f in findings if f.severity == "error"}

    def raised(finding: Finding) -> bool:
        early = placed(finding)[0] < Place.FORWARD
        return finding.severity == "warning" and early and bool(rules[finding.code].brings & errors)

    return [replace(f, severity="error") if raised(f) else f for f in findings]


def _confirmed(
    findings: Sequence[Finding], rules: Mapping[str, Rule], key: Callable[[Finding], tuple[int, int, int]]
) -> list[Finding]:
    """Where short runs show that nothing trains and no cause is an error, the first warning is one."""
    causes = [f for f in findings if f.severity != "note" and not rules[f.code].outcome]
    fails = any(rules[f.code].outcome and f.severity == "error" for f in findings)
    if not fails or not causes or any(f.severity == "error" for f in causes):
        return list(findings)
    first = min(causes, key=key)
    return [replace(f, severity="error") if f is first else f for f in findings]


def _explained(findings: Sequence[Finding], rules: Mapping[str, Rule]) -> list[Finding]:
    found: list[Finding] = []
    for finding in findings:
        outcome, serious = rules[finding.code].outcome, [f for f in found if f.severity != "note"]
        causes = [f.code for f in serious if outcome or finding.code in rules[f.code].brings]
        cause = causes[0] if causes and finding.severity != "note" else ""
        found.append(replace(finding, cause=cause))
    return found
