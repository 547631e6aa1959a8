"""The learning rate that the curvature at the start allows."""

from collections.abc import Sequence

from torch import nn

from theta0._batches import Batch
from theta0._errors import NoCurvatureError, UserCodeError
from theta0._losses import Loss, name_of
from theta0._training import OptimizerSettings
from theta0.curvature.learning_rate import LearningRate, cause, curvature_rate
from theta0.curvature.problem import Matrix

_MOST: dict[Matrix, int] = {"ggn": 6, "hessian": 5}  # products: twelve gradients with what goes before and after
LIMIT = 12  # gradients that these products take at most
_TOLERANCE = 0.1  # of λ: the thresholds are coarser


def allowed_rate(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, optimizer: str | OptimizerSettings
) -> tuple[LearningRate | None, str]:
    """The optimizer's stability bound on the first batch, about ten gradients, twelve at most.

    The Gauss-Newton matrix where the loss has one, else (a loss that couples samples) the Hessian. An absolute error
    has neither: its curvature sits in its kinks. So few products may leave λ a little too small, which errs on the side
    of saying nothing.

    Returns:
        The bound, None where there is no curvature to speak of, as where nothing reaches the weights; and the reason
        where it could not be measured.

    Raises:
        UserCodeError: if the model or the loss raises.
    """
    settings = OptimizerSettings(optimizer) if isinstance(optimizer, str) else optimizer
    matrices: tuple[Matrix, ...] = ("ggn",) if name_of(loss) == "l1" else ("ggn", "hessian")
    missing = ""
    for matrix in matrices:
        try:
            found = curvature_rate(
                model,
                batches[:1],
                loss,
                settings,
                matrix=matrix,
                tolerance=_TOLERANCE,
                max_products=_MOST[matrix],
            )
        except UserCodeError:
            raise
        except NoCurvatureError:
            return None, ""
        except (RuntimeError, ValueError) as error:  # an operator without a second derivative raises torch's own error
            missing = cause(error)
        else:
            return found, ""
    return None, missing
