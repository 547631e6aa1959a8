"""A learning rate above what the curvature, or the size of the first step, allows."""

from dataclasses import replace

from torch.nn.modules.batchnorm import _BatchNorm

from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.outcome import better_rate, fall
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded
from theta0.experiments.probe import ExperimentRun, Probe

ERROR, WARNING = 4.0, 1.25  # over the largest stable rate
ADAPTIVE_WARNING = 2.5  # adaptive optimizers were seen to train well at 1.8 times the bound
STEP_ERROR, STEP_WARNING = 2.0, 0.5  # of a weight's own norm
BATCH_NORM_SLACK = 10.0
_WAY, _AHEAD = 0.1, 2.0  # a lower rate wins a trial by this share of the way to learning, and so many times as far
# How far a lasting gradient takes each: heavy ball with β = 0.9 goes 1/(1-β) times as far. The steps of adaptive
# optimizers do not depend on the gradient's size.
_LASTING = {"sgd": 1.0, "momentum": 10.0}


def judge(evidence: Evidence) -> Finding | None:
    """What the curvature says of the rate given, as far as a trial of it does not say otherwise."""
    if evidence.rate is None:
        return None
    suspected, probe = _suspected(evidence, evidence.rate), evidence.probe
    run = None if probe is None else probe.at(evidence.rate)
    return suspected if probe is None or run is None else _tried(suspected, run, probe)


def _suspected(evidence: Evidence, rate: float) -> Finding | None:
    """The rate over the largest stable one; where that says nothing, the length of a step."""
    allowed = evidence.allowed_rate
    found = None if allowed is None else _unstable(rate, allowed, _slack(evidence))
    return found or (_first_step(evidence, rate) if evidence.finite else None)


def _tried(suspected: Finding | None, run: ExperimentRun, probe: Probe) -> Finding | None:
    """An error where the rate does not train and a lower one does, or is on its way; else a note at most."""
    lower = [other for other in probe.runs if other.rate < run.rate and other.outcome != "diverges"]
    better = max(lower, key=probe.way, default=None)
    wins = better is not None and probe.way(better) > max(_WAY, _AHEAD * probe.way(run))
    open_ = run.outcome == "undecided" and not (better is not None and _clearly(better, run, probe))
    if better is None or not wins or run.outcome == "trains" or open_:
        if suspected is None:
            return None
        verdict = "the rate is not what is wrong" if run.outcome == "trains" else "no lower rate does better"
        facts = suspected.message.partition(" Train at")[0].partition(": the first steps overshoot")[0].rstrip(".")
        message = f"{facts}. Tried all the same, {fall(run, probe.first)}: {verdict}."
        return replace(suspected, severity="note", message=message, remedy="", evidence=probe.runs)
    return better_rate("error", run, better, probe)


def _clearly(better: ExperimentRun, run: ExperimentRun, probe: Probe) -> bool:
    """Whether a lower rate trains in no more steps, while the rate has gone next to none of the way."""
    return better.outcome == "trains" and len(better.losses) <= len(run.losses) and probe.way(run) < _WAY


def _slack(evidence: Evidence) -> float:
    """How many times as much is allowed with batch normalization in training mode."""
    # It makes the loss blind to the weights' scale; a rate too high makes them grow, which lowers it (Arora, Li & Lyu,
    # 2019).
    normalized = any(isinstance(m, _BatchNorm) and m.training for m in evidence.model.modules())
    return BATCH_NORM_SLACK if normalized else 1.0


def _unstable(rate: float, allowed: LearningRate, slack: float) -> Finding | None:
    ratio = rate / allowed.bound
    error, warning = slack * ERROR, slack * (WARNING if allowed.optimizer in _LASTING else ADAPTIVE_WARNING)
    if not ratio > warning:
        return None
    severity, threshold = graded(ratio > error, error, warning)
    return Finding(
        code="learning-rate-too-high",
        severity=severity,
        layer="",
        value=ratio,
        quantity="rate over the bound",
        threshold=threshold,
        message=(
            f"The learning rate {rate:g} is {ratio:.3g} times the largest at which {allowed.optimizer} is stable "
            f"here ({allowed.bound:.3g}; largest curvature {allowed.top_eigenvalue:.3g}): the first steps "
            f"overshoot. Train at about {allowed.value:.2g}, or warm up from there."
        ),
        remedy="theta0 rate TARGET --verify",
        source=f"furusho2020thesis, section 2.4; Cohen et al. (2022) for Adam; {MEASURED}",
    )


