"""Gradients of different batches that hardly agree."""

import math

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, only_beside_notes

AGREEMENT = 0.05  # of whole batches; healthy starts have 0.3 and more, unless their batches are mostly noise
LEAST_BATCHES = 4  # two or three small ones often disagree


def judge(evidence: Evidence) -> Finding | None:
    """The mean cosine between the gradients of whole batches."""
    whole = evidence.network
    agreement, rms = whole.get("gradient_agreement", 1.0), whole.get("output_rms", 0.0)
    if len(evidence.batches) < LEAST_BATCHES or not agreement < AGREEMENT:
        return None
    spread = f"{whole.get('output_sample_std', math.nan) / rms:.2g} of their size" if rms > 0 else "not at all"
    return Finding(
        code="gradient-conflict",
        severity="note",
        layer="",
        value=agreement,
        quantity="mean cosine",
        threshold=AGREEMENT,
        message=(
            f"The gradients of different batches disagree (mean cosine {agreement:.2g}, while outputs vary between "
            f"samples by {spread}): each step undoes much of the last. "
            "Larger batches help; scaling the layers for agreement (NIO) may."
        ),
        remedy="theta0 treat TARGET --with nio --out start.safetensors",
        source="yang2022nio, section 3; threshold: judgement",
    )


RULE = Rule(
    code="gradient-conflict",
    judge=judge,
    place=Place.GRADIENT_NOISE,
    remedies=("nio",),
    revise=only_beside_notes,
    doc=RuleDoc(
        meaning="The gradients of different batches disagree: a step on one batch is undone by the step on the "
        "next. Training is slow and the loss is noisy.",
        why="The batches are too small for their noise, the labels are noisy, or the samples have nothing in common.",
        numbers=(
            (
                "the mean cosine between the gradients of whole batches, weighted by their norms, over "
                f"{LEAST_BATCHES} batches or more, where no error or warning is found. Look at the spread of the "
                "outputs beside it",
                f"note below {AGREEMENT:g}",
                "yang2022nio, section 3; judgement",
            ),
        ),
        fix="batches = [(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))] * 4",
        command="`theta0 treat TARGET --with nio --out start.safetensors`, or larger batches where your script loads "
        "them.",
        ill="""
            model = nn.Linear(8, 1, bias=False)
            batches = [(torch.eye(8)[[2 * i, 2 * i + 1]], torch.tensor([[1.0], [2.0]])) for i in range(4)]
            loss = "mse"  # no two batches share a feature
        """,
        healthy="""
            model = nn.Linear(8, 1, bias=False)
            batches = [(torch.eye(8)[[0, 1]], torch.tensor([[1.0], [2.0]])) for i in range(4)]
            loss = "mse"
        """,
        ignore="You can ignore it where you know that the batches are noisy, and the loss falls.",
        measured="The examples and the healthy controls have 0.36 and more, but for one with 0.04 that trains well; "
        "hence a note.",
    ),
)
