"""`theta0 explain`: the change that makes a network train. torch is imported inside the command."""

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from theta0.cli.console import (
    HtmlOption,
    JsonOption,
    TargetArgument,
    TracebackOption,
    bar,
    errors,
    require_writable,
    show,
)


def explain(
    target: TargetArgument,
    budget: Annotated[float, typer.Option(help="Seconds at most.", min=0.1)] = 120.0,
    gradients: Annotated[float, typer.Option(help="Gradients at most.", min=1)] = 400.0,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Find the change that makes it train, and prove it. Exit code: 0 it trains, 1 it does not, 2 bad target."""
    with errors(traceback), bar("explaining") as advance, redirect_stdout(sys.stderr):
        import torch

        from theta0.explanation import explain as run
        from theta0.reports import explanation_document, explanation_report, write_page
        from theta0.targets import load_target

        require_writable(html)
        torch.set_flush_denormal(True)  # vanished gradients are denormal numbers, ten times slower on a CPU
        t = load_target(target)
        result = run(
            t.model,
            t.batches,
            t.loss,
            optimizer=t.optimizer,
            learning_rate=t.learning_rate,
            budget=gradients,
            seconds=budget,
            progress=lambda text, share: advance(int(100 * share), 100),
        )
        if html is not None:
            write_page(html, result, target=target)
    show(
        lambda: explanation_document(result, target=target),
        lambda: explanation_report(result, target=target),
        as_json,
    )
    raise typer.Exit(0 if result.trains else 1)
