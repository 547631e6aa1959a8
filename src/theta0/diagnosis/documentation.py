"""The documentation of findings, written from their rules."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from inspect import cleandoc

from theta0.diagnosis.rule import Rule
from theta0.diagnosis.rules import RULES

PRELUDE = """
import torch
from torch import nn
from theta0.diagnosis import ObservedTraining

torch.manual_seed(2)
inputs = torch.randn(64, 8)
targets = inputs[:, :3].argmax(1)  # three classes
batches, loss = [(inputs, targets)], "cross_entropy"
""".strip()

_LOADED = """
The new weights are in the file, your script is as it was. Load them before the first step:
`theta0.load_start_(model, "start.safetensors")`.
""".strip()


def documentation(code: str, rules: Sequence[Rule] = RULES) -> str:
    """What is known of a finding's code, as a page in Markdown.

    Args:
        code: of the finding; upper case and underscores are accepted.
        rules: where it is looked up.

    Returns:
        The page, from its heading on.

    Raises:
        ValueError: if no rule has the code.

    Example:
        >>> print(documentation("unused-parameters").partition("## Why")[0])
        # unused-parameters
        <BLANKLINE>
        The parameters belong to the model and the optimizer holds them, but they have no effect on the loss. They are
        never trained.
        <BLANKLINE>
    """
    by_code, wanted = {rule.code: rule for rule in rules}, code.lower().replace("_", "-")
    if wanted not in by_code:
        near = get_close_matches(wanted, by_code, n=3)
        meant = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(by_code)}"
        raise ValueError(f"code: expected a finding's code, got {code!r}; {meant}")
    rule = by_code[wanted]
    doc, sections = rule.doc, [f"# {rule.code}", _text(rule.doc.meaning)]
    sections += [_section("Why it happens", _text(doc.why)), _section("An example", _example(rule))]
    sections += [_section("How to fix it", _fix(rule)), _section("When to ignore it", _text(doc.ignore))]
    sections += [_section("What is measured, and the threshold", _numbers(rule))]
    sections += [_section("Related findings", _relations(rule, rules))]
    return "\n\n".join(section for section in sections if section) + "\n"


def overview(rules: Sequence[Rule] = RULES) -> str:
    """Every code with what it means, as Markdown.

    Returns:
        A list.
    """
    return "\n".join(f"* `{rule.code}`: {_text(rule.doc.meaning).partition('. ')[0].rstrip('.')}." for rule in rules)


def _text(text: str) -> str:
    return cleandoc(text).strip()


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _code(title: str, text: str) -> str:
    return f"{title}\n\n```python\n{_text(text)}\n```" if text else ""


def _fix(rule: Rule) -> str:
    """In Python, on the command line, and what `treat` tries."""
    command = _text(rule.doc.command)
    explained = " (the initial weights)" if rule.fault == "the start" else ""
    parts = [
        f"What has to be changed: {rule.fault}{explained}.",
        _code("In Python, for the example above:", rule.doc.fix),
    ]
    if "`theta0 " in command:
        parts += [f"On the command line: {command}", _LOADED if "--out" in command else ""]
    else:
        parts += [f"`theta0 treat` cannot fix this: {command}" if command else ""]
    tried = ", ".join(f"`{name}`" for name in rule.remedies)
    parts += [f"`theta0 treat` without `--with` tries these remedies: {tried}." if tried else ""]
    return "\n\n".join(part for part in parts if part)


def _example(rule: Rule) -> str:
    """A network that has the finding, and one like it that has not."""
    parts = [_code("This has the finding:", rule.doc.ill), _code("This does not:", rule.doc.healthy)]
    return "\n\n".join(part for part in parts if part)


def _numbers(rule: Rule) -> str:
    """The thresholds, one item for each quantity, and how they were measured."""
    rows = [
        f"* {quantity[0].upper()}{quantity[1:]}.\n    * Threshold: {threshold}.\n    * Source: {source}."
        for quantity, threshold, source in rule.doc.numbers
    ]
    return "\n\n".join(part for part in ("\n".join(rows), _text(rule.doc.measured)) if part)


def _relations(rule: Rule, rules: Sequence[Rule]) -> str:
    """What it follows from, and what follows from it."""
    brought_by = _listed(other.code for other in rules if rule.code in other.brings)
    brings = _listed(rule.brings)
    before = f"It may follow from these; then fix them first, and it is reported under them: {brought_by}."
    after = f"These may follow from it; where they do, they are reported under it: {brings}."
    return "\n\n".join(
        (
            before if brought_by else "It follows from no other finding.",
            after if brings else "No other finding follows from it.",
        )
    )


def _listed(codes: Iterable[str]) -> str:
    return ", ".join(f"`{code}`" for code in sorted(codes))
