"""The held-out starts: a score, not a list of promises, so that no single one becomes a rule."""

import pytest
from held_out import HEALTHY, ILL

from theta0.diagnosis import diagnose

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")


def codes(start):
    found = diagnose(
        start.model(), start.data(), start.loss, optimizer=start.optimizer, learning_rate=start.rate, probe_steps=0
    )
    assert found.cost <= 20
    return [f.code for f in found.findings if f.severity != "note"]


@pytest.mark.slow
def test_ill_starts_are_named_by_their_cause():
    found = {start.name: codes(start)[:1] for start in ILL}
    wrong = {start.name: found[start.name] for start in ILL if not set(found[start.name]) & set(start.codes)}
    assert len(wrong) <= len(ILL) // 15, wrong


@pytest.mark.slow
def test_healthy_starts_are_left_alone():
    wrong = {start.name: found for start in HEALTHY if (found := codes(start))}
    assert not wrong
