"""What only a script that runs shows of its training, beside model, data, loss and optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass

from theta0.measurements.taken_back import TakenBack
from theta0.measurements.unloaded_weights import NotLoaded


@dataclass(frozen=True)
class ObservedTraining:
    """What a captured script does around its steps; a script's `CapturedStep.arguments` bring it.

    Attributes:
        gradient_kept: the share of the gradient's norm, after the backward passes, that the optimizer's step finds, as
            the median over the steps seen: 1 without clipping, 0 where gradients are reset before the step; loss scales
            that are taken out again do not count. None where no step is seen, or it evaluates the loss itself.
        rates: the learning rates of the steps seen, and of those to come where a scheduler steps with each; None where
            they are not known.
        opposed: whether something beyond the loss keeps it in bounds: another optimizer trains what the loss depends
            on, or weights are rewritten between steps, as a critic's that are clipped. A loss that falls without end is
            then no finding.
        taken_back: the trained parameters that are changed between steps so that these lead nowhere.
        not_loaded: the calls of `load_state_dict(…, strict=False)` that left out what they were given.
        later: the line of the script that trains again behind what was captured, and how to look at that; "" where none
            is seen.
        loss_line: the script's line that calls a standard loss, which is stated by its name; "" for any other.
        left_over: the share of the gradient's entries that, at each step but the first, still hold the gradient of an
            earlier one: 1 where gradients are never reset. None where it is not known.
        data_changed: the line that changes, whenever it reads them, the values that the script's data set stores; ""
            where none is seen.

    Raises:
        ValueError: if a share is none from 0 to 1.

    Example:
        >>> ObservedTraining(gradient_kept=0.2).opposed  # clipped from a norm of 5 to 1
        False
    """

    gradient_kept: float | None = None
    rates: Sequence[float] | None = None
    opposed: bool = False
    taken_back: Sequence[TakenBack] = ()
    not_loaded: Sequence[NotLoaded] = ()
    later: str = ""
    loss_line: str = ""
    left_over: float | None = None
    data_changed: str = ""

    def __post_init__(self) -> None:
        """Check the shares."""
        for name in ("gradient_kept", "left_over"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name}: expected a share from 0 to 1, or None, got {share}")


NOTHING_OBSERVED = ObservedTraining()
