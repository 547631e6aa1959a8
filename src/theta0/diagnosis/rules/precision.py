"""Steps or squares that the number format of the weights, or of the optimizer's state, cannot hold; or epsilon."""

import math

import torch
from torch import nn

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded, listed

ERROR, WARNING = 0.9, 0.5  # of the weights in half precision
FEW = 0.1  # of the root mean square: one normal entry in twelve is smaller, and one infinite weight is enough
DAMPED = 0.03  # of epsilon
_HALF = (torch.float16, torch.bfloat16)
_ADAPTIVE = {"adam": (0.1, 1e-3), "adamw": (0.1, 1e-3), "rmsprop": (1.0, 1e-2)}  # 1 - β₁ and 1 - β₂


def judge(evidence: Evidence) -> Finding | None:
    """Half-precision weights: squares that underflow, then steps below half a spacing; gradients below epsilon."""
    if not evidence.has_loss or not evidence.finite:
        return None
    half = {n: p for n, p in evidence.parameters.items() if p.requires_grad and p.dtype in _HALF}
    found = (_squares(evidence, half) or _steps(evidence, half)) if half else None
    return found or _damped(evidence)


def _damped(evidence: Evidence) -> Finding | None:
    """An adaptive step divides by the gradient's size plus epsilon: below it the step shrinks with the gradient."""
    settings = evidence.kind.settings
    if settings is None or evidence.optimizer not in _ADAPTIVE:
        return None
    sizes = {
        n: evidence.table[n].get("gradient_norm", 0.0) / p.numel() ** 0.5
        for n, p in evidence.parameters.items()
        if n in evidence.trained
    }
    moved = {n: size for n, size in sizes.items() if size > 0}
    largest = max(moved.values(), default=math.inf)
    if not largest < DAMPED * settings.eps:
        return None
    name = max(moved, key=lambda n: moved[n])
    shown = {"adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}[evidence.optimizer]
    return Finding(
        code="precision",
        severity="error",
        layer=name,
        value=largest / settings.eps,
        quantity="gradient over epsilon",
        threshold=DAMPED,
        message=(
            f"The gradients' entries are of size {largest:.1e} at most (root mean square, of {name}), below the "
            f"epsilon of {shown}, {settings.eps:g}, which divides them: a step is {largest / settings.eps:.1e} of what "
            "the rate says. Leave out what makes the loss so small (a factor, a division twice), or lower eps."
        ),
        remedy="",
        source="Kingma & Ba (2015), Adam, algorithm 1",
        layers=tuple(moved),
    )


def _squares(evidence: Evidence, half: dict[str, nn.Parameter]) -> Finding | None:
    """(1 - β₂) g² rounds to zero, and so does ε: the step is a quotient by zero."""
    if evidence.optimizer not in _ADAPTIVE:
        return None
    first, second = _ADAPTIVE[evidence.optimizer]
    lost = []
    for name, p in half.items():
        least = torch.finfo(p.dtype).smallest_normal * torch.finfo(p.dtype).eps / 2
        gradient = evidence.table[name].get("gradient_norm", 0.0) / p.numel() ** 0.5
        if least > 1e-8 and first * gradient > least and second * (FEW * gradient) ** 2 < least:
            lost.append(name)
    share = _share(lost, half)
    if share < WARNING:
        return None
    kind = str(half[lost[0]].dtype).removeprefix("torch.")
    return _finding(
        share,
        lost,
        f"The optimizer's state is {kind}, as the weights are: the squares of the gradients of {listed(lost)} and "
        f"epsilon, 1e-8, round to zero in it, and the first step divides by zero.",
    )


def _steps(evidence: Evidence, half: dict[str, nn.Parameter]) -> Finding | None:
    """A step below half the spacing of the numbers around a weight changes nothing."""
    if evidence.rate is None:
        return None
    lost = []
    for name, p in half.items():
        numbers = evidence.table[name]
        gradient = numbers.get("gradient_norm", 0.0) / p.numel() ** 0.5
        reach = 1.0 if evidence.optimizer in _ADAPTIVE else gradient * (10 if evidence.optimizer == "momentum" else 1)
        if gradient > 0 and evidence.rate * reach < torch.finfo(p.dtype).eps / 2 * numbers.get("value_rms", 0.0):
            lost.append(name)
    share = _share(lost, half)
    if share < WARNING:
        return None
    kind = str(half[lost[0]].dtype).removeprefix("torch.")
    return _finding(
        share,
        lost,
        f"A step of the rate {evidence.rate:g} is smaller than half the spacing of {kind} numbers around the weights "
        f"of {listed(lost)}: it rounds to no change.",
    )


def _share(lost: list[str], half: dict[str, nn.Parameter]) -> float:
    return sum(half[name].numel() for name in lost) / sum(p.numel() for p in half.values())


def _finding(share: float, lost: list[str], what: str) -> Finding:
    severity, threshold = graded(share >= ERROR, ERROR, WARNING)
    return Finding(
        code="precision",
        severity=severity,
        layer=lost[0],
        value=share,
        threshold=threshold,
        message=f"{what} Keep weights and optimizer state in float32 and compute in half precision by torch.autocast.",
        remedy="model.float()",
        source="IEEE 754; Micikevicius et al. (2018), Mixed Precision Training, section 3.1",
        layers=tuple(lost),
    )


RULE = Rule(
    code="precision",
    judge=judge,
    place=Place.ARITHMETIC,
    brings=frozenset({"learning-rate-too-low"}),
    fault="the number format",
    doc=RuleDoc(
        meaning="The number format is too coarse: the weights do not change although the gradients are right, or "
        "the first step makes them infinite. Or the gradients are below the optimizer's epsilon, and "
        "steps are tiny.",
        why="A bfloat16 number has 8 bits of precision: a change below 0.4 % of a weight is rounded to "
        "nothing. In float16, the squared gradients that Adam keeps, and its epsilon, are below the "
        "smallest number. In any format, a loss that is scaled down very far has gradients below epsilon.",
        numbers=(
            (
                "the share of half-precision weights that a step does not change, or whose squared gradients round "
                "to zero in the optimizer's state. A step (rate times gradient; with Adam the rate itself) changes "
                "nothing if it is below half the distance to the next number",
                f"error at {ERROR:g}; warning at {WARNING:g}",
                "IEEE 754; the share is judgement",
            ),
            (
                "with Adam and RMSprop, the root mean square of a parameter's gradient over the optimizer's epsilon, "
                "the largest of all parameters",
                f"error below {DAMPED:g}",
                "the update rule: a step is that share of the rate",
            ),
        ),
        fix="model.float()",
        command="keep the weights in float32 and train with `torch.autocast`.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(torch.bfloat16)
            optimizer, learning_rate = "adam", 1e-5
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            optimizer, learning_rate = "adam", 1e-5
        """,
        ignore="You can ignore it where the optimizer keeps float32 copies of the weights, or rounds stochastically.",
    ),
)
