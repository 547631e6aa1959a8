"""The largest rate at which each optimizer is stable at a top curvature of λ, and the share of it to try first."""

from theta0._training import OptimizerSettings

ADAPTIVE = ("adam", "adamw", "rmsprop")


def largest_rate(settings: OptimizerSettings, top: float) -> float:
    """The rate below which the iteration is stable along a direction of curvature λ.

    Gradient descent 2/λ; heavy ball 2(1+β)/λ; Nesterov 2(1+β)/((1+2β)λ), λ including the weight decay. RMSprop 2/λ and
    Adam (2+2β₁)/((1-β₁)λ) with λ of the preconditioned curvature (Cohen et al., 2022, "Adaptive gradient methods at
    the edge of stability"); AdamW's decay adds to λ what it amounts to there.
    """
    beta, first, decay = settings.momentum, settings.betas[0], settings.weight_decay
    if settings.optimizer in ("adam", "adamw"):
        averaged = (1 - first) / (1 + first)
        return 2 / (averaged * top + decay)
    if settings.optimizer == "momentum":
        return 2 * (1 + beta) / ((1 + 2 * beta if settings.nesterov else 1) * (top + decay))
    return 2 / (top + decay)


def start_share(settings: OptimizerSettings, matrix: str) -> float:
    """The share of the bound to try first; runs decide (`experiments.suggest_learning_rate`).

    A half for gradient descent (1/λ, the fastest on the quadratic) and RMSprop. With momentum 1-β, a half at most: near
    the bound it oscillates for 1/(1-β) steps while the curvature grows. Adam an eighth. The last two are not theory but
    what was found on five problems.

    With the Gauss-Newton matrix the first two are halved: it leaves out the network's own curvature, and λ at the start
    was up to 2.5 times smaller than the Hessian's.

    Returns:
        A number between 0 and 1.
    """
    if settings.optimizer in ("adam", "adamw"):
        return 1 / 8
    if settings.optimizer == "momentum":
        return min(1 / 2, 1 - settings.momentum) * (1 if matrix == "hessian" else 1 / 2)
    return 1 / 2 if settings.optimizer == "rmsprop" or matrix == "hessian" else 1 / 4
