"""What a remedy and a treatment did."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from theta0._records import Result
from theta0._training import Run as Run
from theta0.diagnosis.results import Diagnosis


@dataclass(frozen=True)
class Applied:
    """What a remedy did to a model.

    `left` says, by name, what it left as it was, and why. `cost` is in gradients, None where the method does not count
    it (a few forward passes); `kept` is False where a search found nothing better, and `reason` says why.
    """

    left: Mapping[str, str] = field(default_factory=dict)
    cost: float | None = None
    kept: bool = True
    reason: str = ""


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


@dataclass(frozen=True, repr=False)
class Treatment(Result):
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
        cost: of everything, in gradients; of what the time ended in, nothing.
        confirmations: the short runs of the proof, as given and treated, one pair for each data order; the first is
            `untreated` and `treated`.
        rate: the learning rate at which the treated start was proven; None where nothing was.
        wrapped: the model in the wrapper that was proven, where one was asked for.
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
    confirmations: tuple[tuple[Run, Run], ...] = ()
    rate: float | None = None
    wrapped: nn.Module | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing was tried because nothing of severity error or warning was found."""
        return not self.remedy and not any(finding.severity != "note" for finding in self.before.findings)

    def to_dict(self) -> dict[str, float]:
        """Held-out losses of both starts and the records of the start that the model now has."""
        now = self.after if self.kept and self.after is not None else self.before
        runs = {"untreated": self.untreated, "treated": self.treated}
        losses = {f"held_out_loss/{name}": run.held_out for name, run in runs.items() if run is not None}
        return now.to_dict() | losses
