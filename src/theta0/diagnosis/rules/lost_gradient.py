"""Gradients that are lost before the optimizer's step or never reset after it, and steps that are taken back."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch
from torch import nn

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.outcome import fall
from theta0.diagnosis.results import Finding, Severity
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded, listed
from theta0.measurements.taken_back import TakenBack

ERROR, WARNING = 1e-4, 1e-2  # of the gradient's norm, where a step is as long as the gradient
FAINT, WEAK = 1e-2, 1e-1  # of ε, root mean square of an entry: an adaptive step is this share of the rate
UNDONE = 0.5  # of a step, or of the way from the start: what is trained goes back
MOST = 0.5  # of the entries that the optimizer trains
LEFT = 0.5  # of the entries that get a gradient: they hold that of earlier steps as well
MOVES = 1e-4  # of the weights' norm in one step: an ordinary step, whatever was clipped before it


def judge(evidence: Evidence) -> Finding | None:
    """What is lost before the step; else what is left behind it, or taken back after it."""
    observed = evidence.observed
    return _lost(evidence) or _left_over(observed.left_over) or _taken_back(observed.taken_back)


def _left_over(share: float | None) -> Finding | None:
    """Gradients that every step finds added to those of the steps before."""
    if share is None or share < LEFT:
        return None
    part = "the gradient" if share > 1 - 1e-9 else f"{share:.0%} of the gradient's entries"
    return Finding(
        code="lost-gradient",
        severity="error",
        layer="",
        value=share,
        quantity="share of the gradient that is never reset",
        threshold=LEFT,
        message=(
            f"No step resets {part}: each backward pass adds to what all steps before have left, so that a step "
            "follows the sum of all gradients so far, most of them of other weights. Call optimizer.zero_grad() before "
            "backward(), or after step(), once for each step."
        ),
        remedy="optimizer.zero_grad()  # before loss.backward()",
        source="the gradients before the backward passes of every step seen; exact; threshold: judgement",
    )


def _taken_back(changed: Sequence[TakenBack]) -> Finding | None:
    """Parameters that the loop itself writes to between steps, so that these lead nowhere, or not far."""
    undone = [one for one in changed if one.share >= UNDONE or one.overwritten]
    pulled = [one for one in changed if one.share < UNDONE and not one.overwritten]
    shown = undone or (pulled if sum(one.weight for one in pulled) >= MOST else [])
    if not shown:
        return None
    severe = bool(undone) and sum(one.weight for one in undone) >= MOST
    first, share = max(shown, key=lambda one: one.weight), median(one.share for one in shown)
    how = "are overwritten" if first.overwritten and not share else f"go {share:.1%} of the way back to where they were"
    named = listed([one.parameter for one in shown])
    return Finding(
        code="lost-gradient",
        severity="error" if severe else "warning",
        layer="",
        value=share if share else 1.0,
        threshold=UNDONE if undone else 0.0,
        message=(
            f"Between the optimizer's steps something else writes to what it trains: {named} {how} each time, so that "
            f"{'what a step learns is lost' if undone else 'steps do not add up'}. Check whether a soft update or a "
            "copy goes the wrong way (the target follows the trained network, not the reverse), or whether weights "
            "are initialized or loaded inside the loop."
        ),
        remedy="",
        source="the values before and after each of the steps seen; exact; threshold: judgement",
        source_line=next((one.line for one in shown if one.line), ""),
    )


def _lost(evidence: Evidence) -> Finding | None:
    """Nothing at all for any optimizer; a small share where the step is then too short to train."""
    kept = evidence.observed.gradient_kept
    if kept is None or kept >= WARNING:
        return None
    if kept == 0:
        return _nothing(evidence)
    if not evidence.has_loss or not evidence.finite:
        return None
    return _adaptive(evidence, kept) if evidence.kind.adaptive else _proportional(evidence, kept)


def _nothing(evidence: Evidence) -> Finding:
    if evidence.kind.foreign:
        trained = ", ".join(evidence.trained[:2])
        message = (
            "The optimizer holds none of the parameters that this loss is made with, so that nothing is learned: its "
            f"own get no gradient from it, and {trained} … are in no optimizer that steps here. Make the optimizer of "
            "the parameters of the module that is trained."
        )
        return _finding("error", 0.0, 0.0, message, "optimizer = torch.optim.Adam(model.parameters())")
    message = (
        "The optimizer's step finds no gradient, so that nothing is learned: the one that the backward pass leaves is "
        "reset before the step (call zero_grad() before backward(), or after step(), not between them), step() is "
        "never called, or the loss does not depend on what the optimizer holds (a prediction under no_grad)."
    )
    return _finding("error", 0.0, 0.0, message, "")


def _proportional(evidence: Evidence, kept: float) -> Finding | None:
    """SGD and its like, whose step is as long as the gradient; of others it is not known."""
    if evidence.optimizer not in ("sgd", "momentum") or evidence.kind.settings is None:
        return None
    moved = _moved(evidence, kept)
    if moved is not None and moved >= MOVES:
        return None
    severity, threshold = graded(kept < ERROR, ERROR, WARNING)
    effect = "" if moved is None else f", and moves the weights by {moved:.1e} of their norm"
    message = f"The optimizer's step finds {kept:.1e} of the gradient that the backward pass leaves{effect}. {_ADVICE}"
    return _finding(severity, kept, threshold, message, _CLIP)


def _adaptive(evidence: Evidence, kept: float) -> Finding | None:
    """A step of g / (√v + ε) does not depend on the gradient's scale until ε is larger than it."""
    entries = max(1, sum(_weights(evidence).values()))
    left, eps = kept * _gradient(evidence) / math.sqrt(entries), _eps(evidence)
    if left >= WEAK * eps:
        return None
    severity, threshold = graded(left < FAINT * eps, FAINT * eps, WEAK * eps)
    message = (
        f"The optimizer's step finds {kept:.1e} of the gradient that the backward pass leaves. Its entries, "
        f"{left:.1e}, are small beside the epsilon of {evidence.kind.name}, {eps:g}: steps are about {left / eps:.1e} "
        f"of what they would be. {_ADVICE}"
    )
    return _finding(severity, left, threshold, message, _CLIP)


_CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
_ADVICE = (
    "Gradients are clipped to a tiny norm, or scaled down, between backward() and step(): clip to a norm of about 1, "
    "and after scaler.unscale_(optimizer) where there is a gradient scaler."
)


def _weights(evidence: Evidence) -> dict[str, int]:
    """How many entries each trained parameter has."""
    return {name: p.numel() for name, p in evidence.parameters.items() if p.requires_grad}


def _gradient(evidence: Evidence) -> float:
    return math.hypot(*(evidence.table.get(name, {}).get("gradient_norm", 0.0) for name in evidence.trained))


def _moved(evidence: Evidence, kept: float) -> float | None:
    """The length of a step over the weights' norm; with momentum of as many steps as it adds up."""
    settings, rate = evidence.kind.settings, evidence.rate
    weights = math.hypot(
        *(evidence.table.get(name, {}).get("value_rms", 0.0) * n**0.5 for name, n in _weights(evidence).items())
    )
    if settings is None or rate is None or weights == 0:
        return None
    added = 1 / (1 - settings.momentum) if settings.optimizer == "momentum" else 1.0
    return rate * added * kept * _gradient(evidence) / weights


def _eps(evidence: Evidence) -> float:
    """Of the optimizer; 0 where its step has none that is a number."""
    if evidence.kind.settings is not None:
        return evidence.kind.settings.eps
    made = evidence.kind.make([nn.Parameter(torch.zeros(1))], 1.0)
    eps = made.param_groups[0].get("eps", 0.0)
    return float(eps) if isinstance(eps, (int, float)) else 0.0


