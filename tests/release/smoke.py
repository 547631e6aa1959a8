"""What a user of the released package meets, run by the Python of a fresh environment, outside the checkout.

`make smoke` builds the source archive and from it the wheel, installs the wheel alone, without extras, and runs
`python -P smoke.py ARCHIVE` in an empty folder.
"""

import doctest
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Callable
from importlib import metadata, resources
from pathlib import Path

QUICKSTART = """
import torch, theta0
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(20) for part in (nn.Linear(64, 64), nn.Sigmoid())]
model = nn.Sequential(*layers, nn.Linear(64, 10))
x, rule = torch.randn(1024, 64), torch.randn(64, 10)
batches = list(zip(x.split(128), (x @ rule).argmax(1).split(128)))
diagnosis = theta0.diagnose(model, batches, "cross_entropy")
print(diagnosis)
assert not diagnosis.healthy
assert theta0.treat(model, batches, "cross_entropy", steps=30).kept
"""

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(256, 8)
y = x.sum(1)
for epoch in range(20):
    for i in range(0, 256, 32):
        optimizer.zero_grad()
        loss = ((model(x[i : i + 32]) - y[i : i + 32]) ** 2).mean()  # (32, 1) against (32,)
        loss.backward()
        optimizer.step()
"""

EXAMPLES = {
    "deep_relu": 1,
    "deep_sigmoid": 1,
    "residual_no_norm": 1,
    "healthy_mlp": 0,
    "healthy_cnn": 0,
    "transformer": 0,
}


def theta0(*arguments: str, expected: int = 0, stdin: str | None = None) -> str:
    """Run the command line in a process and hold its exit code."""
    command = [sys.executable, "-P", "-m", "theta0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, input=stdin)
    if done.returncode != expected:
        raise AssertionError(
            f"theta0 {' '.join(arguments)}: exit code {done.returncode}, not {expected}\n{done.stdout}\n{done.stderr}"
        )
    return done.stdout + (done.stderr if expected == 2 else "")


def it_is_the_wheel() -> None:
    """The package comes from this environment, nothing from a checkout, and no extra is there."""
    import theta0 as package

    assert Path(package.__file__).is_relative_to(sys.prefix), package.__file__
    found = metadata.metadata("theta0")
    assert found["Version"] == package.__version__
    for absent in ("sklearn", "joblib", "pytest", "lightning", "transformers"):
        assert importlib.util.find_spec(absent) is None, f"{absent} is installed: this is not the package alone"
    assert theta0("--version").strip() == package.__version__


def the_pages_are_in_it() -> None:
    """Every finding's page, the schema and the types' marker."""
    codes = [line.split("•")[1].split(":")[0].strip() for line in theta0("help").splitlines() if "•" in line]
    assert len(codes) > 30, codes
    for code in (codes[0], codes[-1], "dead-units"):
        assert "When to ignore it" in theta0("help", code)
    package = resources.files("theta0")
    assert json.loads(package.joinpath("reports/diagnosis.schema.json").read_text())
    assert package.joinpath("py.typed").is_file()


def the_examples_run(folder: Path) -> None:
    """All of them, without an extra; the report of one treatment is written."""
    for name, expected in EXAMPLES.items():
        found = json.loads(theta0("diagnose", f"{folder}/{name}.py", "--json", expected=expected))
        assert bool(found["findings"]) >= bool(expected)
    theta0("treat", f"{folder}/deep_sigmoid.py", "--steps", "40", "--out", "start.safetensors", "--html", "report.html")
    assert Path("start.safetensors").stat().st_size > 1000
    assert "<svg" in Path("report.html").read_text()


def a_script_runs_as_it_is() -> None:
    """A training script with a fault is diagnosed, and its line is named."""
    Path("train.py").write_text(SCRIPT)
    report = theta0("diagnose", "train.py", expected=1)
    assert "broadcast-loss" in report
    assert "expected" in theta0("diagnose", "missing.py", expected=2)


def every_verb_runs(folder: Path) -> None:
    """With small budgets."""
    healthy = f"{folder}/healthy_mlp.py"
    assert json.loads(theta0("rate", healthy, "--json"))["learning_rate"]["proven"]
    theta0("explain", healthy, "--gradients", "60")
    theta0("compare", healthy, "--starts", "default,unit-variance", "--steps", "20", "--seeds", "1")
    theta0("spectrum", healthy, "--steps", "5", "--points", "16")
    assert "pip install 'theta0[papers]'" in theta0(
        "reproduce", "furusho2020thesis", "fig15", "--dataset", "digits", expected=2
    )
    env = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "theta0", "--show-completion", "bash"], capture_output=True, text=True, env=env
    )
    assert "complete" in shown.stdout, shown


def the_library_runs() -> None:
    """The README's example, and every example of a docstring that needs no extra."""
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", QUICKSTART], check=True, stdout=subprocess.DEVNULL)
    import theta0 as package

    left_out = ("theta0.papers", "theta0.integrations", "theta0.__main__")
    names = [m.name for m in pkgutil.walk_packages(package.__path__, "theta0.") if not m.name.startswith(left_out)]
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    with warnings.catch_warnings(action="error"):
        results = {name: doctest.testmod(importlib.import_module(name), optionflags=options) for name in names}
    assert sum(result.attempted for result in results.values()) > 50
    assert [name for name, result in results.items() if result.failed] == []


def main(archive: str) -> None:
    """Unpack the examples of the source archive here and run everything."""
    with tarfile.open(archive) as packed:
        packed.extractall(".", filter="data")
    (folder,) = (path / "examples" for path in Path().iterdir() if path.is_dir())
    checks: list[Callable[[], None]] = [
        it_is_the_wheel,
        the_pages_are_in_it,
        lambda: the_examples_run(folder),
        a_script_runs_as_it_is,
        lambda: every_verb_runs(folder),
        the_library_runs,
    ]
    names = ("wheel", "pages", "examples", "script", "verbs", "library")
    for name, check in zip(names, checks, strict=True):
        check()
        print(f"smoke: {name} ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
