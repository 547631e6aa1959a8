"""What `make docs` makes from the code: the pages of the API and of the gallery, and the pictures of findings.

mkdocs calls `on_config` and `on_files` (see `mkdocs.yml`). Pictures take short training runs; they are kept in
build/docs by what they are made from, so that a second build makes only those whose code has changed.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "src")]

import gallery_pages  # noqa: E402  (found by the path above)
import pictures  # noqa: E402
from griffe_examples import formulas_as_code  # noqa: E402

from theta0._version import SITE, __version__  # noqa: E402
from theta0.diagnosis.rules import RULES  # noqa: E402

MODULES = (
    "theta0",
    "theta0.initializers",
    "theta0.parametrizations",
    "theta0.layers",
    "theta0.regularizers",
    "theta0.measurements",
    "theta0.curvature",
    "theta0.spectra",
    "theta0.theory",
    "theta0.diagnosis",
    "theta0.treatment",
    "theta0.explanation",
    "theta0.comparison",
    "theta0.experiments",
    "theta0.reports",
)
COPIED = {"changes.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "security.md": "SECURITY.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The site's address and version, and the pages that the navigation gets from the code."""
    config.site_url = SITE
    config.site_description = f"{config.site_description} Version {__version__}."
    added = {
        "Findings": [f"findings/{rule.code}.md" for rule in sorted(RULES, key=lambda rule: rule.code)],
        "Gallery": [f"gallery/{name}.md" for name in gallery_pages.NAMES],
        "API": [{name: f"api/{name}.md"} for name in MODULES],
    }
    for section in config.nav or []:
        for title, pages in section.items():
            pages.extend(added.get(title, [])) if isinstance(pages, list) else None
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made from the code."""
    made: dict[str, str | bytes] = {name: _copied(source) for name, source in COPIED.items()}
    made |= {"api/index.md": _api_index()} | {f"api/{name}.md": _api(name) for name in MODULES}
    made |= gallery_pages.made()
    made |= pictures.made()
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """A finding's page gets its picture behind its first paragraph."""
    folder, _, name = page.file.src_uri.partition("/")  # type: ignore[attr-defined]
    code = name.removesuffix(".md")
    if folder != "findings" or files.get_file_from_path(f"findings/{code}.svg") is None:
        return markdown
    figure = f"![{pictures.caption(code)}]({code}.svg)\n\n*{pictures.caption(code)}*\n\n"
    return markdown.replace("## Why it happens", figure + "## Why it happens", 1)


def on_page_content(html: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """In running text an option stays on one line: a browser would break `--out` behind its dashes."""
    parts = re.split(r"(<pre.*?</pre>)", html, flags=re.DOTALL)  # every second one is a block of code
    parts[::2] = [re.sub(r"<code>.*?</code>", _unbroken, part, flags=re.DOTALL) for part in parts[::2]]
    return "".join(parts)


def _unbroken(code: re.Match[str]) -> str:
    return re.sub(r"(?<![\w-])--\w[\w-]*", r'<span class="option">\g<0></span>', code.group())


def _copied(source: str) -> str:
    return (ROOT / source).read_text(encoding="utf-8").replace("(docs/", "(")


def _exported(module: str) -> list[tuple[str, object]]:
    """Functions and classes that a module exports, functions first."""
    found = importlib.import_module(module)
    names = [name for name in found.__all__ if not name.startswith("__")]
    objects = [(name, getattr(found, name)) for name in names]
    kinds: tuple[Callable[[object], bool], ...] = (inspect.isfunction, inspect.isclass)
    return [pair for kind in kinds for pair in objects if kind(pair[1])]


def _api(module: str) -> str:
    summary = inspect.cleandoc(importlib.import_module(module).__doc__ or "").partition("\n\n")[0]
    return f"# {module}\n\n{summary}\n\n" + "\n".join(_entry(module, *pair) for pair in _exported(module))


def _entry(module: str, name: str, found: object) -> str:
    """An exported object by where it is defined, on the page of the first module that exports it.

    `name_` is described by the function that it is the public form of.
    """
    first = next(other for other in MODULES if any(one is found for _, one in _exported(other)))
    if first != module:
        return f'<a id="{module}.{name}"></a>\n\n`{name}`: see [{first}.{name}]({first}.md#{first}.{name}).\n'
    home, defined = found.__module__, getattr(found, "__wrapped__", found).__name__  # type: ignore[attr-defined]
    heading = f"    options:\n      heading: {name}\n      toc_label: {name}\n"
    return f'<a id="{module}.{name}"></a>\n\n::: {home}.{defined}\n{heading}'


def _api_index() -> str:
    parts = ["# API\n\nEvery public function, with an example that runs in the tests."]
    for module in MODULES:
        functions = [(name, found) for name, found in _exported(module) if inspect.isfunction(found)]
        lines = [f"* [`{name}`]({module}.md#{module}.{name}): {_summary(found)}" for name, found in functions]
        parts += [f"## {module}", "\n".join(lines) or f"Classes and results: [{module}]({module}.md)."]
    return "\n\n".join(parts) + "\n"


def _summary(found: object) -> str:
    return formulas_as_code(inspect.cleandoc(found.__doc__ or "").partition("\n")[0])
