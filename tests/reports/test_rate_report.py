"""A suggested rate on a terminal: what it rests on, and what short runs did."""

import math
from dataclasses import replace
from io import StringIO

from rich.console import Console

from theta0._training import Run
from theta0.curvature.learning_rate import LearningRate, RateRun
from theta0.curvature.top_eigenvalue import Certificate
from theta0.reports import rate_report

FOUND = LearningRate(
    value=0.1,
    bound=0.5,
    top_eigenvalue=4.0,
    residual=1e-3,
    products=12,
    cost=123.0,
    certificate=Certificate(0.1, 0.01, 9, 40),
    optimizer="sgd",
    matrix="ggn",
    spread=(3.0, 4.0),
    by_batch_size=((16, 5.0, 0.05), (32, 4.5, 0.07)),
    converged=False,
    runs=(
        RateRun(0.3, (2.3, 9.0), "diverges"),
        RateRun(0.1, (2.3, 1.0), "trains", 6.0),
        RateRun(0.03, (2.3, 2.0), "waits"),
    ),
    proven=True,
    growth=1.5,
    warm_up=(40, 0.3),
    reason="the least loss after 40 steps",
    advice=("Standardise the targets.",),
)


def shown(rate: LearningRate, *runs: Run) -> str:
    console = Console(file=StringIO(), width=160)
    console.print(rate_report(rate, runs, target="x.py"))
    return console.file.getvalue()


def test_everything_that_is_known_is_said():
    text = shown(FOUND)
    for part in (
        "x.py: Train with sgd at 0.1.",
        "the least loss after 40 steps",
        "12 products, 123 gradients in all",
        "λ, largest eigenvalue of the ggn",
        "1.5 times that at the start",
        "λ is at most 10% larger, with probability 99.0% (9 products)",
        "By batch size: 0.05 at 16 samples, 0.07 at 32 samples.",
        "λ has not converged",
        "Raised linearly over 40 steps, 0.3 trains better still.",
        "Standardise the targets.",
        "trains: the suggestion",
        "diverged",
        "stopped early",
    ):
        assert part in text


def test_without_a_rate_the_reason_leads():
    text = shown(replace(FOUND, value=None, top_eigenvalue=math.nan, reason="every run diverged"))
    assert "No learning rate was found at which sgd trains: every run diverged." in text
    assert "largest eigenvalue" not in text
    assert "which no run has tried" in shown(replace(FOUND, proven=False, runs=()))


def test_verification_says_what_became_of_each_run():
    fell = Run("sgd", 0.1, (2.0, 1.0), 1.1, 2.1, 4.0)
    runs = (fell, replace(fell, rate=0.2, held_out=3.0), replace(fell, rate=0.4, held_out=math.inf))
    text = shown(FOUND, *runs)
    assert [word in text for word in ("fell", "rose", "diverged at step 2")] == [True] * 3
    assert "times the suggestion" in text
