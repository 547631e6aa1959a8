"""Gradients that die out on their way back to the first layers or the first time steps."""

import math
from collections.abc import Collection, Sequence

from torch import nn

from theta0.diagnosis.chain import Link, arriving, falling_back, part_beside
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.opening import note_where_it_opens
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded

ERROR, WARNING = 1e-4, 1e-3  # of the largest
STEPS = 1e-9  # of the largest, over time steps


def judge(evidence: Evidence) -> list[Finding]:
    """Over layers, and over a recurrent layer's time steps."""
    links = [link for link in evidence.calls if link.backward is not None and math.isfinite(link.backward)]
    found = (_over_layers(links, evidence.observation.firsts), _over_steps(evidence))
    return [finding for finding in found if finding is not None]


def _over_layers(links: list[Link], firsts: Collection[str]) -> Finding | None:
    """The gradient dies out on its way from the loss to the first layers.

    What is left of it is what arrives at the layers that read the data: others may sit on side branches, as the queries
    of an attention do. A part with data of its own, beside one that gets the gradient, is held against its own largest:
    that little passes into it, as into an encoder through attention, is how such parts start.
    """
    fallen, largest = falling_back(links, WARNING), _largest(links)
    if not fallen:
        return None
    beside = part_beside(fallen, links, firsts, WARNING * largest)
    inner = falling_back(fallen, WARNING) if beside else []
    if beside and not inner and not arriving(fallen, firsts) < ERROR * largest:
        return None
    if inner:
        fallen, largest = inner, _largest(fallen)
    left, begins = arriving(fallen, firsts), fallen[-1]
    severity, threshold = graded(left < ERROR * largest and (bool(inner) or not beside), ERROR, WARNING)
    return Finding(
        code="vanishing-gradients",
        severity=severity,
        layer=begins.layer,
        value=left / largest,
        quantity="gradient left",
        threshold=threshold,
        message=(
            f"Going backward, the gradient's effect falls to {left / largest:.1e} of its largest; at {begins.layer!r} "
            f"and the {len(fallen) - 1} layers before it too little arrives for them to learn. Keep the "
            "preactivations' mean at zero (LCW) and their variance at one."
        ),
        remedy="theta0 treat TARGET --with lcw --out start.safetensors",
        source=MEASURED,
        layers=tuple(link.layer for link in reversed(fallen)),
    )


def _largest(links: Sequence[Link]) -> float:
    return max((link.sensitivity or 0.0 for link in links), default=0.0)


def _over_steps(evidence: Evidence) -> Finding | None:
    """The gradient dies out on its way back through the time steps of a recurrent layer."""
    lost = [link for link in evidence.calls if link.numbers.get("step_gradient_share", 1.0) < STEPS]
    if not lost:
        return None
    worst = min(lost, key=lambda link: link.numbers["step_gradient_share"])
    share, steps = worst.numbers["step_gradient_share"], int(worst.numbers["steps"])
    advice, remedy, source = _answer(evidence, worst.layer)
    return Finding(
        code="vanishing-gradients",
        severity="warning",  # a task that needs the last steps only is learned all the same
        layer=worst.layer,
        value=share,
        quantity="gradient left",
        threshold=STEPS,
        message=(
            f"Going back through the {steps} time steps of {worst.layer!r}, the gradient falls to {share:.1e} of its "
            f"largest: nothing can be learned from the first steps. {advice}, or read all steps. If the task needs the "
            "last steps only, ignore this."
        ),
        remedy=remedy,
        source=f"{source}; threshold {MEASURED}",
        layers=tuple(link.layer for link in lost),
    )


_GATED = (
    "Let its gates remember, by a forget bias of about the logarithm of the span",
    "theta0 treat TARGET --with long-memory --out start.safetensors",
    "Tallec & Ollivier (2018), chrono initialization",
)
_PLAIN = (
    "Give it orthogonal state-to-state weights (it has no gate that could remember)",
    "theta0 treat TARGET --with recurrent --out start.safetensors",
    "Saxe et al. (2014), orthogonal initialization",
)


def _answer(evidence: Evidence, layer: str) -> tuple[str, str, str]:
    """Advice, remedy and source for a recurrent layer, by whether it has gates."""
    module = evidence.model.get_submodule(layer)
    return _GATED if isinstance(module, nn.LSTM | nn.GRU) else _PLAIN


RULE = Rule(
    code="vanishing-gradients",
    judge=judge,
    quantities=("gradient_variance",),
    place=Place.BACKWARD,
    revise=note_where_it_opens,
    remedies=("long-memory", "recurrent", "lcw", "unit-variance"),
    refutable=True,
    doc=RuleDoc(
        meaning="The first layers, or the first time steps, receive almost no gradient: they keep their initial "
        "values while the last layers learn.",
        why="In the backward pass, each layer multiplies the gradient by its weights and by the slope of its "
        "nonlinearity. Saturated or shifted activations have small slopes; over many layers or time steps "
        "the factors multiply.",
        numbers=(
            (
                "how much the loss reacts to a change of 1 % at a layer (the norm of the gradient at its "
                "preactivations times their root mean square), at the layers that read the data, divided by the "
                "largest layer's. *Every* layer from the first to the one that is named has to be below the warning's "
                "threshold; a part with data of its own, as an encoder beside a decoder, is compared with its own "
                "largest layer, and with the network's as a warning from the error's threshold on",
                f"error below {ERROR:g}; warning below {WARNING:g}",
                "measured",
            ),
            (
                "of a recurrent layer: the gradient of the loss with respect to its input at one time step, the "
                "smallest divided by the largest",
                f"warning below {STEPS:.0e}".replace("e-0", "e-"),
                "judgement: default LSTMs read at the last step have 1e-3 at 15 steps, 3e-7 at 30, 5e-11 at 50",
            ),
        ),
        fix="""
            import theta0

            theta0.parametrize_(model, "lcw")
            theta0.initializers.unit_variance_(model, batches)
        """,
        command="`theta0 treat TARGET --with lcw --out start.safetensors` for feed-forward networks, "
        "`--with long-memory` for LSTM and GRU layers, `--with recurrent` for a plain `nn.RNN`. Without `--with` it "
        "tries them all.",
        ill="""
            layers = [part for _ in range(20) for part in (nn.Linear(8, 8), nn.Sigmoid())]
            model = nn.Sequential(*layers, nn.Linear(8, 3))
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3))",
        ignore="If the task depends only on the last time steps, ignore the warning about time steps. If it needs the "
        "first ones, treat it as an error: theta0 cannot know which of the two it is.",
        measured="""
            | gradient norm times root mean square, first layer over largest | networks | trained | stuck |
            | --- | --- | --- | --- |
            | below 1e-4 | 26 | 0 | 26 |
            | 1e-4 to 1e-3 | 12 | 0 | 12 |
            | 1e-3 to 0.01 | 9 | 0 | 9 |
            | 0.01 and more | 107 | 62 | 33 |
        """,
    ),
)
