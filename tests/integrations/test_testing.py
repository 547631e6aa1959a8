"""The pytest plugin: its assertion, its fixture, and what it costs to start."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from torch import nn

from theta0 import integrations
from theta0.integrations.testing import assert_trainable, assert_trainable_fixture

pytest_plugins = ["pytester"]


def batches():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    return [(x, x[:, :3].argmax(1))]


def dead():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(model[0].bias, -100.0)
    return model


def test_a_healthy_network_passes_and_gives_its_diagnosis():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    assert assert_trainable(model, batches(), "cross_entropy", probe_steps=0).healthy


def test_a_failure_says_in_about_ten_lines_what_is_wrong_and_what_to_do():
    with pytest.raises(AssertionError) as raised:
        assert_trainable(dead(), batches(), "cross_entropy", probe_steps=0)
    lines = str(raised.value).splitlines()
    assert 4 <= len(lines) <= 13
    assert max(map(len, lines)) <= 130
    assert lines[0].startswith("Not ready to train")
    assert any("dead-units" in line for line in lines)
    assert any("→ theta0." in line for line in lines)
    assert "TARGET" not in str(raised.value)
    assert not raised.value.diagnosis.healthy


def test_findings_may_be_accepted_and_warnings_may_count():
    found = assert_trainable(dead(), batches(), "cross_entropy", fail_on="never", probe_steps=0)
    errors = {finding.code for finding in found.findings if finding.severity == "error"}
    assert errors
    assert_trainable(dead(), batches(), "cross_entropy", ignore=errors, probe_steps=0)
    with pytest.raises(ValueError, match="fail_on"):
        assert_trainable(dead(), batches(), "cross_entropy", fail_on="errors", probe_steps=0)


def test_adapters_are_thin():
    lengths = {
        path.name: len(path.read_text().splitlines()) for path in Path(integrations.__file__).parent.glob("*.py")
    }
    assert len(lengths) >= 4
    assert {name: length for name, length in lengths.items() if length >= 80} == {}


def test_the_fixture_is_the_function():
    assert assert_trainable_fixture.name == "assert_trainable"


def test_starting_pytest_does_not_import_torch():
    code = (
        "import sys; before = set(sys.modules); import theta0.integrations.testing\n"
        "heavy = {'torch', 'numpy', 'rich', 'matplotlib', 'jaxtyping'} & (set(sys.modules) - before)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_test_of_a_user_fails_with_that_text(pytester):
    pytester.makepyfile(
        """
        import torch
        from torch import nn

        def test_mine(assert_trainable):
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
            nn.init.constant_(model[0].bias, -100.0)
            assert_trainable(model, [(torch.randn(64, 8), torch.randint(3, (64,)))], "cross_entropy", probe_steps=0)
        """
    )
    installed = any(entry.value == "theta0.integrations.testing" for entry in entry_points(group="pytest11"))
    result = pytester.runpytest_subprocess(*([] if installed else ["-p", "theta0.integrations.testing"]), "-q")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*AssertionError: Not ready to train*"])
    assert "_stopping.py" not in result.stdout.str()
