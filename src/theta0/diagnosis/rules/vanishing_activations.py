"""What differs between samples dies out on the way to the output."""

import math

from theta0.diagnosis.chain import Link, final_run, without_zero_weights
from theta0.diagnosis.consequences import SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.diagnosis.rules.activation_shift import BY_WEIGHTS
from theta0.diagnosis.rules.constant_output import SPREAD

ABRUPT, LEAST_GAIN = 1e-3, 0.1  # of the layer before; weights' root mean square times √fan-in
SILENT, SHRUNK = 1e-3, 1e-2  # of an output, and of the last hidden layer over the first


def judge(evidence: Evidence) -> Finding | None:
    """The spread between samples is lost, and no later layer restores it."""
    links = without_zero_weights(evidence.links, evidence.table)
    silent = _dying_out(links, evidence.network.get("output_rms", math.inf))
    run = silent or (_without_spread(links) if sum(batch.size for batch in evidence.batches) > 1 else [])
    hidden = [link for link in links if link.rms > 0]
    if len(run) < 1 or len(hidden) < 2 or run[0] is hidden[0]:
        return None
    first, start, end = run[0], hidden[0], run[-1]
    if first.spread == 0 and evidence.waking:  # a gain that starts at zero on purpose
        return None
    steps = max(1, hidden.index(end) - hidden.index(start))
    before = hidden[hidden.index(first) - 1]
    between = not silent and _between(evidence, before, first)
    advice = (
        f"It is lost at once, and not by weights: look at what is computed between {before.layer!r} and there (a mask, "
        "a mean or a softmax over the wrong axis, a norm of too much)."
        if between
        else "Rescale the weights so that every layer's output has unit variance."
    )
    factor = (end.spread / start.spread) ** (1 / steps) if start.spread > 0 else 0.0
    return Finding(
        code="vanishing-activations",
        severity="error",
        layer=first.layer,
        value=end.rms / start.rms if silent else first.relative_spread,
        threshold=SHRUNK if silent else SPREAD,
        message=(
            f"What differs between samples shrinks by a factor of {factor:.2g} a layer and is down to "
            f"{end.spread:.1e} of {end.rms:.1e} at the last layer; it is lost from {first.layer!r} on. {advice}"
        ),
        remedy="" if between else "theta0 treat TARGET --with unit-variance --out start.safetensors",
        source=MEASURED,
        layers=tuple(link.layer for link in run),
    )


def _without_spread(links: list[Link]) -> list[Link]:
    return final_run(links, lambda link: link.relative_spread < SPREAD and not _shifted_by_weights(link))


def _between(evidence: Evidence, before: Link, behind: Link) -> bool:
    """Whether the signal is whole at one layer and gone at the next, whose weights are not small."""
    weight = evidence.parameters.get(f"{behind.layer.partition('#')[0]}.weight")
    if weight is None or weight.dim() < 2 or not behind.relative_spread < ABRUPT * before.relative_spread:
        return False
    size = evidence.table[f"{behind.layer.partition('#')[0]}.weight"].get("value_rms", 0.0)
    return size * math.sqrt(weight[0].numel()) > LEAST_GAIN


def _shifted_by_weights(link: Link) -> bool:
    return link.numbers.get("weight_shift_share", 0.0) >= BY_WEIGHTS


def _dying_out(links: list[Link], output: float) -> list[Link]:
    """The layers from where the signal is lost, where nothing carries the rest: everything shrinks, to the output."""
    # A last layer that alone is small, as some start it, is another thing: the hidden layers must have shrunk too.
    loud = [link for link in links if link.rms > 0]
    if len(loud) < 3 or output >= SILENT:
        return []
    return final_run(links[: links.index(loud[-1])], lambda link: link.rms < SHRUNK * loud[0].rms)


RULE = Rule(
    code="vanishing-activations",
    judge=judge,
    quantities=("preactivation_variance", "sample_share"),
    place=Place.FORWARD,
    brings=SILENCE - {"vanishing-activations"},
    remedies=("unit-variance", "lcw"),
    refutable=True,
    doc=RuleDoc(
        meaning="The layers' outputs hardly depend on the sample any more. The last layer cannot tell samples "
        "apart, and the gradient that reaches the first layers is as small.",
        why="Each layer multiplies the signal by a factor below one, because its weights are too small for its "
        "fan-in (its number of inputs) and its nonlinearity. Over many layers the factors multiply.",
        numbers=(
            (
                "the standard deviation of a layer's preactivations between samples, divided by their root mean "
                "square, in all layers from there to the last. What activation shift causes is not counted",
                f"error below {SPREAD:g}",
                "measured, see [constant-output](constant-output.md)",
            ),
            (
                "the root mean square of the last hidden layers, divided by that of the first, where no other path "
                "carries the signal",
                f"error below {SHRUNK:g}, if the output is below {SILENT:g}",
                "judgement",
            ),
        ),
        fix="""
            from theta0.initializers import unit_variance_

            unit_variance_(model, batches)
        """,
        command="`theta0 treat TARGET --with unit-variance --out start.safetensors`",
        ill="""
            layers = [part for _ in range(8) for part in (nn.Linear(8, 8, bias=False), nn.Tanh())]
            model = nn.Sequential(*layers, nn.Linear(8, 3, bias=False))
            for layer in model[::2]:
                nn.init.orthogonal_(layer.weight, gain=0.1)
        """,
        healthy="""
            layers = [part for _ in range(8) for part in (nn.Linear(8, 8, bias=False), nn.Tanh())]
            model = nn.Sequential(*layers, nn.Linear(8, 3, bias=False))
            for layer in model[::2]:
                nn.init.orthogonal_(layer.weight)
        """,
        ignore="You can ignore it where the samples in the batches are nearly equal.",
    ),
)
