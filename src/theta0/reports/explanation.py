"""An explanation on a terminal, as plain data, and as the rows of a page."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from theta0.experiments.probe import ExperimentRun
from theta0.explanation.bench import NOTHING
from theta0.explanation.results import Explanation
from theta0.reports.advice import here, worded
from theta0.reports.document import document, finding_document
from theta0.reports.screen import headline
from theta0.reports.wording import number, printable

MOST = 24  # runs that a screen shows
AS_GIVEN = ("", NOTHING.words)  # what runs say that change nothing


def explanation_report(found: Explanation, *, target: str) -> RenderableType:
    """The proven cause, the runs, what was left out, and the cost.

    Returns:
        What a rich console prints.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from rich.console import Console
        >>> from theta0 import explain
        >>> found = explain(model, batches, "cross_entropy", budget=40)
        >>> console = Console(width=80)
        >>> with console.capture() as captured:
        ...     console.print(explanation_report(found, target="train.py"))
        >>> "train.py" in captured.get()
        True
    """
    tone = "bold green" if found.trains else "bold red" if found.proof is None else "bold yellow"
    parts: list[RenderableType] = [headline(target, worded(printable(found.verdict), target), tone)]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for title, side in (("run with", "left"), ("steps", "right"), ("rate", "right"), ("loss", "right")):
        grid.add_column(title, justify="right" if side == "right" else "left")
    for row in explanation_rows(found)[:MOST]:
        grid.add_row(*row)
    parts += [Text(), grid]
    if found.left_out:
        parts.append(Text("Not re-initialized: " + _left(found), style="dim"))
    if not found.complete:
        larger = here(target, "--budget", "budget")
        parts.append(Text(f"The budget ended before everything was tried; a larger {larger} goes on.", style="dim"))
    return Group(*parts, Text(f"cost {number(found.cost)} gradients", style="dim"))


def explanation_rows(found: Explanation) -> list[tuple[str, str, str, str]]:
    """Each run, the one as given first: what was changed, its steps, its rate, and the loss at its end."""
    runs = sorted(found.runs, key=lambda run: run.change not in AS_GIVEN)
    return [(changed(run), str(len(run.losses)), number(run.rate), number(run.final)) for run in runs]


def changed(run: ExperimentRun) -> str:
    """What a run changed, in words."""
    return "as given" if run.change in AS_GIVEN else printable(run.change)


def explanation_document(found: Explanation, *, target: str) -> dict[str, Any]:
    """An explanation as a JSON object.

    Returns:
        Keys schema, theta0, target, verdict, trains, module, proof, runs, excluded, left_out, findings, complete,
        cost_in_gradients.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import explain
        >>> found = explain(model, batches, "cross_entropy", budget=40)
        >>> explanation_document(found, target="train.py")["target"]
        'train.py'
    """
    body = {
        "verdict": found.verdict,
        "trains": found.trains,
        "module": found.module,
        "proof": None if found.proof is None else asdict(found.proof),
        "runs": [asdict(run) for run in found.runs],
        "excluded": list(found.excluded),
        "left_out": dict(found.left_out),
        "findings": [] if found.diagnosis is None else [finding_document(f, target) for f in found.diagnosis.findings],
        "complete": found.complete,
        "cost_in_gradients": found.cost,
    }
    return document(target, body)


def _left(found: Explanation) -> str:
    return ", ".join(f"{printable(path) or 'the model itself'} ({why})" for path, why in found.left_out.items())
