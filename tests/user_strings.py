"""The sentences that users read: `python tests/user_strings.py` counts them, with `--list` it prints them.

Messages of errors and findings, the documentation of findings, the help of commands, the strings of reports, and the
docstrings of what `theta0` and its catalogues export.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "theta0"
FACES = ("cli", "reports", "diagnosis/rules", "explanation", "treatment", "comparison", "integrations")
Found = tuple[str, str, str]  # its kind, where it is, the text


def text_of(node: ast.AST) -> str:
    """The text of a string or of an f-string, with … for what is filled in; the empty string for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def is_sentence(text: str) -> bool:
    """Whether it is words for people: at least three, and not a format or a key."""
    return len(text.split()) >= 3 and any(character.isalpha() for character in text)


def user_strings(root: Path = ROOT) -> Iterator[Found]:
    """Every string that a user may read, with its kind and place."""
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        if name.startswith("papers/"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from _docstrings(tree, name)
        yield from _messages(tree, name)


def _docstrings(tree: ast.Module, name: str) -> Iterator[Found]:
    for node in tree.body:
        public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if public and not Path(name).name.startswith("_") and (doc := ast.get_docstring(node)):
            yield "docstring", f"{name}:{node.lineno}", doc


def _messages(tree: ast.Module, name: str) -> Iterator[Found]:
    docs = {id(node.body[0].value) for node in ast.walk(tree) if hasattr(node, "body") and _has_docstring(node)}
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    inner: set[int] = set()  # parts of what was yielded already
    for node in ast.walk(tree):
        if id(node) in inner or id(node) in docs or not isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            continue
        text = text_of(node)
        if is_sentence(text) and (id(node) in raised or name.startswith(FACES)):
            inner |= {id(part) for part in ast.walk(node)}
            yield "error" if id(node) in raised else "message", f"{name}:{node.lineno}", text


def _has_docstring(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


if __name__ == "__main__":
    found = list(user_strings())
    for kind, where, text in found if "--list" in sys.argv else ():
        print(f"{kind:<9} {where}: {' '.join(text.split())}")
    kinds = [kind for kind, _, _ in found]
    print(", ".join(f"{kinds.count(kind)} {kind}s" for kind in dict.fromkeys(kinds)), f"({len(found)} in all)")
