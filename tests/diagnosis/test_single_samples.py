"""A batch of one sample, as language models are often tried on: nothing differs between samples, nothing is lost."""

from types import SimpleNamespace

from theta0.diagnosis.chain import Link
from theta0.diagnosis.rules.vanishing_activations import judge


def evidence(samples):
    """A chain as GPT-2 small gave it on one sequence: a layer shifted by its weights, and layers without a spread."""
    links = [Link("first", 0.0, 1.0, None, {"weight_shift_share": 0.9})]
    links += [Link(name, 0.0, 1.0, None, {}) for name in ("hidden", "last")]
    batch = SimpleNamespace(size=samples)
    return SimpleNamespace(
        links=links, table={}, network={"output_rms": 1.0}, batches=[batch], waking=[], parameters={}
    )


def test_one_sample_is_no_lost_signal():
    assert judge(evidence(1)) is None
    assert judge(evidence(2)).code == "vanishing-activations"
