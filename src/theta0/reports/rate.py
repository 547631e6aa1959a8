"""A suggested learning rate on a terminal, with the short runs that verify it."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from theta0._training import Run
from theta0.curvature.learning_rate import LearningRate, RateRun
from theta0.reports.advice import worded
from theta0.reports.screen import headline
from theta0.reports.wording import number, printable

RATE_COLUMNS = ("rate", "steps", "first loss", "last losses", "outcome")
_TIE = 0.05  # of a loss
_LAST = 8  # losses that are averaged
_MEANING = {
    "trains": "trains",
    "waits": "stopped early",
    "rises": "the loss rose",
    "diverges": "diverged",
    "stalls": "the loss hardly fell",
    "unstable": "curvature times rate rose far above the bound",
}


def rate_report(rate: LearningRate, runs: Sequence[Run] = (), *, target: str) -> RenderableType:
    """A rate for the terminal: the suggestion, what it rests on, and what short runs around it did.

    Returns:
        What a rich console prints.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from rich.console import Console
        >>> from theta0 import suggest_learning_rate
        >>> rate = suggest_learning_rate(model, batches, "cross_entropy", steps=0)
        >>> console = Console(width=80)
        >>> with console.capture() as captured:
        ...     console.print(rate_report(rate, target="train.py"))
        >>> "train.py" in captured.get()
        True
    """
    verdict = " ".join(part for part in (rate_verdict(rate), _ahead(rate, runs)) if part)
    parts: list[RenderableType] = [headline(target, verdict, "bold"), Text(), _numbers(rate)]
    if rate.by_batch_size:
        sizes = ", ".join(f"{number(value)} at {size} samples" for size, _, value in rate.by_batch_size)
        parts.append(Text(f"By batch size: {sizes}."))
    if not rate.converged:
        parts.append(Text("λ has not converged: raise max_products or the tolerance.", style="bold yellow"))
    if rate.warm_up is not None:
        steps, higher = rate.warm_up
        parts.append(Text(f"Raised linearly over {steps} steps, {number(higher)} trains better still."))
    parts += [Text(worded(sentence, target)) for sentence in rate.advice]
    if rate.runs:
        parts += [Text(), _evidence(rate)]
    if runs:
        parts += [Text(), _runs(rate, runs)]
    return Group(*parts)


def rate_verdict(rate: LearningRate) -> str:
    """A learning rate in one sentence."""
    optimizer = printable(rate.optimizer)
    if rate.value is None:
        return f"No learning rate was found at which {optimizer} trains: {printable(rate.reason)}."
    certainty = "" if rate.proven else ", which no run has tried"
    return f"Train with {optimizer} at {number(rate.value)}{certainty}."


def _ahead(rate: LearningRate, runs: Sequence[Run]) -> str:
    """That another rate is ahead in the runs that verify a suggestion, where one is by more than a tie."""
    own = next((run for run in runs if rate.value is not None and math.isclose(run.rate, rate.value)), None)
    best = min(runs, key=lambda run: run.held_out if math.isfinite(run.held_out) else math.inf, default=None)
    if own is None or best is None or not best.held_out < own.held_out - _TIE * abs(own.held_out):
        return ""
    return (
        f"In {len(best.losses)} steps {number(best.rate)} reaches a lower held-out loss, {number(best.held_out)} "
        f"instead of {number(own.held_out)}."
    )


def _numbers(rate: LearningRate) -> Grid:
    grid = Grid(box=None, show_header=False, pad_edge=False)
    for label, value in rate_numbers(rate):
        grid.add_row(label, value)
    return grid


def rate_numbers(rate: LearningRate) -> list[tuple[str, str]]:
    """What a rate rests on: labels and values in words."""
    low, high = rate.spread
    rows = [("because", rate.reason), ("cost", f"{rate.products} products, {number(rate.cost)} gradients in all")]
    if math.isfinite(rate.top_eigenvalue):
        rows[1:1] = [
            ("at the start stable below", number(rate.bound)),
            (
                f"λ, largest eigenvalue of the {rate.matrix}",
                f"{number(rate.top_eigenvalue)} (residual {rate.residual:.1e})",
            ),
            ("λ over the batches", f"{number(low)} to {number(high)}"),
        ]
    if rate.growth is not None:
        rows.insert(-1, ("λ where the run ended", f"{number(rate.growth)} times that at the start"))
    certificate = rate.certificate
    if certificate is not None:
        sure = f"λ is at most {certificate.epsilon:.0%} larger, with probability {1 - certificate.delta:.1%}"
        rows.insert(-1, ("certificate", f"{sure} ({certificate.products} products)"))
    return rows + [("not measured", printable(sentence)) for sentence in rate.not_measured]


def _evidence(rate: LearningRate) -> Grid:
    """The runs that chose."""
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in RATE_COLUMNS:
        grid.add_column(title, justify="left" if title == "outcome" else "right")
    for run, row in zip(rate.runs, rate_rows(rate), strict=True):
        grid.add_row(*row, style="bold" if run.rate == rate.value else "")
    return grid


def rate_rows(rate: LearningRate) -> list[tuple[str, str, str, str, str]]:
    """Each run: its rate, steps, first loss, the mean of its last losses, and its outcome."""
    return [
        (
            number(run.rate),
            str(len(run.losses)),
            number(run.losses[0]),
            number(last_loss(run)),
            f"{run.outcome}: the suggestion" if run.rate == rate.value else _MEANING[run.outcome],
        )
        for run in rate.runs
    ]


def last_loss(run: RateRun) -> float:
    """The mean of a run's last losses."""
    last = run.losses[-_LAST:]
    return math.fsum(last) / len(last)


def _runs(rate: LearningRate, runs: Sequence[Run]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("rate", "times the suggestion", "loss at the start", "held-out loss after", "outcome"):
        grid.add_column(title, justify="left" if title == "outcome" else "right")
    for run in runs:
        factor = number(run.rate / rate.value) if rate.value else ""
        grid.add_row(number(run.rate), factor, number(run.losses[0]), number(run.held_out), outcome(run))
    return grid


def outcome(run: Run) -> str:
    """What a short run did, in a word or two.

    Returns:
        "diverged", "fell" or "rose".
    """
    if not math.isfinite(run.held_out):
        return f"diverged at step {len(run.losses)}"
    return "fell" if run.held_out < run.held_out_start else "rose"
