"""A learning rate so far below what the curvature allows that training takes for ever."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, only_beside_notes

LOW = 1e-5  # of the largest stable rate


def judge(evidence: Evidence) -> Finding | None:
    """The rate given, where one is, over the largest stable one."""
    rate, allowed = evidence.rate, None if evidence.rate is None else evidence.allowed_rate
    if rate is None or allowed is None or not rate / allowed.bound < LOW:
        return None
    ratio = rate / allowed.bound
    return Finding(
        code="learning-rate-too-low",
        severity="warning",
        layer="",
        value=ratio,
        threshold=LOW,
        message=(
            f"The learning rate {rate:g} is {ratio:.1e} of the largest at which {allowed.optimizer} is stable "
            f"here ({allowed.bound:.3g}): training would take that much longer than it needs. "
            f"Try {allowed.value:.2g}."
        ),
        remedy="theta0 rate TARGET --verify",
        source=MEASURED,
    )


RULE = Rule(
    code="learning-rate-too-low",
    judge=judge,
    place=Place.LEARNING_RATE,
    fault="the learning rate",
    revise=only_beside_notes,  # a start that lets nothing through has next to no curvature, and any rate looks too low
    doc=RuleDoc(
        meaning="Nothing is wrong with the start, but the steps are so small that the loss will hardly move.",
        why="A rate from another optimizer or another model, or an exponent that is off by a few.",
        numbers=(
            (
                "the rate over the largest stable one, where nothing else is an error or a warning",
                f"{LOW:.0e}: warning".replace("e-0", "e-"),
                "measured",
            ),
        ),
        fix="""
            import theta0

            learning_rate = theta0.suggest_learning_rate(model, batches, loss).value
        """,
        command="`theta0 rate TARGET --verify`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 1e-7
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 0.1
        """,
        ignore="Where a pretrained network is to change only a little.",
        measured="The least ratio seen on a network that trains was 3e-4.",
    ),
)
