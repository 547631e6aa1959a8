"""What a treatment did."""

from dataclasses import dataclass

from theta0.diagnosis.results import Diagnosis


@dataclass(frozen=True)
class Run:
    """A short training run from one starting point.

    Attributes:
        optimizer: its name.
        rate: the learning rate.
        losses: the training loss at every step; shorter than asked when it became non-finite.
        held_out: mean loss on the held-out batches after the last step; infinite when the run diverged.
        held_out_start: the same before the first step.
    """

    optimizer: str
    rate: float
    losses: tuple[float, ...]
    held_out: float
    held_out_start: float


@dataclass(frozen=True)
class Attempt:
    """One remedy that was tried.

    Attributes:
        remedy: its name as in `treat(with_=…)`.
        after: the diagnosis of the treated start; None when the remedy could not be applied.
        run: the treated start's short run; None likewise.
        reason: why it was kept, passed over, or could not be applied.
    """

    remedy: str
    after: Diagnosis | None
    run: Run | None
    reason: str


@dataclass(frozen=True)
class Treatment:
    """What was tried on a starting point, and what was kept.

    Attributes:
        remedy: the remedy that was kept, or the best one tried; the empty string when none was tried.
        before: the diagnosis of the start as given.
        after: the diagnosis of the treated start; None when no remedy could be applied.
        kept: whether the model now has the treated start; otherwise it is bit for bit as given.
        reason: one sentence saying why.
        untreated: the short run from the start as given; None when that run could not be made.
        treated: the short run from the treated start; None likewise.
        attempts: every remedy tried, in order.
        cost: of everything, in gradients.
    """

    remedy: str
    before: Diagnosis
    after: Diagnosis | None
    kept: bool
    reason: str
    untreated: Run | None
    treated: Run | None
    attempts: tuple[Attempt, ...]
    cost: float
