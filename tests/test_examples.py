"""The examples are what they say, and looking at them leaves them as they were."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import theta0
from states import randomness, state_of
from theta0.diagnosis import diagnose
from theta0.targets import load_target

SCRIPTS = {"ddp", "cluster"}  # ddp: run by torchrun, in tests/test_ranks.py and .ci/run
EXAMPLES = sorted(p for p in (Path(__file__).parent.parent / "examples").glob("*.py") if p.stem not in SCRIPTS)
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


DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.slow
def test_the_quickstart_shows_its_script_and_what_is_printed_for_it():
    """But for digits, which depend on the processor."""
    page, script = (DOCS / "quickstart.md").read_text(), (DOCS / "train.py").read_text()
    assert script in page
    fixed = script.replace("(model(x[i : i + 32]) -", "(model(x[i : i + 32]).squeeze(-1) -")
    assert fixed != script
    assert fixed.partition("    loss = ")[2].partition("\n")[0] in page
    command = [sys.executable, "-m", "theta0", "diagnose", "train.py"]
    environment = os.environ | {"COLUMNS": "84", "PYTHONPATH": str(Path(theta0.__file__).parents[1])}
    done = subprocess.run(command, cwd=DOCS, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    printed = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    shown = page.partition("```text\n")[2].partition("\n```")[0].splitlines()
    assert [without_numbers(line) for line in printed] == [without_numbers(line) for line in shown]


def without_numbers(line: str) -> list[str]:
    return re.sub(r"[0-9.]+(e-?[0-9]+)?", "0", line).split()


GALLERY = {
    "detached_features": "gradient-cut",
    "house_prices": "target-scale",
    "labels_shuffled_apart": "no-signal",
    "layers_in_a_list": "unregistered-parameters",
    "loss_stays_at_ln_10": "activation-shift",
    "nan_after_one_step": "non-finite",
    "predicts_the_mean": "broadcast-loss",
    "residual_explodes": "exploding-activations",
    "softmax_twice": "squashed-output",
    "transformer_mixes_samples": "mixed-samples",
}


def test_the_gallery_is_complete():
    folder = Path(__file__).parent.parent / "examples" / "gallery"
    assert sorted(path.stem for path in folder.glob("*.py")) == sorted(GALLERY)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", GALLERY)
def test_a_failure_of_the_gallery_is_found_and_its_fix_fixes_it(name):
    script = Path(__file__).parent.parent / "examples" / "gallery" / f"{name}.py"
    failing, fixed = (theta0.capture(script, argv=argv).arguments for argv in ([], ["--fixed"]))
    assert diagnose(**failing).findings[0].code == GALLERY[name]
    assert [f for f in diagnose(**fixed).findings if f.severity == "error"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_race_on_a_local_cluster(backend, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    path = Path(__file__).parent.parent / "examples" / "cluster.py"
    elsewhere = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}  # a local one is asked for, whatever the environment names
    call = [sys.executable, path, backend]
    run = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False, env=elsewhere)
    assert run.returncode == 0, run.stderr
    assert "lcw" in run.stdout
