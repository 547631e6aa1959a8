"""The command line. torch is imported inside the commands, so that `theta0 --help` answers at once."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta0.cli.compare import compare
from theta0.cli.console import (
    BudgetOption,
    HtmlOption,
    JsonOption,
    ScriptArguments,
    TargetArgument,
    TracebackOption,
    bar,
    errors,
    progress,
    require_writable,
    show,
)
from theta0.cli.explain import explain
from theta0.cli.scripts import Outcome, leave_to_child, outcomes

if TYPE_CHECKING:
    from theta0.targets import Target

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Look at the point where a network starts training, say what is wrong with it, fix it, prove that it trains.",
)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    """Handle the options that need no command."""
    from theta0._version import __version__

    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def diagnose(
    target: TargetArgument,
    arguments: ScriptArguments = None,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Train briefly, up to 100 gradients, to see whether it trains.")
    ] = True,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    budget: BudgetOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Say what is wrong with a starting point. Exit code: 0 no finding of severity error, 1 some, 2 bad target."""
    leave_to_child(target)
    with errors(traceback), progress("looking at the starting point"):
        import torch

        require_writable(html)
        torch.set_flush_denormal(True)  # vanished gradients are denormal numbers, ten times slower on a CPU
        code = outcomes(target, arguments, budget, lambda t: _diagnosed(t, html, probe=probe), as_json)
    raise typer.Exit(code)


def _diagnosed(t: "Target", html: Path | None, *, probe: bool) -> Outcome:
    from theta0.diagnosis import PROBE_STEPS
    from theta0.diagnosis import diagnose as run
    from theta0.reports import diagnosis_document, diagnosis_report

    result = run(
        t.model,
        t.batches,
        t.loss,
        step=t.step,
        optimizer=t.optimizer,
        learning_rate=t.learning_rate,
        gradient_kept=t.gradient_kept,
        probe_steps=PROBE_STEPS if probe else 0,
    )
    if html is not None:
        from theta0.reports import write_page

        write_page(html, result, target=t.name)
    return Outcome(
        lambda: diagnosis_document(result, target=t.name),
        lambda: diagnosis_report(result, target=t.name),
        0 if result.healthy else 1,
    )


