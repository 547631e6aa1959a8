"""Findings about what flows backward: vanishing, exploding and zero gradients, unused and frozen parameters."""

import math
from collections.abc import Sequence

from theta0._records import Table
from theta0.diagnosis.chain import Link, chain, falling_back
from theta0.diagnosis.results import Finding

FALL_ERROR, FALL_WARNING = 1e-4, 1e-3
GROWTH_ERROR, GROWTH_WARNING = 1e5, 1e3
STEP_SHARE = 1e-9
AGREEMENT = 0.05  # of whole batches; healthy starts have 0.3 and more, unless their batches are mostly noise
_LEAST_BATCHES = 4
_MEASURED = "measured, docs/findings.md"


def backward_findings(table: Table) -> list[Finding]:
    """Judge the gradients along the layers.

    Returns:
        Findings, the causes first.
    """
    links = [link for link in chain(table) if link.backward is not None and math.isfinite(link.backward)]
    found = [vanishing_gradients(links), vanishing_steps(chain(table)), exploding_gradients(links)]
    return [finding for finding in found if finding is not None]


def vanishing_gradients(links: list[Link]) -> Finding | None:
    """The gradient dies out on its way from the loss to the first layers.

    Returns:
        The finding, or None.
    """
    fallen = falling_back(links, FALL_WARNING)
    if not fallen:
        return None
    largest = max(link.sensitivity or 0.0 for link in links)
    smallest = min(link.sensitivity or 0.0 for link in fallen)
    share, severe = smallest / largest, smallest < FALL_ERROR * largest
    begins = fallen[-1]
    return Finding(
        code="vanishing-gradients",
        severity="error" if severe else "warning",
        layer=begins.layer,
        value=share,
        threshold=FALL_ERROR if severe else FALL_WARNING,
        message=(
            f"Going backward, the gradient's effect falls to {share:.1e} of its largest; at {begins.layer!r} and the "
            f"{len(fallen) - 1} layers before it too little arrives for them to learn. Keep the preactivations' mean "
            "at zero (LCW) and their variance at one."
        ),
        remedy="theta0 treat TARGET --with lcw",
        source=_MEASURED,
        layers=tuple(link.layer for link in reversed(fallen)),
    )


def vanishing_steps(links: list[Link]) -> Finding | None:
    """The gradient dies out on its way back through the time steps of a recurrent layer.

    Returns:
        The finding, or None.
    """
    lost = [link for link in links if link.numbers.get("step_gradient_share", 1.0) < STEP_SHARE]
    if not lost:
        return None
    worst = min(lost, key=lambda link: link.numbers["step_gradient_share"])
    share, steps = worst.numbers["step_gradient_share"], int(worst.numbers["steps"])
    return Finding(
        code="vanishing-gradients",
        severity="warning",  # a task that needs the last steps only is learnt all the same
        layer=worst.layer,
        value=share,
        threshold=STEP_SHARE,
        message=(
            f"Going back through the {steps} time steps of {worst.layer!r}, the gradient falls to {share:.1e} of its "
            "largest: nothing can be learnt from the first steps. Give an LSTM a long memory by its forget bias "
            "(about the logarithm of the span), a plain recurrent layer orthogonal weights, or read all steps."
        ),
        remedy=f"model.get_submodule({worst.layer!r}).bias_hh_l0.data[hidden : 2 * hidden] = math.log({steps})",
        source=f"Tallec & Ollivier (2018), chrono initialization; threshold {_MEASURED}",
        layers=tuple(link.layer for link in lost),
    )


