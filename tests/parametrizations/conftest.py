"""The parametrizations without run-time type checks, for tools that trace them."""

import importlib
import sys

import pytest

UNCHECKED = {}  # loaded by the first test that asks


def of_theta0():
    return [name for name in sys.modules if name.split(".")[0] == "theta0"]


@pytest.fixture
def unchecked_parametrizations(monkeypatch):
    """`theta0.parametrizations` from a load of its own, out of reach of the suite's run-time type checks."""
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "jaxtyping" not in type(f).__module__])
    for name in of_theta0():
        monkeypatch.delitem(sys.modules, name)
    sys.modules.update(UNCHECKED)
    yield importlib.import_module("theta0.parametrizations")
    for name in of_theta0():
        UNCHECKED[name] = sys.modules.pop(name)  # monkeypatch puts the checked ones back
