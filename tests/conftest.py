"""What all tests share: one thread, a sample of the matrices in the gate, and on request checks of shapes."""

import gc
import importlib.util
import random
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import settings
from jaxtyping import config as shapes
from jaxtyping import install_import_hook

# theta0's own pytest plugin loads these when pytest starts; no signature in them states a shape.
PLUGIN = {"theta0._records", "theta0._version", "theta0.integrations", "theta0.integrations.testing"}
assert not any(name.startswith("theta0.") for name in sys.modules.keys() - PLUGIN), (
    "theta0 was imported before its signatures are checked"
)
with mock.patch("random.getrandbits", random.Random(0).getrandbits):
    import beartype.door  # noqa: F401 - its spot checks then draw from a generator of their own, not from the global one
HOME = Path(importlib.util.find_spec("theta0").origin).parent
torch.set_num_threads(1)
settings.register_profile("suite", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("suite")


def pytest_addoption(parser):
    """`--shapes`: as `make test-all` does."""
    parser.addoption(
        "--shapes", action="store_true", help="check the shapes in signatures at every call (a third more time)"
    )


def pytest_configure(config):
    """Signatures that state shapes are checked at run time, where asked for."""
    if config.getoption("--shapes"):
        paths = [path for path in sorted(HOME.rglob("*.py")) if "from jaxtyping import" in path.read_text()]
        names = [".".join(("theta0", *path.relative_to(HOME).with_suffix("").parts)) for path in paths]
        install_import_hook([name.removesuffix(".__init__") for name in names], "beartype.beartype")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test's cases eight, or the n of its mark `sampled(n)`, stay in the gate, spread evenly; others are slow."""
    cases = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        asked = found[0].get_closest_marker("sampled")
        most = min(asked.args[0] if asked else 8, len(found))
        kept = {(2 * k + 1) * len(found) // (2 * most) for k in range(most)}
        for number, item in enumerate(found):
            if number not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """What was imported and collected, a million objects, is out of the way of every later garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def unchecked():
    """Lets arguments of a wrong type through to the library's own checks, as they come from a user."""
    shapes.update("jaxtyping_disable", True)
    yield
    shapes.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _quiet_flush():
    """No test leaves flush-denormal on, or another default dtype, for the next one."""
    yield
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)