def exploding_gradients(links: list[Link]) -> Finding | None:
    """The gradient grows on its way from the loss to the first layers.

    Returns:
        The finding, or None.
    """
    known = [link for link in links if link.backward]
    if len(known) < 2:
        return None
    last = known[-1].backward or 1.0
    grown = [link for link in reversed(known) if (link.backward or 0.0) > GROWTH_WARNING * last]
    if not grown:
        return None
    ratio = max(link.backward or 0.0 for link in grown) / last
    severe = ratio > GROWTH_ERROR
    return Finding(
        code="exploding-gradients",
        severity="error" if severe else "warning",
        layer=grown[0].layer,
        value=ratio,
        threshold=GROWTH_ERROR if severe else GROWTH_WARNING,
        message=(
            f"Going backward, the gradient grows to {ratio:.1e} times its norm at the last layer, past "
            f"{GROWTH_WARNING:g} at {grown[0].layer!r}: the first layers would jump. "
            "Rescale the weights so that every layer's output has unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance",
        source=_MEASURED,
        layers=tuple(link.layer for link in grown),
    )


def zero_gradient(stuck: Sequence[str], steps: int, trained: int) -> list[Finding]:
    """Parameters whose gradient is exactly zero, and still is after probe steps.

    Args:
        stuck: their names.
        steps: how many probe steps were made.
        trained: how many parameters are trained in all.

    Returns:
        One finding for all of them, or none; an error where they are half of those trained, or more.
    """
    if not stuck:
        return []
    listed = ", ".join(stuck[:3]) + (f" and {len(stuck) - 3} more" if len(stuck) > 3 else "")
    return [
        Finding(
            code="zero-gradient",
            severity="error" if 2 * len(stuck) >= trained else "warning",
            layer=stuck[0],
            value=0.0,
            threshold=0.0,
            message=(
                f"The gradient of {listed} is exactly zero, and still is after {steps} probe steps on a copy: nothing "
                "there can learn. Look for two zero factors in a product, or a unit that is off on every sample, and "
                "start one of them at random; of a recurrent weight, at a loss that reads only the first step."
            ),
            remedy=f"torch.nn.init.normal_(model.get_parameter({stuck[0]!r}), std=0.02)",
            source="a gradient that is zero by design at step 0 is not zero after a step",
            layers=tuple(stuck),
        )
    ]


def gradient_conflict(table: Table, batches: int) -> Finding | None:
    """Whole batches' gradients say next to nothing of each other.

    Args:
        table: what was measured.
        batches: on how many; of fewer than four it says nothing, since two or three small ones often disagree.

    Returns:
        The finding, a note, or None.
    """
    whole = table.get("", {})
    agreement, rms = whole.get("gradient_agreement", 1.0), whole.get("output_rms", 0.0)
    if batches < _LEAST_BATCHES or not agreement < AGREEMENT:
        return None
    spread = f"{whole.get('output_sample_std', math.nan) / rms:.2g} of their size" if rms > 0 else "not at all"
    return Finding(
        code="gradient-conflict",
        severity="note",
        layer="",
        value=agreement,
        threshold=AGREEMENT,
        message=(
            f"The gradients of different batches hardly agree (mean cosine {agreement:.2g}, while outputs vary between "
            f"samples by {spread}): each step undoes much of the last. "
            "Larger batches help; scaling the layers for agreement (NIO) may."
        ),
        remedy="theta0 treat TARGET --with nio",
        source="yang2022nio, section 3; threshold: judgement",
    )


def unused_parameters(unused: Sequence[str], trained: int) -> list[Finding]:
    """Parameters that the loss does not depend on.

    Args:
        unused: their names.
        trained: how many parameters are trained in all.

    Returns:
        One finding for all of them, or none; an error where the loss depends on no parameter at all.
    """
    if not unused:
        return []
    listed = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
    return [
        Finding(
            code="unused-parameters",
            severity="error" if len(unused) == trained else "note",
            layer=unused[0],
            value=float(len(unused)),
            threshold=0.0,
            message=(
                f"The loss does not depend on {listed}, on these batches. "
                "If that is not meant, look for a layer that forward never calls."
            ),
            remedy="",
            source="autograd finds no path from the loss",
            layers=tuple(unused),
        )
    ]


def frozen_parameters(frozen: Sequence[str], trained: int) -> list[Finding]:
    """Parameters with `requires_grad=False`.

    Returns:
        One finding for all of them, or none; an error where nothing is left to train.
    """
    if not frozen:
        return []
    listed = ", ".join(frozen[:3]) + (f" and {len(frozen) - 3} more" if len(frozen) > 3 else "")
    return [
        Finding(
            code="frozen-parameters",
            severity="note" if trained else "error",
            layer=frozen[0],
            value=float(len(frozen)),
            threshold=0.0,
            message=(
                f"{listed} will not be trained (requires_grad is False). "
                "If that is not meant, set requires_grad_(True)."
            ),
            remedy="model.requires_grad_(True)",
            source="requires_grad",
            layers=tuple(frozen),
        )
    ]
