"""The house rules that no linter checks: length of functions, public names, examples that run."""

import ast
import doctest
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import theta0
from user_strings import user_strings

ROOT = Path(theta0.__file__).parent
SOURCES = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
ADAPTERS = {
    "theta0.integrations.lightning",
    "theta0.integrations.huggingface",
}  # need what they adapt to; see their tests


@functools.cache
def trees():
    return {name: ast.parse(source) for name, source in SOURCES.items()}


@functools.cache
def modules():
    return sorted({m.name for m in pkgutil.walk_packages([str(ROOT)], "theta0.")} - ADAPTERS)


def length_of_body(function):
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_at_most_fourteen_private_modules_stand_at_the_top_and_one_class_intercepts_functions():
    private = {path.name for path in ROOT.iterdir() if path.name.startswith("_") and path.suffix in ("", ".py")}
    private -= {"__init__.py", "__main__.py", "__pycache__", "_version.py"}
    assert len(private) <= 14, sorted(private)
    modes = [name for name, text in SOURCES.items() if re.search(r"^class .*Torch(Function|Dispatch)Mode", text, re.M)]
    assert modes == ["_trace/interpreter.py"]


def test_a_function_body_has_at_most_40_lines():
    lengths = {
        f"{name}: {node.name}": length_of_body(node)
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > 40} == {}


def test_files_and_public_functions_and_classes_have_docstrings():
    public = {
        f"{name}: {node.name}": node
        for name, tree in trees().items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    assert [name for name, node in (trees() | public).items() if not ast.get_docstring(node)] == []


def test_names_say_something():
    empty = ("utils", "core", "base", "common", "manager", "helpers", "misc")
    assert [name for name in SOURCES if Path(name).stem in empty] == []


def test_nothing_in_the_library_draws_from_a_global_generator():
    """Global generators are seeded only where `preserve_randomness` puts the state back, and never drawn from."""
    draws = ("np.random.rand", "random.random(", "random.shuffle(")
    assert [(name, call) for name, source in SOURCES.items() for call in draws if call in source] == []
    own = "cli/options.py"  # a command's process is its own, and --seed asks for it
    seeding = {name: source for name, source in SOURCES.items() if "random.seed(" in source and not name.endswith(own)}
    assert [name for name, source in seeding.items() if "with preserve_randomness()" not in source] == []


def test_the_table_of_contents_resolves():
    for name in theta0.__all__:
        assert getattr(theta0, name) is not None
    assert set(theta0.__all__) <= set(dir(theta0))
    with pytest.raises(AttributeError, match="no attribute 'cure'"):
        theta0.cure  # noqa: B018


def test_exported_names_resolve_and_are_documented():
    exported = {
        f"{name}.{public}": getattr(module, public)
        for name in modules()
        for module in [importlib.import_module(name)]
        for public in getattr(module, "__all__", [])
    }
    callables = {name: found for name, found in exported.items() if inspect.isfunction(found) or inspect.isclass(found)}
    assert callables
    assert [name for name, found in callables.items() if not found.__doc__] == []


def test_exported_functions_say_what_they_return():
    exported = {
        f"{name}.{public}": getattr(module, public)
        for name in modules()
        for module in [importlib.import_module(name)]
        for public in getattr(module, "__all__", [])
    }
    silent = []
    for name, found in exported.items():
        if inspect.isfunction(found) and inspect.signature(found).return_annotation is not None:
            doc = inspect.getdoc(found)
            if len(doc.splitlines()) > 1 and "Returns:\n" not in doc and "Yields:\n" not in doc:
                silent.append(name)
    assert silent == []


def test_every_public_function_has_an_example():
    """What `theta0` and its catalogues export; experiments of the papers are run by name."""
    names = [name for name in modules() if not name.startswith(("theta0.papers", "theta0.cli")) and "._" not in name]
    exported = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in [theta0, *map(importlib.import_module, names)]
        for name in getattr(module, "__all__", [])
    }
    functions = {name: found for name, found in exported.items() if inspect.isfunction(found)}
    assert len(functions) > 100
    assert [name for name, function in functions.items() if ">>> " not in function.__doc__] == []


@pytest.mark.slow
def test_examples_in_docstrings_run():
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = {name: doctest.testmod(importlib.import_module(name), optionflags=options) for name in modules()}
    assert sum(result.attempted for result in results.values()) > 0
    assert {name: result.failed for name, result in results.items() if result.failed} == {}


# Words that English documentation of the field does not use; each of them was found here, as a translation's.
QUAINT = re.compile(
    r"\b(mend(s|ed|ing)?|bears?|borne|amiss|blam(e|ed|es)|guess(es|ed)?|hitherto|told(?! apart))\b", re.IGNORECASE
)
# In what a message, a report, an error or a finding's page says, these too (CONTRIBUTING, Language).
STILTED = re.compile(
    r"\b(for ever|by heart|anew|next to (no|nothing)|puts? out|thereof|therein|wherein|leaves with|summands?|crawls?"
    r"|memory as it was|fit to train|no sample gets|look whether|learnt|(initial|normal|regular|memor)is(es?|ed|ation)"
    r"|(behavi|fav)our\w*)\b",
    re.IGNORECASE,
)


def test_texts_are_plain_english():
    texts = {
        f"{name}:{node.lineno}": node.value
        for name, tree in trees().items()
        if not name.startswith("papers/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    root = ROOT.parents[1]
    texts |= {path.name: path.read_text() for path in [*(root / "docs").rglob("*.md"), root / "README.md"]}
    found = {where: match.group() for where, text in texts.items() if (match := QUAINT.search(text))}
    assert found == {}


def test_sentences_for_users_are_plain_english():
    found = [(kind, where, text) for kind, where, text in user_strings() if kind != "docstring"]
    assert len(found) > 1000
    root = ROOT.parents[1]
    pages = [*(root / "docs").rglob("*.md"), root / "README.md", root / "CHANGELOG.md", root / "SECURITY.md"]
    texts = [(where, text) for _, where, text in found] + [(path.name, path.read_text()) for path in pages]
    assert [(where, match.group()) for where, text in texts if (match := STILTED.search(text))] == []


def test_the_version_is_the_same_wherever_it_stands():
    root, version = ROOT.parents[1], theta0.__version__
    release, _, development = version.partition(".dev")
    heading = re.search(r"^## (.*)", (root / "CHANGELOG.md").read_text(), re.MULTILINE).group(1)
    assert heading.split()[0] == release
    assert ("(unreleased)" in heading) is bool(development)
    assert f'\nversion: "{version}"\n' in (root / "CITATION.cff").read_text()


def test_what_belongs_to_an_item_of_a_list_is_indented_by_four():
    """By fewer, the site ends the list there, and joins its further items to a paragraph."""
    root = ROOT.parents[1]
    torn = []
    for path in [*(root / "docs").rglob("*.md"), root / "CONTRIBUTING.md", root / "CHANGELOG.md"]:
        prose = re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        torn += [(path.name, match.group(1)) for match in re.finditer(r"\n\n {1,3}([^ \n].*)", prose)]
        joined = re.finditer(r"\n\n    [^\n|]+(?:\n[^\n]+)*?\n((?:\d+\.|\*) [^\n]*)", prose)  # to a paragraph before it
        torn += [(path.name, match.group(1)) for match in joined]
    assert torn == []
