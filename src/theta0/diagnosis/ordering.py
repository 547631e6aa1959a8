"""Findings in the order of their causes: what, if mended, would remove the others, comes first."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from theta0.diagnosis.chain import SPREAD_ERROR
from theta0.diagnosis.results import Finding

_SEVERITIES = {"error": 0, "warning": 1, "note": 2}
_FORWARD = (
    "activation-shift", "vanishing-activations", "exploding-activations", "saturated-units", "dead-units",
    "constant-output", "initial-loss", "degenerate-softmax",
)  # fmt: skip
# The first of these groups that a finding is in is its place; within "forward" the layer decides, as given.
_PLACES: Mapping[str, int] = {
    "broadcast-loss": 0, "input-scale": 1, "frozen-batch-norm": 2, "squashed-output": 3, "identical-units": 4,
    "non-finite": 6, **dict.fromkeys(_FORWARD, 7), "vanishing-gradients": 8, "exploding-gradients": 8,
    "zero-gradient": 9, "small-batch": 10, "learning-rate-too-high": 11, "learning-rate-too-low": 11,
    "unused-parameters": 12, "frozen-parameters": 13, "gradient-conflict": 14,
}  # fmt: skip
_ZERO_FACTOR = 5  # a gradient that is zero because a factor is, before what is silent because of it

_LARGE = frozenset({"exploding-activations", "initial-loss", "degenerate-softmax", "learning-rate-too-high"})
_SIZE = _LARGE | {
    "saturated-units", "dead-units", "non-finite", "exploding-gradients", "constant-output", "vanishing-gradients",
    "activation-shift",
}  # fmt: skip
_SILENCE = frozenset({"vanishing-activations", "constant-output", "vanishing-gradients", "dead-units", "zero-gradient"})
# What each fault brings with it.
BRINGS: Mapping[str, frozenset[str]] = {
    "input-scale": _SIZE,
    "frozen-batch-norm": _SIZE | _SILENCE,
    "identical-units": _SILENCE | {"activation-shift"},
    "zero-gradient": _SILENCE,
    "activation-shift": _SILENCE | _LARGE,
    "vanishing-activations": _SILENCE,
    "dead-units": _SILENCE | {"vanishing-activations"},
    "saturated-units": frozenset({"vanishing-gradients", "constant-output"}),
    "exploding-activations": _SIZE,
    "initial-loss": frozenset({"degenerate-softmax", "learning-rate-too-high", "exploding-gradients"}),
    "non-finite": frozenset({"exploding-activations", "exploding-gradients", "initial-loss"}),
}


def ordered(findings: Sequence[Finding], *, zero_factor: bool) -> list[Finding]:
    """Weigh findings against each other and put causes first.

    Args:
        findings: as the families give them, forward ones by layer.
        zero_factor: whether a gradient that stays zero belongs to a weight that is zero.

    Returns:
        Errors, then warnings, then notes; within each, causes first, and consequences with their `cause`.
    """
    weighed = _weighed(findings)
    exploding = any(f.code == "exploding-activations" and f.severity == "error" for f in weighed)

    def place(finding: Finding) -> tuple[int, int]:
        order = _PLACES[finding.code]
        if zero_factor and finding.code == "zero-gradient":
            order = _ZERO_FACTOR
        if exploding and finding.code == "non-finite":  # what grew until it was past the largest number
            order = _PLACES["exploding-activations"]
        return _SEVERITIES[finding.severity], order

    return _explained(sorted(weighed, key=place))


def _weighed(findings: Sequence[Finding]) -> list[Finding]:
    """A cause weighs as much as what follows from it; a shift that nothing dies of only slows training."""
    errors = {f.code for f in findings if f.severity == "error"}
    fatal = errors & {"constant-output", "vanishing-activations", "vanishing-gradients", "exploding-activations"}
    fatal |= errors & {"initial-loss", "dead-units"}
    found = []
    for f in findings:
        severity = f.severity
        if f.code == "activation-shift" and not fatal and 1 - f.value > SPREAD_ERROR**2:
            severity = "warning"
        if f.code == "input-scale" and errors & BRINGS["input-scale"]:
            severity = "error"
        if f.code in ("initial-loss", "exploding-activations") and "learning-rate-too-high" in errors:
            severity = "error"
        if f.code == "exploding-activations" and "initial-loss" in errors:
            severity = "error"
        found.append(replace(f, severity=severity))
    return found


def _explained(findings: list[Finding]) -> list[Finding]:
    found: list[Finding] = []
    for finding in findings:
        causes = [f.code for f in found if f.severity != "note" and finding.code in BRINGS.get(f.code, ())]
        cause = causes[0] if causes and finding.severity != "note" else ""
        found.append(replace(finding, cause=cause))
    return found
