"""`theta0 compare`: a race of starting points. torch is imported inside the command."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta0.cli.console import BackendOption, HtmlOption, JobsOption, Tell, beside
from theta0.cli.options import Given, on_targets
from theta0.cli.scripts import Outcome, on_each

if TYPE_CHECKING:
    from theta0.targets import Target

_SEED = 1729  # what a target draws is drawn again by the next command, so that its store is found


@on_targets
def compare(
    given: Given,
    starts: Annotated[
        str, typer.Option(help="Names joined by commas: default, unit-variance, lcw, nio, gradinit, mmd …")
    ] = "default,unit-variance,lcw,nio,gradinit",
    rates: Annotated[str, typer.Option(help="auto, or rates joined by commas, tried for every start.")] = "auto",
    steps: Annotated[int, typer.Option(help="Of a full run.", min=1)] = 100,
    seeds: Annotated[int, typer.Option(help="Runs of every start at its best rate.", min=1)] = 3,
    store: Annotated[
        Path | None, typer.Option(help="Keep runs here and go on from them.", metavar="FILE.jsonl")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the winner here (.safetensors).", metavar="FILE")] = None,
    html: HtmlOption = None,
    jobs: JobsOption = None,
    backend: BackendOption = None,
) -> None:
    """Race starting points, each at its own best rate. Exit code: 0 done, 1 not all done in time, 2 bad target."""
    if given.seed is None:
        given = replace(given, seed=_SEED)

    def raced(t: "Target", tell: Tell) -> Outcome:
        options: dict[str, Any] = {
            "starts": [name.strip() for name in starts.split(",") if name.strip()],
            "rates": "auto" if rates == "auto" else _numbers(rates),
            "steps": steps,
            "seeds": seeds,
            "budget_s": given.seconds,
            "store": store,
            "jobs": jobs,
            "backend": backend,
            "progress": tell,
        }
        return _raced(t, beside(out, t.number), beside(html, t.number), options | given.read)

    on_each(given, "racing the starts", raced, trains=True, files=(out, html), store=store)


def _raced(t: "Target", out: Path | None, html: Path | None, options: dict[str, Any]) -> Outcome:
    from theta0.comparison import compare as run
    from theta0.comparison import winning_start_
    from theta0.experiments.optimizers import mirrored
    from theta0.reports import comparison_document, comparison_report
    from theta0.treatment import save_start

    own = t.training | {"optimizer": mirrored(t.optimizer, t.model)}
    found = run(t.build, t.batches, t.loss, **own, **options)
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
