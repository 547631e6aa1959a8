"""What a rule is: one kind of finding, with everything that is known of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding, Severity


class Place(IntEnum):  # an enumeration, because places are compared and each has a name
    """A place in the order of causes: a finding may be the reason for those at later places, hardly the reverse.

    Within `FORWARD` the layer decides: what begins earlier in the network comes first.
    """

    LOSS = 0
    DATA = 1
    NORMALIZATION = 2
    OUTPUT = 3
    SYMMETRY = 4
    ZERO_WEIGHTS = 5
    ARITHMETIC = 6
    FORWARD = 7
    BACKWARD = 8
    ZERO_GRADIENTS = 9
    BATCH_SIZE = 10
    LEARNING_RATE = 11
    UNUSED = 12
    FROZEN = 13
    GRADIENT_NOISE = 14
    OUTCOME = 15


Fault = Literal[
    "the start",
    "the data",
    "the output and the loss",
    "batch normalization",
    "the learning rate",
    "the forward pass",
    "the training loop",
    "the number format",
    "which parameters are trained",
    "the loading of the checkpoint",
]
Judgement = Callable[[Evidence], Iterable[Finding] | Finding | None]
# Of one finding, beside the others: a place with the layer that decides within FORWARD, or the finding revised.
PlaceOf = Callable[[Finding, Sequence[Finding], Evidence], tuple[Place, str]]
Revision = Callable[[Finding, Sequence[Finding], Evidence], Finding | None]


@dataclass(frozen=True)
class RuleDoc:
    """The documentation of a finding's code; every text is Markdown.

    The examples are Python that runs after `documentation.PRELUDE` and defines `model`, and where they differ from the
    prelude's, `batches`, `loss`, `optimizer`, `learning_rate` and `observed`.

    Attributes:
        meaning: what it means for training.
        why: why it happens.
        numbers: rows of (what is measured, from where on it is an error, a warning or a note, the threshold's source).
        fix: Python that, run after the ill example, removes the finding.
        command: how to fix it on the command line.
        ill: an example that has the finding.
        healthy: its like without the finding.
        ignore: when to ignore it.
        measured: how the threshold was measured or justified.
    """

    meaning: str
    why: str = ""
    numbers: tuple[tuple[str, str, str], ...] = ()
    fix: str = ""
    command: str = ""
    ill: str = ""
    healthy: str = ""
    ignore: str = ""
    measured: str = ""


@dataclass(frozen=True)
class Rule:
    """One kind of finding.

    Attributes:
        code: its name.
        judge: looks at the evidence and returns the finding, several, or None.
        place: its place in the order of causes; a function where that depends on the other findings.
        doc: its documentation.
        brings: the codes of what follows from it.
        fault: what has to be changed; "the start" for what another initialization fixes.
        remedies: names of the remedies of `theta0 treat` that answer it, likeliest first. A search (nio, mmd) is named
            only where nothing cheap answers: it costs as many gradients as several short runs.
        revise: changes a finding in the light of the others, all of them as judged, or withdraws it by None.
        alone: whether, on this evidence, nothing but this rule can be judged.
        refutable: whether it says that a start or a scale holds training back, so that a run that trains refutes it.
        quantities: of the record that shows it at a layer, which tables mark there; of several, the least is marked.
        outcome: whether it says what becomes of training, not why: it follows from any other error or warning, and the
            first of these is then an error.
    """

    code: str
    judge: Judgement
    place: Place | PlaceOf
    doc: RuleDoc
    brings: frozenset[str] = frozenset()
    fault: Fault = "the start"
    remedies: tuple[str, ...] = ()
    revise: Revision | None = None
    alone: Callable[[Evidence], bool] | None = None
    refutable: bool = False
    quantities: tuple[str, ...] = ()
    outcome: bool = False


def graded(severe: bool, error: float, warning: float) -> tuple[Severity, float]:
    """The severity of a finding and the threshold that it is past."""
    return ("error", error) if severe else ("warning", warning)


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def whole_parts(evidence: Evidence, names: Sequence[str]) -> list[str]:
    """The model's own parts of which the optimizer holds parameters, all of them among these."""
    held = [name for name in evidence.trained if name not in evidence.kind.lacking]
    parts = [part for part, _ in evidence.model.named_children()]
    inside = {part: [name for name in held if name.startswith(f"{part}.")] for part in parts}
    return [part for part, found in inside.items() if found and set(found) <= set(names)]


def error_codes(findings: Iterable[Finding]) -> set[str]:
    """The codes that are errors."""
    return {finding.code for finding in findings if finding.severity == "error"}


def only_beside_notes(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """A revision: the finding stands only where nothing else is an error or a warning."""
    return finding if all(other.severity == "note" for other in others) else None
