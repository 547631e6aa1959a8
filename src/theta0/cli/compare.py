"""`theta0 compare`: a race of starting points. torch is imported inside the command."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta0.cli.console import (
    HtmlOption,
    JsonOption,
    ScriptArguments,
    TargetArgument,
    TracebackOption,
    errors,
    progress,
    require_writable,
)
from theta0.cli.scripts import Outcome, leave_to_child, outcomes

if TYPE_CHECKING:
    from theta0.targets import Target


def compare(
    target: TargetArgument,
    arguments: ScriptArguments = None,
    starts: Annotated[
        str, typer.Option(help="Names joined by commas: default, unit-variance, lcw, nio, gradinit, mmd …")
    ] = "default,unit-variance,lcw,nio,gradinit",
    rates: Annotated[str, typer.Option(help="auto, or rates joined by commas, tried for every start.")] = "auto",
    steps: Annotated[int, typer.Option(help="Of a full run.", min=1)] = 100,
    seeds: Annotated[int, typer.Option(help="Runs of every start at its best rate.", min=1)] = 3,
    budget: Annotated[float | None, typer.Option(help="Seconds; then tuning runs, then seeds are left out.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Keep runs here and go on from them.", metavar="FILE.jsonl")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the winner here (.safetensors).", metavar="FILE")] = None,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Race starting points, each at its own best rate. Exit code: 0 done, 1 not all done in time, 2 bad target."""
    leave_to_child(target)
    with errors(traceback, store), progress("racing the starts") as tell:
        import torch

        from theta0.comparison.reading import seeded

        require_writable(out, html, store)
        torch.set_flush_denormal(True)  # vanished gradients are denormal numbers, ten times slower on a CPU
        options = {
            "starts": [name.strip() for name in starts.split(",") if name.strip()],
            "rates": "auto" if rates == "auto" else _numbers(rates),
            "steps": steps,
            "seeds": seeds,
            "budget_s": budget,
            "store": store,
            "progress": tell,
        }
        with seeded():  # what a target draws is drawn again by the next command, so that its store is found
            code = outcomes(target, arguments, None, lambda t: _raced(t, out, html, options), as_json, trains=True)
    raise typer.Exit(code)


def _raced(t: "Target", out: Path | None, html: Path | None, options: dict[str, Any]) -> Outcome:
    from theta0.comparison import compare as run
    from theta0.comparison import winning_start_
    from theta0.experiments import optimizer_kind
    from theta0.reports import comparison_document, comparison_report
    from theta0.treatment import save_start

    nearest = optimizer_kind(t.optimizer, t.model).nearest
    found = run(t.build, t.batches, t.loss, step=t.step, optimizer=nearest, learning_rate=t.learning_rate, **options)
    if out is not None and found.winner is not None:
        winner = winning_start_(t.build, t.batches, t.loss, found, step=t.step)
        save_start(winner, out, method=found.winner.start)
    if html is not None:
        from theta0.reports import write_page

        write_page(html, found, target=t.name)
    return Outcome(
        lambda: comparison_document(found, target=t.name),
        lambda: comparison_report(found, target=t.name),
        0 if found.complete else 1,
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"rates: expected auto or numbers joined by commas, got {text!r}") from error
