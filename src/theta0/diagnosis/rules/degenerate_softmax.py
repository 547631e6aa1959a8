"""A softmax that gives most classes next to no probability."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc

STARVED = 0.5  # of the classes


def judge(evidence: Evidence) -> Finding | None:
    """Most classes get next to no probability from any sample."""
    share = evidence.network.get("starved_class_share", 0.0)
    if not share >= STARVED:
        return None
    return Finding(
        code="degenerate-softmax",
        severity="warning",
        layer="",
        value=share,
        quantity="share of classes",
        threshold=STARVED,
        message=(
            f"The softmax leaves {share:.0%} of the classes without a thousandth of their fair share on any sample: "
            "the gradients of their logits are almost zero until the network has unlearned this. "
            "Make the outputs smaller, by the last layer's weight or by what feeds it."
        ),
        remedy="theta0 treat TARGET --with head-scale --out start.safetensors",
        source="lee2023mmd, section 3.2; threshold: judgement",
    )


RULE = Rule(
    code="degenerate-softmax",
    judge=judge,
    place=Place.FORWARD,
    remedies=("head-scale", "type-defaults"),
    refutable=True,
    doc=RuleDoc(
        meaning="At the start, the softmax gives most classes a probability of almost zero for every sample. The "
        "logit of such a class receives no gradient from samples of other classes, so the network first "
        "has to unlearn its certainty.",
        why="The logits are large and equal for all samples, because of a large bias or large weights in the "
        "last layer.",
        numbers=(
            (
                "the share of the C classes to which every sample of a batch gives less than a thousandth of 1/C",
                f"warning at {STARVED:g}",
                "lee2023mmd, section 3.2; judgement",
            ),
        ),
        fix="nn.init.zeros_(model[-1].bias)",
        command="`theta0 treat TARGET --with head-scale --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            model[-1].bias.data = torch.tensor([0.0, 50.0, 100.0])
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore it where the output bias holds the logarithms of the class frequencies, and most "
        "classes really are that rare.",
        measured="The share of *perturbed* models that miss a class (`measurements.neighbours`) separates nothing "
        "here: healthy classifiers start with the same class for every sample.",
    ),
)
