"""Findings about the learning rate that the user trains with, against what the curvature at the start allows."""

from collections.abc import Sequence

from torch import nn

from theta0._batches import Batch
from theta0._errors import NoCurvatureError, UserCodeError
from theta0._losses import Loss, name_of
from theta0._records import Table
from theta0.curvature.learning_rate import LearningRate, suggest_learning_rate
from theta0.curvature.problem import Matrix
from theta0.diagnosis.results import Finding

HIGH_ERROR, LOW = 4.0, 1e-5
HIGH_WARNING = {"sgd": 1.25, "momentum": 1.25}  # adaptive optimizers were seen to train well at 1.8 times the bound
_ADAPTIVE_WARNING = 2.5
_BATCH_NORM_SLACK = 10.0
_MOST: dict[Matrix, int] = {"ggn": 6, "hessian": 5}  # products: twelve gradients with what goes before and after
_TOLERANCE = 0.1  # of λ: the thresholds are coarser
STEP_ERROR, STEP_WARNING = 2.0, 0.5  # of a weight's own norm
_LASTING = {"sgd": 1.0, "momentum": 10.0}  # heavy ball with β = 0.9 goes 1/(1-β) times as far along a lasting gradient


def measured_rate(model: nn.Module, batches: Sequence[Batch], loss: Loss, optimizer: str) -> LearningRate | None:
    """The optimizer's stability bound on the first batch, about ten gradients, twelve at most.

    The Gauss-Newton matrix where the loss has one, else (a loss that couples samples) the Hessian. An absolute error
    has neither: its curvature sits in its kinks. So few products may leave λ a little too small, which errs on the
    side of saying nothing.

    Returns:
        The rate and its bound; None where there is no curvature to speak of, as where nothing reaches the weights.

    Raises:
        UserCodeError: if the model or the loss raises.
    """
    matrices: tuple[Matrix, ...] = ("ggn",) if name_of(loss) == "l1" else ("ggn", "hessian")
    for matrix in matrices:
        try:
            return suggest_learning_rate(
                model,
                batches[:1],
                loss,
                optimizer,
                steps=0,
                matrix=matrix,
                tolerance=_TOLERANCE,
                max_products=_MOST[matrix],
            )
        except UserCodeError:
            raise
        except NoCurvatureError:
            return None
        except (RuntimeError, ValueError):  # an operator without a second derivative raises torch's own error
            continue
    return None


def rate_findings(
    rate: float, found: LearningRate, *, otherwise_healthy: bool, batch_norm: bool = False
) -> list[Finding]:
    """Hold a rate against the bound.

    Args:
        rate: the user's.
        found: what the curvature allows.
        batch_norm: whether batch normalisation in training mode makes the loss blind to the weights' scale; then a rate
            that is too high makes them grow, which lowers it (Arora, Li & Lyu, 2019), and ten times as much is allowed.
        otherwise_healthy: a start that lets nothing through has next to no curvature, and any rate looks too low.

    Returns:
        One finding, or none.
    """
    ratio = rate / found.bound
    slack = _BATCH_NORM_SLACK if batch_norm else 1.0
    error, warning = slack * HIGH_ERROR, slack * HIGH_WARNING.get(found.optimizer, _ADAPTIVE_WARNING)
    if ratio > warning:
        severe = ratio > error
        return [
            Finding(
                code="learning-rate-too-high",
                severity="error" if severe else "warning",
                layer="",
                value=ratio,
                threshold=error if severe else warning,
                message=(
                    f"The learning rate {rate:g} is {ratio:.3g} times the largest at which {found.optimizer} is stable "
                    f"here ({found.bound:.3g}; largest curvature {found.top_eigenvalue:.3g}): the first steps "
                    f"overshoot. Train at about {found.value:.2g}, or warm up from there."
                ),
                remedy="theta0 rate TARGET --verify",
                source="furusho2020thesis, section 2.4; Cohen et al. (2022) for Adam; measured, docs/rates.md",
            )
        ]
    if ratio < LOW and otherwise_healthy:
        return [
            Finding(
                code="learning-rate-too-low",
                severity="warning",
                layer="",
                value=ratio,
                threshold=LOW,
                message=(
                    f"The learning rate {rate:g} is {ratio:.1e} of the largest at which {found.optimizer} is stable "
                    f"here ({found.bound:.3g}): training would take that much longer than it needs. "
                    f"Try {found.value:.2g}."
                ),
                remedy="theta0 rate TARGET --verify",
                source="measured, docs/rates.md",
            )
        ]
    return []


def first_step(
    model: nn.Module, table: Table, rate: float, optimizer: str, *, batch_norm: bool = False
) -> Finding | None:
    """The first step of gradient descent (ten times it with momentum) changes two weights by about as much as they are.

    The curvature at the start says nothing of that: a squared error's does not depend on its targets, and their product
    is of higher order. Of one weight alone the outputs are linear, and a long step is as good as it is stable.

    Args:
        model: the model.
        table: what was measured.
        rate: the user's.
        optimizer: that it is for; adaptive optimizers' steps do not depend on the gradient's size.
        batch_norm: as for `rate_findings`.

    Returns:
        The finding, or None.
    """
    if optimizer not in _LASTING:
        return None
    moved = []
    for name, p in model.named_parameters():
        size = table.get(name, {}).get("value_rms", 0.0) * p.numel() ** 0.5
        if p.requires_grad and p.dim() > 1 and size > 0:
            moved.append((_LASTING[optimizer] * rate * table[name].get("gradient_norm", 0.0) / size, name))
    moved.sort(reverse=True)
    slack = _BATCH_NORM_SLACK if batch_norm else 1.0
    if len(moved) < 2 or not moved[1][0] > slack * STEP_WARNING:
        return None
    (_, first), (ratio, second) = moved[:2]
    severe = ratio > slack * STEP_ERROR
    return Finding(
        code="learning-rate-too-high",
        severity="error" if severe else "warning",
        layer=second,
        value=ratio,
        threshold=slack * (STEP_ERROR if severe else STEP_WARNING),
        message=(
            f"At the rate {rate:g} the first steps change {first!r} and {second!r} by {ratio:.3g} times their own norm "
            f"or more: what comes out is another network. For regression standardise the targets (the first loss is "
            f"{table.get('', {}).get('loss', float('nan')):.3g}); else divide the rate by {ratio / 0.01:.2g}, or clip "
            "the gradient's norm."
        ),
        remedy="theta0 rate TARGET --verify",
        source="measured, docs/rates.md",
    )