def _first_step(evidence: Evidence, rate: float) -> Finding | None:
    """The first step of gradient descent (ten times it with momentum) changes two weights by about their own size."""
    # The curvature at the start says nothing of that: a squared error's does not depend on its targets, and their
    # product is of higher order. Of one weight alone the outputs are linear, and a long step is as good as a short one
    # while it is stable.
    if evidence.optimizer not in _LASTING:
        return None
    moved = []
    for name, p in evidence.parameters.items():
        numbers = evidence.table.get(name, {})
        size = numbers.get("value_rms", 0.0) * p.numel() ** 0.5
        if p.requires_grad and p.dim() > 1 and size > 0:
            moved.append((_LASTING[evidence.optimizer] * rate * numbers.get("gradient_norm", 0.0) / size, name))
    moved.sort(reverse=True)
    slack = _slack(evidence)
    if len(moved) < 2 or not moved[1][0] > slack * STEP_WARNING:
        return None
    (_, first), (ratio, second) = moved[:2]
    severity, threshold = graded(ratio > slack * STEP_ERROR, slack * STEP_ERROR, slack * STEP_WARNING)
    return Finding(
        code="learning-rate-too-high",
        severity=severity,
        layer=second,
        value=ratio,
        threshold=threshold,
        message=(
            f"At the rate {rate:g} the first steps change {first!r} and {second!r} by {ratio:.3g} times their own norm "
            f"or more: what comes out is another network. For regression standardize the targets (the first loss is "
            f"{evidence.network.get('loss', float('nan')):.3g}); else divide the rate by {ratio / 0.01:.2g}, or clip "
            "the gradient's norm."
        ),
        remedy="theta0 rate TARGET --verify",
        source=MEASURED,
    )


RULE = Rule(
    code="learning-rate-too-high",
    judge=judge,
    place=Place.LEARNING_RATE,
    fault="the learning rate",
    doc=RuleDoc(
        meaning="The first steps overshoot: the loss rises or becomes NaN, or the steps are so large that they "
        "destroy the initialization.",
        why="The curvature of the loss is too large for this learning rate, or the first gradient is as large "
        "as the weights, as with regression targets that were not standardized.",
        numbers=(
            (
                "how far short runs get at the rate and at lower ones: the share of the way from the first loss to "
                "the loss that counts as learning",
                f"error if the rate is stuck or diverges and a lower one gets {_WAY:.0%} of the way or more and "
                f"{_AHEAD:g} times as far; error if a lower one trains and the rate gets less than {_WAY:.0%} of the "
                "way. Where the rate trains, the quantities below are a note at most",
                "measured",
            ),
            (
                "the rate, divided by the largest stable one (from λ of the Gauss-Newton matrix on the first batch)",
                f"error above {ERROR:g}; warning above {WARNING:g} (SGD, momentum) or {ADAPTIVE_WARNING:g} (adaptive "
                f"optimizers); {BATCH_NORM_SLACK:g} times these with batch normalization in training mode",
                "above the bound the quadratic diverges; measured",
            ),
            (
                "with SGD and momentum: the length of the first step (ten times that with momentum 0.9), divided by "
                "the weight's norm, for all weights but the one that moves most",
                f"error above {STEP_ERROR:g}; warning above {STEP_WARNING:g}; {BATCH_NORM_SLACK:g} times these with "
                "batch normalization",
                "measured",
            ),
        ),
        fix="""
            import theta0

            # your optimizer: "sgd", "momentum", "adam", "adamw", …
            learning_rate = theta0.suggest_learning_rate(model, batches, loss, "adam").value
        """,
        command="`theta0 rate TARGET` takes the optimizer from your script.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 100.0
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 0.1
        """,
        ignore="You can ignore it where a warm-up leads to this rate, so that the first steps are far below it.",
        measured="""
            **Rates above 2/λ**, the largest stable one ([Learning rates](../rates.md)). Plain ResNets on digits, MNIST
            and a JPEG copy of CIFAR-10: the loss fell in 75 of 75 runs at 1.6 times 2/λ, in 33 of 75 at 4 times
            (`theta0 reproduce furusho2020thesis fig17`, `fig22`). A transformer trained well with Adam at 1.8
            times. Batch normalization in training mode makes the loss blind to the weights' scale, so that a high rate
            lowers itself (Arora, Li & Lyu, 2019): a 30-layer network with it trained well with Adam at 9 to 18 times.

            **The length of the first step** is judged because the curvature at the start does not know a squared
            error's targets: on unscaled ones descent diverges at a rate far below the bound. ReLU regressors (one and
            three hidden layers, targets of 1 to 10,000, SGD at 1e-2 and 1e-3, 36 runs, one seed) all diverged from a
            length of 0.3 on; those with three layers failed from 0.01 on, where a single step says nothing yet. Tanh
            ones still learned at 0.4; at 1 the three-layer ones were left with half of the constant's loss. With
            momentum the same happened at a tenth of these lengths. Healthy starts had 0.08 at most (0.3 with momentum
            and batch normalization). So the thresholds are late for deep ReLU networks.

            The adaptive threshold, the slack for batch normalization and the two error levels were set after looking at
            networks that trained in spite of a first, stricter value; they have not been tried on networks that took no
            part in setting them. An absolute error has no curvature but in its kinks; nothing is said of its rate.
        """,
    ),
)
