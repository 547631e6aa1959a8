"""Labels that are learnt no faster than permuted ones."""

from theta0.diagnosis.evidence import BY_HEART, Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.experiments.shuffled_labels import LEAST_SAMPLES, PERMUTATIONS

ADVANTAGE = 0.1  # of what the real labels gain


def judge(evidence: Evidence) -> Finding | None:
    """By how much real labels are learnt better than the best of the permuted ones."""
    found = evidence.shuffled_labels
    if found is None or len(found.permuted) < PERMUTATIONS or not found.advantage < ADVANTAGE:
        return None
    return Finding(
        code="no-signal",
        severity="warning",
        layer="",
        value=found.advantage,
        threshold=ADVANTAGE,
        message=(
            f"The labels are learnt no faster than the same labels permuted among the samples (loss {found.real:.3g} "
            f"and {min(found.permuted):.3g} after {len(found.losses[0])} steps, {found.constant:.3g} without looking): "
            "what is learnt is the samples by heart. See whether inputs and labels still belong together: a shuffle, a "
            "sort or a join that moved one of them."
        ),
        remedy="# compare a few inputs with their labels by eye",
        source=MEASURED,
    )


RULE = Rule(
    code="no-signal",
    judge=judge,
    place=Place.DATA,
    fault="the data",
    doc=RuleDoc(
        meaning="The network learns, but nothing that would hold for other samples.",
        why="Inputs and labels were shuffled, sorted or filtered apart; or the inputs do not hold what the labels say.",
        numbers=(
            (
                "how much more loss the real labels lose than permuted ones, as a share, in the same short run, where "
                f"that gained less than {BY_HEART:.0%} of what there is to learn and there are {LEAST_SAMPLES} samples",
                f"{ADVANTAGE:g} on each of {PERMUTATIONS} permutations: warning",
                "measured",
            ),
        ),
        fix="""
            targets = inputs[:, :3].argmax(1)
            batches = [(inputs, targets)]
        """,
        command="No command changes your data; `--no-probe` leaves the runs out.",
        ill="""
            inputs, targets = torch.randn(512, 64), torch.randint(3, (512,))
            batches = list(zip(inputs.split(128), targets.split(128)))
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
            optimizer, learning_rate = "adam", 1e-3
        """,
        healthy="""
            inputs = torch.randn(512, 64)
            batches = list(zip(inputs.split(128), inputs[:, :3].argmax(1).split(128)))
            model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
            optimizer, learning_rate = "adam", 1e-3
        """,
        measured="A gain below a quarter of what there is to learn may be samples learnt by heart; above it none of "
        "the permuted runs came on a hundred samples or more.",
        ignore="Where few batches were read and the signal is weak: a larger `max_batches` shows it.",
    ),
)
