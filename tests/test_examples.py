"""The examples are what they say, and looking at them leaves them as they were."""

from pathlib import Path

import pytest

from states import randomness, state_of
from theta0.diagnosis import diagnose
from theta0.targets import load_target

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
EXPECTED = {"deep_sigmoid": {"activation-shift", "vanishing-gradients"}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_found_as_it_is_named_and_left_as_it_was(path):
    target = load_target(str(path))
    before, drawn = state_of(target.model), randomness()
    options = {"optimizer": target.optimizer, "learning_rate": target.learning_rate}
    found = diagnose(target.model, target.batches, target.loss, probe_steps=0, **options)
    assert state_of(target.model) == before
    assert randomness() == drawn
    assert EXPECTED.get(path.stem, set()) <= {f.code for f in found.findings}
    if path.stem.startswith(("healthy", "transformer")):
        assert [f for f in found.findings if f.severity != "note"] == []
    else:
        assert not found.healthy
