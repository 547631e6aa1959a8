"""The command line. torch is imported inside the commands, so that `theta0 --help` answers at once."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta0.cli.compare import compare
from theta0.cli.console import BackendOption, HtmlOption, JobsOption, Tell, beside, errors, progress, say, show
from theta0.cli.explain import explain
from theta0.cli.options import Given, TargetCommand, on_targets
from theta0.cli.scripts import Outcome, on_each

if TYPE_CHECKING:
    from theta0.diagnosis import Diagnosis
    from theta0.targets import Target


class FailOn(StrEnum):
    """The least severity with which `diagnose` leaves with 1."""

    error = "error"
    warning = "warning"
    never = "never"

    @property
    def severities(self) -> tuple[str, ...]:
        """The severities that make it fail."""
        return {"error": ("error",), "warning": ("error", "warning"), "never": ()}[self.value]


class Format(StrEnum):
    """What `diagnose` prints."""

    text = "text"
    json = "json"
    github = "github"


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Say why a network does not train, fix its initial weights, find its learning rate, prove each by short runs.",
)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False) -> None:
    """Handle the options that need no command."""
    from theta0._version import __version__

    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command(cls=TargetCommand)
@on_targets
def diagnose(
    given: Given,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Train briefly, up to 100 gradients, to see whether it trains.")
    ] = True,
    fail_on: Annotated[FailOn, typer.Option(help="The least severity with which the exit code is 1.")] = FailOn.error,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A code that is not to be reported; may be repeated.", metavar="CODE")
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="What to print: a report, JSON, or annotations for GitHub workflows.")
    ] = Format.text,
    html: HtmlOption = None,
) -> None:
    """Say why a network does not train. Exit code: 0 no finding of severity error, 1 some, 2 bad target."""
    given = replace(given, as_json=given.as_json or format_ is Format.json)

    def diagnosed(t: "Target", tell: Tell) -> Outcome:
        from theta0.diagnosis import PROBE_STEPS
        from theta0.reports import diagnosis_document, diagnosis_report

        steps = PROBE_STEPS if probe else 0
        options = {"probe_steps": steps, "seconds": given.seconds, "ignore": ignore or (), "progress": tell}
        result = _diagnosis(t, beside(html, t.number), options | given.read)
        return Outcome(
            lambda: diagnosis_document(result, target=t.name),
            lambda: _annotated(result, t) if format_ is Format.github else diagnosis_report(result, target=t.name),
            int(any(finding.severity in fail_on.severities for finding in result.findings)),
        )

    on_each(given, "looking at the starting point", diagnosed, files=(html,))


def _annotated(result: "Diagnosis", t: "Target") -> str:
    from theta0.reports.annotations import annotations

    return "\n".join(annotations(result, target=t.name))


def _diagnosis(t: "Target", html: Path | None, options: dict[str, Any]) -> "Diagnosis":
    from theta0.diagnosis import diagnose as run

    result = run(t.model, t.batches, t.loss, observed=t.observed, **t.training, **options)
    if html is not None:
        from theta0.reports import write_page

        write_page(html, result, target=t.name)
    return result


@app.command(cls=TargetCommand)
@on_targets
def treat(
    given: Given,
    with_: Annotated[
        str, typer.Option("--with", help="auto, a remedy (unit-variance, lcw, nio, mmd …) or standardize-input.")
    ] = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Write the treated start here (.safetensors).", metavar="FILE")
    ] = None,
    steps: Annotated[int, typer.Option(help="Training budget of each start.", min=1)] = 100,
    html: HtmlOption = None,
) -> None:
    """Fix the initial weights and prove it; --out keeps them.

    Exit code: 0 kept or nothing to fix, 1 nothing was better or proven in time, 2 bad target.
    """

    def treated(t: "Target", tell: Tell) -> Outcome:
        options = {"with_": with_, "steps": steps, "seconds": given.seconds, "progress": tell}
        return _treated(t, beside(out, t.number), beside(html, t.number), options | given.read)

    on_each(given, "fixing the starting point", treated, trains=True, files=(out, html))


def _treated(t: "Target", out: Path | None, html: Path | None, options: dict[str, Any]) -> Outcome:
    from theta0.reports import treatment_document, treatment_report
    from theta0.treatment import save_start
    from theta0.treatment import treat as run

    result = run(t.model, t.batches, t.loss, observed=t.observed, **t.training, **options)
    if result.kept and out is not None:
        save_start(result.wrapped or t.model, out, method=result.remedy)
    if html is not None:
        from theta0.reports import write_page

        write_page(html, result, target=t.name)
    return Outcome(
        lambda: treatment_document(result, target=t.name),
        lambda: treatment_report(result, target=t.name, out=out),
        0 if result.kept or result.healthy else 1,
    )


@app.command(cls=TargetCommand)
@on_targets
def rate(
    given: Given,
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
) -> None:
    """Find the learning rate to train with, by short runs; diagnose first.

    Exit code: 0 found, 1 no rate trains or none was found in time, 2 bad target.
    """
    options = {"certify": certify, "batch_sizes": batch_size or None, "steps": steps, "warm_up": warm_up}

    def rated(t: "Target", tell: Tell) -> Outcome:
        return _rated(t, given, options | given.read, tell, verify=verify, check=check)

    on_each(given, "trying learning rates", rated, trains=verify)


def _rated(t: "Target", given: Given, options: dict[str, Any], tell: Tell, *, verify: bool, check: bool) -> Outcome:
    from theta0._progress import ENDED
    from theta0.curvature import top_eigenvalue
    from theta0.experiments import suggest_learning_rate, verify_learning_rate
    from theta0.experiments.verification import FACTORS
    from theta0.reports import rate_document, rate_report

    if check and t.step is None:
        top_eigenvalue(t.model, t.batches, t.loss, max_batches=1, check=True)
    tried: dict[str, Any] = {"step": t.step, "optimizer": t.optimizer or "sgd", "clip_norm": t.clip_norm}
    found = suggest_learning_rate(t.model, t.batches, t.loss, progress=tell, seconds=given.seconds, **tried, **options)
    runs: tuple[Any, ...] = ()
    if verify and found.value is not None:
        tell("training briefly around the suggestion")
        runs = verify_learning_rate(t.model, t.batches, t.loss, found, seconds=given.seconds, **tried)
        if len(runs) < len(FACTORS):
            missing = f"Runs around the suggestion: {ENDED} after {len(runs)} of {len(FACTORS)}."
            found = replace(found, not_measured=(*found.not_measured, missing))
    return Outcome(
        lambda: rate_document(found, runs, target=t.name),
        lambda: rate_report(found, runs, target=t.name),
        0 if found.value is not None else 1,
    )


@app.command(cls=TargetCommand)
@on_targets
def spectrum(
    given: Given,
    between: Annotated[tuple[int, int], typer.Option(help="Numbers of the two samples, from 0.")] = (0, 1),
    steps: Annotated[int, typer.Option(help="Updates of each training, on a copy.", min=1)] = 100,
    points: Annotated[int, typer.Option(help="Points along the segment between them.", min=4)] = 128,
    penalty: Annotated[
        list[str] | None, typer.Option(help="Also train with l2:C, l1:C or path:C; may be repeated.", metavar="NAME:C")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw a figure: .png, .svg or .pdf.", metavar="FILE")] = None,
) -> None:
    """Show which frequencies a network has between two samples, before and after training. Exit code: 0 or 2."""

    def measured(t: "Target", tell: Tell) -> Outcome:
        options = {"between": between, "steps": steps, "points": points, "progress": tell}
        return _spectrum(t, penalty or [], beside(out, t.number), options | given.read)

    on_each(given, "measuring the spectrum", measured, files=(out,))


def _spectrum(t: "Target", penalties: list[str], out: Path | None, options: dict[str, Any]) -> Outcome:
    from theta0.experiments import optimizer_kind
    from theta0.regularizers import penalties_from
    from theta0.reports import spectrum_document, spectrum_report, write_spectrum_figure
    from theta0.spectra import spectrum_change

    if out is not None and out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--out: expected a name that ends in .png, .svg or .pdf, got {str(out)!r}")
    if t.step is not None:
        raise ValueError(
            f"{t.name}: expected a training step that is one call of the model and a loss of each sample; "
            "spectra are measured between two inputs of the model: write a file with model(), batches() and loss"
        )
    kind = optimizer_kind(t.optimizer, t.model)
    own: dict[str, Any] = {"optimizer": kind.make, "learning_rate": t.learning_rate or kind.rate}
    drawn = penalties_from(penalties, t.model, t.batches)
    found = spectrum_change(t.model, t.batches, t.loss, penalties=drawn, **own, **options)
    if out is not None:
        write_spectrum_figure(out, found)
        say(f"drawn in {out}", err=True)
    return Outcome(lambda: spectrum_document(found, target=t.name), lambda: spectrum_report(found, target=t.name), 0)


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="A source, for example furusho2020thesis.")],
    item: Annotated[str, typer.Argument(help="A figure or table of it, for example fig17; `list` names them.")],
    scale: Annotated[
        str,
        typer.Option(
            help="smoke (seconds, not comparable), laptop (minutes to hours) or paper (hours to weeks), and single "
            "sizes that are to differ: laptop,steps=2500."
        ),
    ] = "laptop",
    data: Annotated[Path | None, typer.Option(help="Folder with the data sets' standard files.", metavar="DIR")] = None,
    dataset: Annotated[str | None, typer.Option(help="digits, mnist, cifar10 …; default: the source's.")] = None,
    out: Annotated[Path, typer.Option(help="Where the picture and the numbers go.", metavar="DIR")] = Path("build"),
    device: Annotated[str, typer.Option(help="Where networks are trained: cpu, cuda, cuda:1, mps.")] = "cpu",
    jobs: JobsOption = None,
    backend: BackendOption = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="On an error, show where it arose.")] = False,
) -> None:
    """Repeat a source's experiment: a picture, its numbers as JSON, and one line against the source."""
    with errors(traceback), progress(f"{paper} {item}") as tell:
        import importlib

        import torch

        from theta0.jobs import cluster
        from theta0.papers import PAPERS
        from theta0.papers.devices import computing_on
        from theta0.papers.scales import is_scale

        if paper not in PAPERS:
            raise ValueError(f"paper: expected {', '.join(PAPERS)}, got {paper!r}")
        items = importlib.import_module(PAPERS[paper]).ITEMS
        if item not in items and item != "list":
            raise ValueError(f"item: expected {', '.join(items)} or list, got {item!r}")
        torch.set_flush_denormal(True)  # norm penalties and vanished gradients make denormal numbers
        line = "\n".join(items)
        if item != "list":

            def advance(done: int, total: int) -> None:
                tell(f"{paper} {item}: {done} of {total}", done / total)

            if device != "cpu" and (paper == "furusho2020thesis" or backend is not None or jobs not in (None, 1)):
                raise ValueError(
                    f"--device: expected cpu for furusho2020thesis, whose networks are small, and with --jobs or "
                    f"--backend, got {device!r}: a device is for one process"
                )
            with cluster(backend, jobs) as name, computing_on(device):
                line = items[item](dataset, data, scale=scale, out_dir=out, jobs=jobs, backend=name, progress=advance)
            if is_scale(scale, "smoke"):
                line += "; smoke scale: whether it runs, not comparable with the source"
    typer.echo(line)


@app.command(name="help")
def help_(
    code: Annotated[str | None, typer.Argument(help="A finding's code; without one all are listed.")] = None,
) -> None:
    """Explain a finding: what it means, why it happens, how to fix it, where its threshold comes from."""
    with errors(show=False):
        from rich.markdown import Markdown

        from theta0.diagnosis.documentation import overview
        from theta0.reports.finding_pages import finding_page

        text = overview() if code is None else finding_page(code)
    show(Markdown(text))


app.command(cls=TargetCommand)(compare)
app.command(cls=TargetCommand)(explain)
