"""What follows from what: each finding once, under the first of its causes."""

import report_cases as cases
from hypothesis import given
from hypothesis import strategies as st

from theta0.reports.causes import by_cause

CODES = ("input-scale", "saturated-units", "vanishing-gradients", "dead-units")
FOUND = st.tuples(st.sampled_from(CODES), st.sampled_from(("error", "warning", "note")), st.sampled_from(("", *CODES)))


def of(*triples):
    return tuple(cases.finding(code, "a", 0.9, 0.5, severity, cause=cause) for code, severity, cause in triples)


def numbers(findings):
    return [(c.number, [number for number, _ in c.consequences]) for c in by_cause(findings)]


def test_a_chain_of_causes_is_folded_under_its_first():
    chained = of(
        ("input-scale", "error", ""),
        ("dead-units", "error", ""),
        ("saturated-units", "error", "input-scale"),
        ("vanishing-gradients", "warning", "saturated-units"),
    )
    assert numbers(chained) == [(1, [3, 4]), (2, [])]


def test_a_cause_that_was_not_found_or_comes_later_folds_nothing():
    assert numbers(of(("dead-units", "error", "input-scale"), ("input-scale", "error", ""))) == [(1, []), (2, [])]
    assert numbers(of(("input-scale", "note", ""), ("dead-units", "error", "input-scale"))) == [(1, []), (2, [])]


@given(st.lists(FOUND, max_size=12))
def test_every_finding_is_told_once_and_causes_come_first(triples):
    findings = of(*triples)
    folded = by_cause(findings)
    told = [(c.number, c.finding) for c in folded] + [entry for c in folded for entry in c.consequences]
    assert sorted(number for number, _ in told) == list(range(1, len(findings) + 1))
    assert all(findings[number - 1] is finding for number, finding in told)
    assert [c.number for c in folded] == sorted(c.number for c in folded)
    assert all(number > c.number for c in folded for number, _ in c.consequences)
