"""Benchmarks are run by hand, so that what they import of the library is looked up here."""

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(script):
    nodes = [n for n in ast.walk(ast.parse(script.read_text())) if isinstance(n, ast.ImportFrom) and not n.level]
    for node in nodes:
        if (node.module or "").split(".")[0] == "theta0":
            module = importlib.import_module(node.module)
            missing = [a.name for a in node.names if not hasattr(module, a.name)]
            for name in missing:
                importlib.import_module(f"{node.module}.{name}")
