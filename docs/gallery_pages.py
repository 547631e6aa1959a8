"""The gallery: real failures from `examples/gallery`, each with its report and its losses before and after the fix.

Each script is a training script with the fault, which `--fixed` leaves out. Its docstring is the page: a title, and
paragraphs that begin with `Symptom:`, `Cause:` and `Fix:`.
"""

import ast
import hashlib
import html
import io
import os
import subprocess
import sys
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
FOLDER, CACHE = ROOT / "examples" / "gallery", ROOT / "build" / "docs"
_SOURCES = "\0".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.py")))


def made() -> dict[str, str | bytes]:
    """Every page and picture by its path in the site."""
    pages: dict[str, str | bytes] = {"gallery/index.md": _index()}
    for name in NAMES:
        pages[f"gallery/{name}.md"] = _page(name)
        pages[f"gallery/{name}.svg"] = _curves(name)
    return pages


def report(script: Path, *arguments: str) -> str:
    """What `theta0 diagnose` prints for a script, as preformatted HTML.

    Raises:
        RuntimeError: if it could not be diagnosed.
    """
    command = ["-m", "theta0", "diagnose", script.name, *(["--", *arguments] if arguments else [])]
    text, code = _run(command, script)
    if code not in (0, 1):
        raise RuntimeError(f"{script}: theta0 diagnose leaves with {code}")
    return f'<pre class="report">{html.escape(text.rstrip())}</pre>'


def _run(command: list[str], script: Path) -> tuple[str, int]:
    """Standard output and exit code, kept by the script and, where it takes part, by the code of theta0."""
    source = script.read_text()
    theta0 = _SOURCES if "theta0" in command or "import theta0" in source else ""
    key = hashlib.sha256("\0".join([*command, source, theta0]).encode())
    stored = CACHE / f"{script.stem}-{key.hexdigest()[:16]}.txt"
    if not stored.is_file():
        env = os.environ | {"COLUMNS": "84", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *command], cwd=script.parent, env=env, capture_output=True, text=True, timeout=600
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{script}: {' '.join(command)} leaves with {done.returncode}\n{done.stderr}")
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(f"{done.returncode}\n{done.stdout}", encoding="utf-8")
    code, _, text = stored.read_text(encoding="utf-8").partition("\n")
    return text, int(code)


def _parts(name: str) -> dict[str, str]:
    """The title and the paragraphs of a script's docstring."""
    doc = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
    title, *paragraphs = doc.split("\n\n")
    parts = dict(paragraph.split(": ", 1) for paragraph in paragraphs)
    return {"Title": title} | {name: text[0].upper() + text[1:] for name, text in parts.items()}


def _page(name: str) -> str:
    script = FOLDER / f"{name}.py"
    parts = _parts(name)
    code = script.read_text().split('"""', 2)[2].strip()  # behind the docstring
    return f"""# {parts["Title"]}

## Symptom

{parts["Symptom"]}

## What theta0 reports

`theta0 diagnose {name}.py`:

{report(script)}

## Cause

{parts["Cause"]}

## Fix

{parts["Fix"]}

![The loss of {name}.py before and after the fix]({name}.svg)

With the fix (`theta0 diagnose {name}.py -- --fixed`):

{report(script, "--fixed")}

## The script

```python title="examples/gallery/{name}.py"
{code}
```
"""


def _index() -> str:
    rows = [f"| [{(p := _parts(name))['Title']}]({name}.md) | {p['Symptom']} |" for name in NAMES]
    rows = [row.replace("\n", " ") for row in rows]
    head = (
        "# Gallery\n\nTen failures as they happen, each a training script of about forty lines: what you see, what "
        "theta0 reports, the cause, the fix, and the loss before and after it. The scripts are in `examples/gallery`; "
        "each runs in seconds. Two notebooks are in `examples/notebooks`: `diagnose_and_treat.ipynb`, and "
        "`rates_and_races.ipynb` on learning rates and races of starts.\n\n| failure | symptom |\n| --- | --- |\n"
    )
    return head + "\n".join(rows) + "\n"


def _curves(name: str) -> str:
    script = FOLDER / f"{name}.py"
    figure = Figure(figsize=(5.2, 2.1), layout="constrained")
    for axes, more, title, colour in zip(
        figure.subplots(1, 2), ([], ["--fixed"]), ("before", "after the fix"), ("#b3261e", "#1b6e3c"), strict=True
    ):
        losses = [float(line.split()[1]) for line in _run([script.name, *more], script)[0].splitlines()]
        finite = [value for value in losses if abs(value) < 1e30]
        axes.plot(losses, color=colour, linewidth=1.6)
        axes.set(title=title, xlabel="step", ylabel="loss", xlim=(0, len(losses)))
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter("{x:g}")
        if len(finite) < len(losses):
            axes.axvline(len(finite), color=colour, linestyle=":")
            axes.text(0.5, 0.5, f"NaN from step {len(finite)} on", transform=axes.transAxes, ha="center", color=colour)
            axes.plot(0, losses[0], "o", color=colour)
        elif finite and max(finite) > 100 * min(finite) > 0:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, max(finite) * 1.1)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
