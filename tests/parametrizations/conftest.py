"""The parametrizations without run-time type checks, for tools that trace them."""

import importlib
import sys

import pytest


@pytest.fixture
def unchecked_parametrizations(monkeypatch):
    """`theta0.parametrizations` from a fresh load, out of reach of the suite's run-time type checks."""
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if "jaxtyping" not in type(f).__module__])
    for name in [name for name in sys.modules if name.split(".")[0] == "theta0"]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("theta0.parametrizations")
    for name in [name for name in sys.modules if name.split(".")[0] == "theta0"]:
        del sys.modules[name]  # monkeypatch puts the checked ones back
