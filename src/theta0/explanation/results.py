"""What an explanation says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from theta0._records import Result
from theta0.diagnosis.results import Diagnosis
from theta0.experiments.probe import ExperimentRun


@dataclass(frozen=True)
class Proof:
    """A change that makes a network train, and nothing else changed.

    Attributes:
        change: in words, as "`blocks.3` re-initialized".
        module: the path of the one module that was changed; empty where something else was.
        given: runs as the user trains, one a seed.
        changed: runs with the change, of the same seeds.
    """

    change: str
    module: str
    given: tuple[ExperimentRun, ...]
    changed: tuple[ExperimentRun, ...]

    @property
    def sentence(self) -> str:
        """The proof in one sentence."""
        after, before = self.changed[0], self.given[0]
        steps = len(after.losses)
        return (
            f"Proven: with {self.change} and nothing else changed, the loss after {steps} steps is {after.final:.3g} "
            f"instead of {before.final:.3g}."
        )


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """Why a network does not train, as far as experiments show it.

    Attributes:
        verdict: one or two sentences, the proven cause first.
        trains: whether it trains as given.
        proof: the change that makes it train, on two seeds; None where none was found.
        runs: every run, the one as given first.
        excluded: what was tried and did not help, in sentences.
        left_out: modules that were not re-initialized, and why.
        diagnosis: of the start; findings at the module that is proven guilty hold the runs as `evidence`.
        cost: in gradients.
        complete: whether everything was tried within the budget.
    """

    verdict: str
    trains: bool
    proof: Proof | None
    runs: tuple[ExperimentRun, ...]
    excluded: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    cost: float = 0.0
    complete: bool = True

    @property
    def module(self) -> str:
        """The path of the guilty module; empty where none was proven."""
        return "" if self.proof is None else self.proof.module

    def to_dict(self) -> dict[str, float]:
        """Whether it trains (1) or not (0), and the last losses of each change's first run, as trackers log numbers."""
        losses = {f"loss/{run.change or 'nothing changed'}": run.final for run in reversed(self.runs)}
        return {"trains": float(self.trains), **losses, "cost": self.cost}
