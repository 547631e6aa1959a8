"""Weights that are changed between an optimizer's steps: do the changes take back what the steps have learnt?"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

PARALLEL = 0.99  # cosine: a change that leads back, and nowhere else
OVERWRITTEN = 0.5  # of a tensor's norm
_FEWEST = 8  # entries of a tensor: any change of a number leads back or away
_MOST = 30_000_000  # entries of all: more are not copied


@dataclass(frozen=True)
class TakenBack:
    """A trained parameter that something other than its optimizer changes between any two steps.

    Attributes:
        parameter: its name.
        share: of the way from where it was, at the start or before the latest step, that each change leads back, the
            least that was seen; 0 where they lead elsewhere.
        overwritten: whether each change is as large as half of the tensor or more.
        weight: its entries, over those of all that the optimizer trains.
        line: the source line that writes to it; "" where none was seen.
    """

    parameter: str
    share: float
    overwritten: bool
    weight: float
    line: str = ""


def way_back(references: Sequence[Tensor], after: Tensor, now: Tensor) -> tuple[float, bool]:
    r"""How far a change leads back to where a tensor was: $\lVert w' - w\rVert / \lVert w - r\rVert$.

    Args:
        references: r, where it may lead back to.
        after: w, what a step left.
        now: w', what the next step finds.

    Returns:
        The share, at the nearest reference, 0 where the change and the way differ by more than cos = 0.99; and whether
        the change is as large as half of the tensor.

    Example:
        >>> import torch
        >>> start, after = torch.ones(8), 1 + torch.arange(8.0) / 16
        >>> way_back([start], after, start + 0.25 * (after - start))
        (0.75, False)
    """
    change = (now - after).double().flatten()
    size = float(change.norm())
    if size == 0 or after.numel() < _FEWEST:
        return 0.0, False
    found = 0.0
    for reference in references:
        way = (reference - after).double().flatten()
        length = float(way.norm())
        if length > 0 and bool(reference.any()) and float(change @ way) >= PARALLEL * size * length:
            found = max(found, size / length)
    return found, size >= OVERWRITTEN * float(after.double().norm())


@dataclass(eq=False)
class StepValues:  # grows while a script runs
    """The values of an optimizer's parameters before and after its steps, and what is changed between them.

    Attributes:
        start: before the first step.
        before: before the latest one.
        after: what that one left.
        changes: of each time between two steps, what `way_back` says of each parameter.
    """

    start: list[Tensor] = field(default_factory=list)
    before: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    changes: list[list[tuple[float, bool]]] = field(default_factory=list)

    def begins(self, parameters: Sequence[Tensor]) -> None:
        """To be called before a step."""
        if sum(p.numel() for p in parameters) > _MOST:
            return
        now = [p.detach().clone() for p in parameters]
        if [p.shape for p in now] == [p.shape for p in self.after]:
            rows = zip(self.start, self.before, self.after, now, strict=True)
            self.changes.append([way_back((start, before), after, p) for start, before, after, p in rows])
        elif self.after:
            self.start, self.changes = [], []
        self.start, self.before = self.start or now, now

    def ends(self, parameters: Sequence[Tensor]) -> None:
        """To be called after it."""
        self.after = [p.detach().clone() for p in parameters] if self.before else []

    def taken_back(self, names: Sequence[str], lines: Sequence[str]) -> tuple[TakenBack, ...]:
        """The parameters that every change leads back, or overwrites, where two changes or more were seen.

        Args:
            names: of the parameters.
            lines: that write to them.

        Returns:
            One for each of them.
        """
        entries, found = sum(p.numel() for p in self.start), []
        for number, (name, line) in enumerate(zip(names, lines, strict=True)):
            seen = [row[number] for row in self.changes] if len(self.changes) > 1 else []
            share, overwritten = min((s for s, _ in seen), default=0.0), bool(seen) and all(o for _, o in seen)
            if share > 0 or overwritten:
                found.append(TakenBack(name, share, overwritten, self.start[number].numel() / entries, line))
        return tuple(found)