@app.command()
def treat(
    target: TargetArgument,
    arguments: ScriptArguments = None,
    with_: Annotated[
        str, typer.Option("--with", help="auto, a remedy (unit-variance, lcw, nio, mmd …) or standardize-input.")
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Write the treated start here (.safetensors).", metavar="FILE")
    ] = None,
    steps: Annotated[int, typer.Option(help="Training budget of each start.", min=1)] = 100,
    as_json: JsonOption = False,
    html: HtmlOption = None,
    budget: BudgetOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Fix a starting point and prove it. Exit code: 0 kept, 1 nothing was better, 2 bad target."""
    leave_to_child(target)
    with errors(traceback), progress("fixing the starting point") as tell:
        import torch

        require_writable(out, html)
        torch.set_flush_denormal(True)  # vanished gradients are denormal numbers, ten times slower on a CPU
        options = {"with_": with_, "steps": steps, "progress": tell}
        code = outcomes(target, arguments, budget, lambda t: _treated(t, out, html, options), as_json, trains=True)
    raise typer.Exit(code)


def _treated(t: "Target", out: Path | None, html: Path | None, options: dict[str, Any]) -> Outcome:
    from theta0.reports import treatment_document, treatment_report
    from theta0.treatment import save_start
    from theta0.treatment import treat as run

    result = run(
        t.model, t.batches, t.loss, step=t.step, optimizer=t.optimizer, learning_rate=t.learning_rate, **options
    )
    if result.kept and out is not None:
        save_start(result.wrapped or t.model, out, method=result.remedy)
    if html is not None:
        from theta0.reports import write_page

        write_page(html, result, target=t.name)
    return Outcome(
        lambda: treatment_document(result, target=t.name),
        lambda: treatment_report(result, target=t.name),
        0 if result.kept else 1,
    )


@app.command()
def rate(
    target: TargetArgument,
    arguments: ScriptArguments = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam …; default: the target's, or sgd.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Train briefly at ½, 1, 2 and 4 times the suggestion.")
    ] = False,
    certify: Annotated[
        tuple[float, float] | None, typer.Option(help="Prove λ within EPSILON but for probability DELTA.")
    ] = None,
    batch_size: Annotated[
        list[int] | None, typer.Option(help="Also the rate for batches of this size; may be repeated.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Test the curvature products on this network first.")] = False,
    steps: Annotated[
        int,
        typer.Option(help="Gradients to spend on trying rates, at most; 0: what the curvature says, untried.", min=0),
    ] = 400,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="Also try a higher rate that is raised step by step.")
    ] = False,
    as_json: JsonOption = False,
    budget: BudgetOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Find the learning rate to train with, by short runs. Exit code: 0 found, 1 no rate trains, 2 bad target."""
    leave_to_child(target)
    with errors(traceback), progress("trying learning rates") as tell:
        options = {"certify": certify, "batch_sizes": batch_size or None, "steps": steps, "warm_up": warm_up}

        def run(t: "Target") -> Outcome:
            return _rated(t, optimizer or t.optimizer or "sgd", options, tell if verify else None, check=check)

        code = outcomes(target, arguments, budget, run, as_json, trains=verify)
    raise typer.Exit(code)


def _rated(
    t: "Target", optimizer: Any, options: dict[str, Any], tell: Callable[[str], None] | None, *, check: bool
) -> Outcome:
    from theta0.curvature import top_eigenvalue
    from theta0.experiments import suggest_learning_rate, verify_learning_rate
    from theta0.reports import rate_document, rate_report

    if check and t.step is None:
        top_eigenvalue(t.model, t.batches, t.loss, max_batches=1, check=True)
    found = suggest_learning_rate(t.model, t.batches, t.loss, optimizer, step=t.step, **options)
    verified = tell is not None and found.value is not None
    if tell is not None and verified:
        tell("training briefly around the suggestion")
    tried = {"step": t.step, "optimizer": optimizer}
    runs = verify_learning_rate(t.model, t.batches, t.loss, found, **tried) if verified else ()
    return Outcome(
        lambda: rate_document(found, runs, target=t.name),
        lambda: rate_report(found, runs, target=t.name),
        0 if found.value is not None else 1,
    )


@app.command()
def spectrum(
    target: TargetArgument,
    between: Annotated[tuple[int, int], typer.Option(help="Numbers of the two samples, from 0.")] = (0, 1),
    steps: Annotated[int, typer.Option(help="Updates of each training, on a copy.", min=1)] = 100,
    points: Annotated[int, typer.Option(help="Points along the segment between them.", min=4)] = 128,
    penalty: Annotated[
        list[str] | None, typer.Option(help="Also train with l2:C, l1:C or path:C; may be repeated.", metavar="NAME:C")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw a figure: .png, .svg or .pdf.", metavar="FILE")] = None,
    as_json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show which frequencies a network has between two samples, before and after training. Exit code: 0 or 2."""
    with errors(traceback), progress("measuring the spectrum") as tell, redirect_stdout(sys.stderr):
        import torch

        from theta0.experiments import optimizer_kind
        from theta0.regularizers import penalties_from
        from theta0.reports import spectrum_document, spectrum_report, write_spectrum_figure
        from theta0.spectra import spectrum_change
        from theta0.targets import load_target

        require_writable(out)
        if out is not None and out.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise ValueError(f"--out: expected a name that ends in .png, .svg or .pdf, got {str(out)!r}")
        torch.set_flush_denormal(True)  # norm penalties make denormal numbers, ten times slower on a CPU
        t = load_target(target)
        found = spectrum_change(
            t.model,
            t.batches,
            t.loss,
            between=between,
            steps=steps,
            points=points,
            penalties=penalties_from(penalty or [], t.model, t.batches),
            optimizer=optimizer_kind(t.optimizer, t.model).nearest,
            learning_rate=t.learning_rate,
            progress=tell,
        )
        if out is not None:
            write_spectrum_figure(out, found)
    show(lambda: spectrum_document(found, target=target), lambda: spectrum_report(found, target=target), as_json)
    if out is not None:
        typer.echo(f"drawn in {out}", err=True)


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="A source, for example furusho2020thesis.")],
    item: Annotated[str, typer.Argument(help="A figure or table of it, for example fig17; `list` names them.")],
    scale: Annotated[str, typer.Option(help="smoke (seconds), laptop (minutes) or paper.")] = "laptop",
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets' standard files.", metavar="DIR")] = None,
    dataset: Annotated[str | None, typer.Option(help="digits, mnist, cifar10 …; default: the source's.")] = None,
    out: Annotated[Path, typer.Option(help="Where the picture and the numbers go.", metavar="DIR")] = Path("build"),
    jobs: Annotated[int, typer.Option(help="How many processes.", min=1)] = 1,
    backend: Annotated[str, typer.Option(help="joblib's backend: loky, threading, dask, ray …")] = "loky",
    traceback: TracebackOption = False,
) -> None:
    """Repeat a source's experiment: a picture, its numbers as JSON, and one line against the source."""
    with errors(traceback), bar(f"{paper} {item}") as advance:
        import importlib

        import torch

        from theta0.papers import PAPERS

        if paper not in PAPERS:
            raise ValueError(f"paper: expected {', '.join(PAPERS)}, got {paper!r}")
        items = importlib.import_module(PAPERS[paper]).ITEMS
        if item not in items and item != "list":
            raise ValueError(f"item: expected {', '.join(items)} or list, got {item!r}")
        torch.set_flush_denormal(True)  # norm penalties and vanished gradients make denormal numbers
        line = "\n".join(items)
        if item != "list":
            line = items[item](dataset, data, scale=scale, out_dir=out, jobs=jobs, backend=backend, progress=advance)
    typer.echo(line)


app.command()(compare)
app.command()(explain)
