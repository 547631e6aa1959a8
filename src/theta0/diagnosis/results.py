"""What a diagnosis says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from theta0._records import Record, Result, Shown, flat
from theta0.curvature.learning_rate import LearningRate
from theta0.experiments.probe import ExperimentRun, Probe

Severity = Literal["error", "warning", "note"]
MEASURED = "measured, see theta0 help"  # the source of a threshold that its rule's documentation justifies


@dataclass(frozen=True, repr=False)
class Finding(Shown):
    """One thing that is wrong, or worth knowing, about a starting point.

    Attributes:
        code: its kind, the code of its rule; `theta0 help CODE` explains it.
        severity: `error` (will not train, or wrong), `warning` (will train badly), `note` (worth knowing).
        layer: where it begins; the empty string is the whole network.
        value: the number that shows it.
        threshold: the number that it was held against.
        message: two sentences for a practitioner: what is wrong where, and what to do.
        remedy: the command or line of code that fixes it; the empty string if there is none.
        source: where the threshold comes from.
        layers: every layer concerned, `layer` first.
        cause: the code of an earlier finding from which this one may follow; the empty string if there is none.
        evidence: the short runs that prove it.
        source_line: the line of the user's program where it arises, with its text, `model.py:42: x = x.detach()`; the
            empty string where none is known.
        quantity: what `value` is, in a few words: `share of copies`; the empty string where the message says it.
    """

    code: str
    severity: Severity
    layer: str
    value: float
    threshold: float
    message: str
    remedy: str
    source: str
    layers: tuple[str, ...] = ()
    cause: str = ""
    evidence: tuple[ExperimentRun, ...] = ()
    source_line: str = ""
    quantity: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """What was measured at a starting point and what it means.

    Attributes:
        records: every number measured, layers in execution order.
        findings: what is wrong, ordered by cause: fixing the first may remove the later ones.
        cost: in gradients (one forward and backward pass of this model on the mean batch is 1).
        learning_rate: what the curvature allows, where the user's rate was given and judged.
        probe: whether short runs train; None where none were made.
        not_measured: what could not be looked at and why, or was left undecided, in sentences; nothing is said of it.
        layer_types: of each layer in the records, its type and the shape of its weight, as `Linear 10×64`.
    """

    records: tuple[Record, ...]
    findings: tuple[Finding, ...]
    cost: float
    learning_rate: LearningRate | None = None
    probe: Probe | None = None
    not_measured: tuple[str, ...] = ()
    layer_types: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def healthy(self) -> bool:
        """Whether no finding has severity error, in what was measured; see `not_measured`."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, float]:
        """Every record as `{"layer/quantity": value}`, the dictionary that an experiment tracker logs."""
        return flat(self.records)