def _finding(severity: Severity, value: float, threshold: float, message: str, remedy: str) -> Finding:
    return Finding(
        code="lost-gradient",
        severity=severity,
        layer="",
        value=value,
        threshold=threshold,
        message=message,
        remedy=remedy,
        source="the gradient before the step over that after the backward pass; threshold: judgement",
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """What short runs show is what the network does with the whole gradient."""
    probe = evidence.probe
    run = None if probe is None else next((run for run in probe.runs if run.outcome == "trains"), None)
    if probe is None or run is None:
        return finding
    said = f" Short runs make steps of their own, which nothing takes from or changes: {fall(run, probe.first)}."
    return replace(finding, message=finding.message + said)


RULE = Rule(
    code="lost-gradient",
    judge=judge,
    place=Place.LOSS,
    fault="the training loop",
    revise=revise,
    doc=RuleDoc(
        meaning="The backward pass computes a gradient, but at the optimizer's step it is zero or almost zero: the "
        "weights hardly change. Or gradients are never reset, so that each step follows the sum of all so far. Or the "
        "step is made, and the loop then changes the weights back, so that nothing adds up.",
        why="`zero_grad()` is missing, or is called between `backward()` and `step()`; `clip_grad_norm_` clips to a "
        "tiny norm; gradients are clipped while they are still multiplied by the scale of a `GradScaler`, "
        "before `unscale_`; or gradients are multiplied by a small number. Steps are taken back by a soft update of a "
        "target network whose arguments are exchanged, so that the trained network follows the target; by averaged "
        "weights that are loaded into the network; or by an initialization inside the loop. theta0 knows this from "
        "training scripts, which it watches, or from `observed=ObservedTraining(gradient_kept=…)`.",
        numbers=(
            (
                "the share of the gradient's norm that is left at the optimizer's step: the median over the steps "
                "seen. A loss scale that is divided out again does not count",
                f"error at 0, with any optimizer. With SGD: error below {ERROR:g}, warning below {WARNING:g}, unless "
                f"a step moves the weights by {MOVES:g} of their norm",
                "judgement",
            ),
            (
                f"with adaptive optimizers, where that share is below {WARNING:g}: the root mean square of what is "
                "left of the gradient's entries, divided by the optimizer's epsilon",
                f"error below {FAINT:g}; warning below {WEAK:g}",
                "a step is the rate times g / (√v + ε)",
            ),
            (
                "the share of the gradient's entries that, at every step of a script but the first, still hold the "
                "gradient of earlier steps",
                f"error from {LEFT:.0%}",
                "exact; the threshold is judgement",
            ),
            (
                "what happens to the parameters between two steps of a script: the share of the way back to where "
                "they started, or to where they were before the step, or whether they are overwritten (by half of "
                "their size). Clipping, normalizing and weight decay do not lead back",
                f"at {UNDONE:.0%} or overwritten: error if it concerns {MOST:.0%} of all entries, else warning; any "
                f"smaller share: warning if it concerns {MOST:.0%}",
                "judgement",
            ),
        ),
        fix="observed = ObservedTraining(gradient_kept=1.0)  # optimizer.zero_grad() stands before loss.backward()",
        command="call `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()` in this order, or clip to a "
        "larger norm.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            optimizer, learning_rate = "sgd", 0.1
            observed = ObservedTraining(gradient_kept=0.0)  # zero_grad() between backward() and step()
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            optimizer, learning_rate = "sgd", 0.1
            observed = ObservedTraining(gradient_kept=0.2)  # clipped from a norm of 5 to 1
        """,
        ignore="You can ignore it where the first steps are clipped on purpose, and later ones are not.",
        measured="A normal step moves weights by about a thousandth of their norm. Clipping an exploding gradient to 1 "
        "keeps a small share of it and still makes such steps, so that the share alone is no fault.",
    ),
)
