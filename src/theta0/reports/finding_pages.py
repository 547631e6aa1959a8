"""The pages of findings, written from their rules: `python -m theta0.reports.finding_pages FOLDER`."""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

from theta0.diagnosis.documentation import PRELUDE, documentation, overview
from theta0.diagnosis.rule import Rule
from theta0.diagnosis.rules import RULES
from theta0.reports.sources import named_in

_INDEX = f"""
# Findings

What `theta0 diagnose` can report. Each code has a page: what it means, why it happens, how to fix it, when to ignore
it, and the threshold with its source. The same page is shown in the terminal by `theta0 help CODE`.

* **Severity.** `error`: the network will not train, or what it learns is wrong. `warning`: it will train badly. `note`:
  worth knowing.
* **Order.** Errors come before warnings and notes; among these, causes come before their consequences. A consequence is
  listed in one line under its cause. So fix the first finding, then diagnose again.
* **Place.** A finding names the layer where the problem begins, the operation, and the line of your program where it is
  known.
* **Thresholds.** Each page says from which number on a finding is an error, a warning or a note, and where that number
  comes from: a publication, measurements ([which](../thresholds.md)), or *judgement*, which is neither.

The examples on these pages run after the following lines. Then `theta0.diagnose(model, batches, loss)`, with
`optimizer=`, `learning_rate=` or `observed=` where an example sets them, reports the finding, or does not, as the
page says:

```python
{PRELUDE}
```

{{overview}}

You can add [a rule of your own](../own-rules.md).
"""


def finding_page(code: str, rules: Sequence[Rule] = RULES) -> str:
    """What is known of a finding's code, in Markdown, with a link to every publication that it names.

    Args:
        code: of the finding.
        rules: where it is looked up.

    Returns:
        The page.

    Raises:
        ValueError: if no rule has the code.

    Example:
        >>> "[Lu et al. (2020)](https://arxiv.org/abs/1903.06733)" in finding_page("dead-units")
        True
    """
    page, heading, related = documentation(code, rules).partition("## Related findings")
    return _linked(page) + heading + re.sub(r"`([a-z-]+)`", r"[`\1`](\1.md)", related)


def finding_index(rules: Sequence[Rule] = RULES) -> str:
    """The page that lists all findings, in Markdown.

    Returns:
        The page.
    """
    listed = re.sub(r"^\* `([a-z-]+)`", r"* [`\1`](\1.md)", overview(rules), flags=re.MULTILINE)
    return _INDEX.lstrip().format(overview=listed)


def finding_pages(rules: Sequence[Rule] = RULES) -> dict[str, str]:
    """Every page of findings by the name of its file.

    Returns:
        Name to text.
    """
    return {"index.md": finding_index(rules)} | {f"{rule.code}.md": finding_page(rule.code, rules) for rule in rules}


def _linked(page: str) -> str:
    """Publications become links, except within code."""
    pieces = re.split(r"(```.*?```|`[^`\n]+`)", page, flags=re.DOTALL)  # code is every second piece
    return "".join(p if code else "".join(_links(p)) for p, code in zip(pieces, cycle((False, True)), strict=False))


def _links(text: str) -> Iterator[str]:
    for piece, source in named_in(text):
        yield f"[{piece}]({source.link})" if source is not None and source.link else piece


def _write(folder: Path) -> None:
    pages = finding_pages()
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
