"""Which line of a script trains again behind the loop in which it was stopped: read from its source, not run."""

import ast
from pathlib import Path
from types import TracebackType

from theta0._trace.source import Source


def later_training(path: Path, stopped: TracebackType | None) -> Source | None:
    """The first statement behind the stopped loop that trains.

    From the script's top level inwards, a frame's statements behind the one that runs come later, until one that runs
    is a loop: what stands in a loop belongs to it. A statement trains where it calls `backward`, or a function or
    method of the script that does, directly or through others; or what the stopped line
    itself calls, where a library trains.

    Args:
        path: the script.
        stopped: the traceback of what stopped it.

    Returns:
        The line; None where nothing trains later, or it is not seen.
    """
    text = path.read_text(errors="replace")
    tree = ast.parse(text)
    training = _training_functions(tree)
    lines = _lines_of(path, stopped)
    for line in lines:
        body = _body_around(tree, line)
        current = next((i for i, s in enumerate(body) if s.lineno <= line <= (s.end_lineno or s.lineno)), None)
        if current is None:
            return None
        if line == lines[-1]:  # a library trains
            training |= {_called(n) for n in _outer_calls(body[current])}
        later = next((s for s in body[current + 1 :] if _trains(s, training)), None)
        if later is not None:
            first = _first_call(later, training)
            return Source(f"{path.name}:{first}", text.splitlines()[first - 1].strip())
        if any(isinstance(part, (ast.For, ast.While)) for part in _around(body[current], line)):
            return None
    return None


def _lines_of(path: Path, stopped: TracebackType | None) -> list[int]:
    """The line at which each frame of the script stands, the outermost first."""
    lines = []
    while stopped is not None:
        if stopped.tb_frame.f_code.co_filename == str(path):
            lines.append(stopped.tb_lineno)
        stopped = stopped.tb_next
    return lines


def _body_around(tree: ast.Module, line: int) -> list[ast.stmt]:
    """The statements of the innermost function around a line, or of the module, with those behind an `if` or `with`."""
    body: list[ast.stmt] = tree.body
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = [f for f in functions if f.lineno <= line <= (f.end_lineno or f.lineno)]
    if inside:
        body = max(inside, key=lambda f: f.lineno).body
    while True:
        around = [s for s in body if s.lineno <= line <= (s.end_lineno or s.lineno)]
        if not around or not isinstance(around[0], (ast.If, ast.With, ast.Try)):
            return body
        parts = (around[0].body, getattr(around[0], "orelse", []), getattr(around[0], "finalbody", []))
        inner = [part for part in parts if part and part[0].lineno <= line <= (part[-1].end_lineno or part[-1].lineno)]
        if not inner:
            return body
        body = [*inner[0], *body[body.index(around[0]) + 1 :]]


def _around(statement: ast.stmt, line: int) -> list[ast.AST]:
    """The nodes in a statement that hold a line."""
    nodes = [n for n in ast.walk(statement) if isinstance(n, ast.stmt)]
    return [n for n in nodes if n.lineno <= line <= (n.end_lineno or n.lineno)]


def _training_functions(tree: ast.Module) -> frozenset[str]:
    """The names of the script's functions and methods that take a backward pass, directly or through others."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    called = {f: {_called(node) for node in ast.walk(f) if isinstance(node, ast.Call)} for f in functions}
    found: frozenset[str] = frozenset(("backward",))
    while True:
        more = found | {f.name for f in functions if called[f] & found}
        if more == found:
            return found
        found = more


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _outer_calls(statement: ast.stmt) -> list[ast.Call]:
    value = getattr(statement, "value", None)
    return [value] if isinstance(value, ast.Call) else []


def _trains(statement: ast.stmt, training: frozenset[str]) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return any(isinstance(node, ast.Call) and _called(node) in training for node in ast.walk(statement))


def _first_call(statement: ast.stmt, training: frozenset[str]) -> int:
    calls = [n.lineno for n in ast.walk(statement) if isinstance(n, ast.Call) and _called(n) in training]
    return min(calls)
