"""What is said of a treatment that was kept or not."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from theta0._training import Run
from theta0.treatment import reasons

PLAIN = Run("sgd", 0.1, (2.0,) * 20, 1.5, 2.0)
DIVERGED = replace(PLAIN, rate=0.01, losses=(2.0, math.inf), held_out=math.inf)


def attempt(run):
    return SimpleNamespace(run=run, reason="does not apply here")


@pytest.mark.parametrize(
    ("plain", "tried", "said"),
    [
        (PLAIN, None, "no remedy for what was found applies"),
        (PLAIN, attempt(None), "lcw does not apply here. The model is as it was."),
        (DIVERGED, attempt(DIVERGED), "both starts diverge, with lcw and without, at rate 0.01"),
        (PLAIN, attempt(DIVERGED), "with lcw training diverges, at rate 0.01 still"),
        (PLAIN, attempt(replace(PLAIN, held_out=1.6)), "after 20 steps is 1.6 with lcw and 1.5 without"),
    ],
)
def test_why_no_remedy_was_kept(plain, tried, said):
    assert said in reasons.unproven("lcw", plain, tried)


@pytest.mark.parametrize(
    ("treated", "holds", "rate", "said"),
    [
        (replace(PLAIN, held_out=0.5), True, None, "Kept: the held-out loss after 20 steps is 0.5 with lcw"),
        (replace(PLAIN, rate=0.05), True, 0.1, "Train at 0.05: 0.1 is too high for it."),
        (PLAIN, False, None, "Not kept: the held-out loss"),
        (DIVERGED, False, None, "both starts diverge"),
    ],
)
def test_what_the_proof_says(treated, holds, rate, said):
    untreated = DIVERGED if treated is DIVERGED else PLAIN
    shown = SimpleNamespace(pairs=[(untreated, treated)] * 2, holds=holds, mean=0.1, spread=0.01)
    assert said in reasons.proven("lcw", shown, rate)


def test_nothing_to_fix_and_nothing_that_an_initialization_fixes():
    assert reasons.nothing(SimpleNamespace(findings=[])) == "Nothing was tried, and the model is as it was."
    found = [SimpleNamespace(code=code) for code in ("input-scale", "input-scale", "precision")]
    assert "(input-scale, precision)" in reasons.nothing(SimpleNamespace(findings=found))
