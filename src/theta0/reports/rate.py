"""A suggested learning rate on a terminal, with the short runs that verify it."""

import math
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from theta0._training import Run
from theta0.curvature.learning_rate import LearningRate
from theta0.reports.wording import number, printable


def rate_report(rate: LearningRate, runs: Sequence[Run] = (), *, target: str) -> RenderableType:
    """A rate for the terminal: the suggestion, what it rests on, and what short runs around it did.

    Returns:
        What a rich console prints.
    """
    parts: list[RenderableType] = [
        Text(f"{printable(target)}: train with {rate.optimizer} at {number(rate.value)}.", style="bold"),
        Text(),
        _numbers(rate),
    ]
    if rate.by_batch_size:
        sizes = ", ".join(f"{number(value)} at {size} samples" for size, _, value in rate.by_batch_size)
        parts.append(Text(f"By batch size: {sizes}."))
    if not rate.converged:
        parts.append(Text("λ has not converged: raise max_products or the tolerance.", style="bold yellow"))
    if runs:
        parts += [Text(), _runs(rate, runs)]
    return Group(*parts)


def _numbers(rate: LearningRate) -> Grid:
    grid = Grid(box=None, show_header=False, pad_edge=False)
    low, high = rate.spread
    rows = [
        ("stable below", number(rate.bound)),
        (
            f"λ, largest eigenvalue of the {rate.matrix}",
            f"{number(rate.top_eigenvalue)} (residual {rate.residual:.1e})",
        ),
        ("λ over the batches", f"{number(low)} to {number(high)}"),
        ("check", f"{rate.steps} steps, halved {rate.halvings} times" if rate.steps else "none"),
        ("cost", f"{rate.products} products, {number(rate.cost)} gradients"),
    ]
    certificate = rate.certificate
    if certificate is not None:
        sure = f"λ is at most {certificate.epsilon:.0%} larger, with probability {1 - certificate.delta:.1%}"
        rows.insert(3, ("certificate", f"{sure} ({certificate.products} products)"))
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def _runs(rate: LearningRate, runs: Sequence[Run]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("rate", "times the suggestion", "loss at the start", "held-out loss after", "outcome"):
        grid.add_column(title, justify="left" if title == "outcome" else "right")
    for run in runs:
        factor = number(run.rate / rate.value)
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
