"""`theta0 explain`: the change that makes a network train. torch is imported inside the command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta0.cli.console import (
    HtmlOption,
    JsonOption,
    ScriptArguments,
    TargetArgument,
    TracebackOption,
    bar,
    errors,
    require_writable,
)
from theta0.cli.scripts import Outcome, leave_to_child, outcomes

if TYPE_CHECKING:
    from theta0.targets import Target


def explain(
    target: TargetArgument,
    arguments: ScriptArguments = None,
    budget: Annotated[float, typer.Option(help="Seconds at most.", min=0.1)] = 120.0,
    gradients: Annotated[float, typer.Option(help="Gradients at most.", min=1)] = 400.0,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Find the change that makes it train, and prove it. Exit code: 0 it trains, 1 it does not, 2 bad target."""
    leave_to_child(target)
    with errors(traceback), bar("explaining") as advance:
        import torch

        require_writable(html)
        torch.set_flush_denormal(True)  # vanished gradients are denormal numbers, ten times slower on a CPU
        options = {
            "budget": gradients,
            "seconds": budget,
            "progress": lambda text, share: advance(int(100 * share), 100),
        }
        code = outcomes(target, arguments, None, lambda t: _explained(t, html, options), as_json)
    raise typer.Exit(code)


def _explained(t: "Target", html: Path | None, options: dict[str, Any]) -> Outcome:
    from theta0.explanation import explain as run
    from theta0.reports import explanation_document, explanation_report

    result = run(
        t.model, t.batches, t.loss, step=t.step, optimizer=t.optimizer, learning_rate=t.learning_rate, **options
    )
    if html is not None:
        from theta0.reports import write_page

        write_page(html, result, target=t.name)
    return Outcome(
        lambda: explanation_document(result, target=t.name),
        lambda: explanation_report(result, target=t.name),
        0 if result.trains else 1,
    )
