"""Examples as griffe reads them: a section `Examples:`, also for doctests that end a docstring without a heading."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Give the examples of an object their section."""
        if obj.docstring is not None:
            obj.docstring.value = sectioned(obj.docstring.value)


def formulas_as_code(doc: str) -> str:
    """Formulas as they are written: a site without scripts cannot set them."""
    return re.sub(r"\$([^$\n]+)\$", r"`\1`", doc)


def sectioned(doc: str) -> str:
    """A docstring whose examples are in a section of their own."""
    doc = formulas_as_code(doc)
    lines: list[str] = []
    inside = False  # of a doctest without a heading
    for line in doc.splitlines():
        if line.startswith(">>> ") and not inside:
            lines.append("Examples:")
            inside = True
        inside = inside and bool(line)
        lines.append("Examples:" if line == "Example:" else f"    {line}" if inside else line)
    return "\n".join(lines)
