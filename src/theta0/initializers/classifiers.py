"""Whether a loss and its targets are a classifier's: starts that spread classes are for nothing else."""

from torch import Tensor, nn

from theta0._batches import Batch
from theta0._errors import InapplicableError
from theta0._losses import Loss, name_of

_REGRESSION = (nn.MSELoss, nn.L1Loss, nn.BCEWithLogitsLoss)  # whatever their settings: `name_of` knows the default ones


def require_classes(batch: Batch, loss: Loss) -> None:
    """Refuse what is no classifier of one class a sample, by its loss, or by targets that are numbers.

    Raises:
        InapplicableError: naming what was found.
    """
    name, targets = name_of(loss), batch.targets
    if name == "cross_entropy" or isinstance(loss, nn.CrossEntropyLoss):  # whatever its settings, and soft labels too
        return
    numbers = isinstance(targets, Tensor) and targets.is_floating_point()
    if name is not None or isinstance(loss, _REGRESSION) or numbers:
        given = loss if isinstance(loss, (str, nn.Module)) else name
        found = f"targets of type {targets.dtype}" if numbers and given is None else f"the loss {given!r}"
        raise InapplicableError(
            f"expected a classifier of two classes or more, got {found}; this start spreads the classes that a softmax "
            "predicts: take nio, gradinit or unit-variance"
        )
