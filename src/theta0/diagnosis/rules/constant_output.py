"""Outputs that are the same for every sample, or for most."""

from theta0.diagnosis.chain import zero_weight
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.opening import note_where_it_opens
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc

SPREAD = 1e-3  # standard deviation between samples over the root mean square
SHARE = 0.5  # of the samples


def judge(evidence: Evidence) -> Finding | None:
    """All samples get the same output although the last layer's weights are not zero; or most of them do."""
    return _constant(evidence) or _alike(evidence)


def _alike(evidence: Evidence) -> Finding | None:
    found = evidence.alike_outputs
    if found is None or found.alike < max(3.0, SHARE * found.samples):
        return None
    where = found.operation
    return Finding(
        code="constant-output",
        severity="error",
        layer="" if where is None else where.path,
        value=found.alike / found.samples,
        quantity="share of samples",
        threshold=SHARE,
        message=(
            f"{found.alike} of {found.samples} samples whose inputs differ get exactly the same output"
            + ("" if where is None else f", since {where}")
            + (". " if where is None else " gives the same for them. ")
            + "What they hold does not reach the output: look at what is selected there. Of padded sequences take each "
            "one's own last step, not the last of the padding."
        ),
        remedy="",
        source=MEASURED,
        layers=() if where is None else (where.path,),
        source_line="" if where is None else where.line,
    )


def _constant(evidence: Evidence) -> Finding | None:
    links, whole = evidence.links, evidence.network
    spread, rms = whole.get("output_sample_std"), whole.get("output_rms", 0.0)
    if spread is None or not links or links[-1].rms == 0 or not rms > 0 or not spread / rms < SPREAD:
        return None
    if zero_weight(links[-1], evidence.table) or (spread == 0 and evidence.waking):
        return None
    return Finding(
        code="constant-output",
        severity="error",
        layer=links[-1].layer,
        value=spread / rms,
        quantity="spread between samples",
        threshold=SPREAD,
        message=(
            f"The output is the same for every sample: it varies by {spread:.1e} between samples and is {rms:.1e} in "
            "size. Fix the first layer named above; if none is, look at what the last layer does to its input."
        ),
        remedy="theta0 treat TARGET --out start.safetensors",
        source=MEASURED,
        layers=(links[-1].layer,),
    )


RULE = Rule(
    code="constant-output",
    judge=judge,
    place=Place.FORWARD,
    revise=note_where_it_opens,
    remedies=("unit-variance", "lcw"),
    refutable=True,
    doc=RuleDoc(
        meaning="The network returns the same output for every input, or for most, so it cannot tell samples apart. "
        "The gradient depends on the samples hardly at all.",
        why="The cause is nearly always in an earlier layer: signals that shrink, activation shift, dead units "
        "or saturated units. The report lists it first. Where only some samples have the same output, the network "
        "looks at a place that holds nothing of them, as the padding behind a sequence.",
        numbers=(
            (
                "the standard deviation of the outputs between samples, divided by their root mean square. It is not"
                " judged where the last weight is zero (often on purpose), or where another weight or gain is zero "
                "and gets a gradient",
                f"error below {SPREAD:g}",
                "measured",
            ),
            (
                "samples whose inputs differ and whose outputs, in evaluation mode, are equal to the last bit, as a "
                "share of a batch; asked where a short run does not train",
                f"error from {SHARE:g}, three at least, if others differ",
                "exact; the threshold is judgement",
            ),
        ),
        fix="nn.init.zeros_(model[2].bias)",
        command="`theta0 treat TARGET --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
            nn.init.constant_(model[2].bias, 100)
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore it where the samples in the batches are nearly equal.",
        measured="""
            | spread between samples over root mean square, last hidden layer | networks | trained | stuck |
            | --- | --- | --- | --- |
            | below 1e-3 | 35 | 0 | 35 |
            | 1e-3 to 0.03 | 14 | 0 | 13 |
            | 0.03 to 0.1 | 8 | 2 | 6 |
            | 0.1 and more | 97 | 60 | 26 |

            The threshold is stricter than the table asks, because samples of some data (noise, nearly equal images)
            differ little to begin with.
        """,
    ),
)
