"""Batch normalization that sees a handful of values per channel."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc

SMALL = 4  # values per channel: the variance of so few is off by 80 %


def judge(evidence: Evidence) -> Finding | None:
    """Few values per channel, in training mode."""
    small = [norm for norm in evidence.inspection.norms if norm.training and norm.values <= SMALL]
    if not small:
        return None
    least = min(small, key=lambda norm: norm.values)
    return Finding(
        code="small-batch",
        severity="warning",
        layer=small[0].layer,
        value=float(least.values),
        quantity="values for each channel",
        threshold=float(SMALL),
        message=(
            f"Batch normalization {least.layer!r} takes its statistics from {least.values} values a channel, so they "
            f"are off by about {(2 / (least.values - 1)) ** 0.5:.0%} from batch to batch. "
            "Use larger batches, or GroupNorm, which does not look at other samples."
        ),
        remedy=f"torch.nn.GroupNorm(1, channels)  # in the place of {least.layer!r}",
        source="standard deviation of a variance of n values, √(2/(n-1)); Wu & He (2018), Group Normalization",
        layers=tuple(norm.layer for norm in small),
    )


RULE = Rule(
    code="small-batch",
    judge=judge,
    place=Place.BATCH_SIZE,
    fault="batch normalization",
    doc=RuleDoc(
        meaning="The mean and the variance that batch normalization uses are mostly noise, and the running "
        "statistics, which are used in evaluation mode, differ from them.",
        why="The batches are small, and the layer has only one position per sample, as after pooling.",
        numbers=(
            (
                "the number of values per channel that batch normalization sees in training mode",
                f"warning at {SMALL} or fewer",
                "Wu & He (2018); the variance of four values is off by 80 %",
            ),
        ),
        fix="batches = [(inputs, targets)]",
        command="make the batches larger where your script loads them.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
            batches = [(inputs[:4], targets[:4])]
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))",
        ignore="You can ignore it where you diagnose on smaller batches than you train on.",
    ),
)
