"""What the losses of torch.nn take, held against what a step gives them, and what a regression compares."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from theta0._trace.interpreter import Handler, Step
from theta0._trace.operations import Operation, operation_of

_TOLERANCE = 1e-4
_FAINT = 0.1  # a label of "yes" is far above it, smoothed or not
_MASS_TOLERANCE = 0.02  # of a sum of probabilities
_POSITIVE_WEIGHT = (6, "pos_weight")
_UNMET = 0.05  # of the samples: a few that are too long are common
_RISES = 0.9  # correlation of the logarithms of weights and counts
_IMBALANCE = 4.0  # times as many samples of one class as of another, that much more weight for the frequent one


@dataclass(frozen=True)
class Breach:
    """Values that a loss does not take.

    Attributes:
        operation: the loss.
        value: the number that shows it.
        limit: what it may be at most (or at least).
        what: what is wrong, a sentence.
        fix: what to do, a sentence.
        severe: whether the loss then has no minimum, or says nothing.
    """

    operation: Operation
    value: float
    limit: float
    what: str
    fix: str
    severe: bool = True


@dataclass(frozen=True)
class Compare:
    """Outputs and targets whose difference a loss takes.

    Attributes:
        operation: what takes it.
        output_rms: root mean square of the outputs.
        target_mean: the targets' mean.
        target_std: their standard deviation, over all entries.
        target_rms: their root mean square.
        columns: how many targets a sample has.
        classes: how many values the targets have, where all are whole numbers from 0 and none is left out; else 0.
        one_hot: whether each row of targets is one 1 among zeros.
        samples: how many rows.
    """

    operation: Operation
    output_rms: float
    target_mean: float
    target_std: float
    target_rms: float
    columns: int
    classes: int
    one_hot: bool
    samples: int


Check = Callable[[Step], tuple[float, float, str, str, bool] | None]


@dataclass
class Contracts:  # grows during a pass; a plain accumulator
    """What losses were given.

    Attributes:
        breaches: values that a loss does not take.
        comparisons: what regressions compare.
        labelled: whether a classification loss was given the batch's targets.
    """

    breaches: list[Breach] = field(default_factory=list)
    comparisons: list[Compare] = field(default_factory=list)
    labelled: bool = False


def contracts_handler(contracts: Contracts, sides: Handler) -> Handler:
    """A handler that checks what each loss is given; it notes whether a number grows (1) or falls (-1) with a loss.

    Args:
        contracts: what is found is written there.
        sides: the handler that knows which tensors are outputs and which are targets.
    """

    def side(value: Any, step: Step) -> str:
        known = step.note(value, sides) if isinstance(value, Tensor) else None
        return known.side if known is not None else ""

    def before(step: Step) -> None:
        check = _CHECKS.get(step.function)
        found = check(step) if check is not None else None
        if found is not None:
            value, limit, what, fix, severe = found
            contracts.breaches.append(Breach(operation_of(step), value, limit, what, fix, severe))
        role, kind = (step.spec.role, step.spec.kind) if step.spec is not None else ("", "")
        if step.function in _CLASSIFICATION and side(step.argument((1, "target")), step) == "target":
            contracts.labelled = True
        if role == "loss" and kind == "difference":
            compared(step, step.argument((0, "input")), step.argument((1, "target")))
        elif role == "subtract" and len(step.arguments) > 1 and step.interpreter.owners is not None:
            a, b = step.arguments[:2]
            if {side(a, step), side(b, step)} == {"output", "target"}:
                compared(step, *((a, b) if side(a, step) == "output" else (b, a)))

    def compared(step: Step, outputs: Any, targets: Any) -> None:
        if isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.is_floating_point():
            found = _compare(step, outputs.detach(), targets.detach())
            contracts.comparisons.extend([found] if found is not None else [])

    def after(step: Step, result: Any) -> int | None:
        role = step.spec.role if step.spec is not None else ""
        if role == "loss" or step.function in _CHECKS:
            return 1
        known = [note for _, note in step.notes(handler)]
        if role == "subtract" and len(step.arguments) > 1:
            a, b = step.arguments[:2]
            if {side(a, step), side(b, step)} == {"output", "target"} and not known:
                return 2  # a difference, which grows with no loss until it is squared
        if not known:
            return None
        return _sign(step, role, known, handler)

    handler = Handler(before=before, after=after)
    return handler


def _sign(step: Step, role: str, known: list[int], handler: Handler) -> int | None:
    """How a result grows with a loss that goes in; None where that is not known."""
    name = step.spec.name if step.spec is not None else step.name.strip("_")
    if known == [2]:
        if name in ("square", "pow", "abs", "absolute") or (role == "multiply" and len(step.tensors) == 1):
            return 1
        return 2 if role in ("positive", "negate") else None
    if 2 in known:
        return None
    if role == "positive" and len(known) == 1:
        return known[0]
    if role == "negate":
        return -known[0]
    if role in ("multiply", "divide") and len(step.arguments) > 1:
        factor = step.arguments[1] if step.note(step.arguments[0], handler) is not None else step.arguments[0]
        positive = isinstance(factor, (int, float)) and factor != 0
        return known[0] * (1 if factor > 0 else -1) if positive and len(known) == 1 else None
    first = step.note(step.arguments[0], handler) if step.arguments else None
    if role == "subtract" and len(known) == 1 and not any(t.requires_grad and t.dim() for t in step.tensors[1:]):
        swapped = (first is None) != bool(step.spec is not None and step.spec.reversed)
        constant = all(step.note(t, handler) is not None or not t.requires_grad for t in step.tensors)
        return known[0] * (-1 if swapped else 1) if constant else None
    if role == "add" and (len(known) == len(step.tensors)) and len(set(known)) == 1:
        return known[0]
    return None


def negated(operation: Operation, value: float) -> Breach:
    """The breach of a loss that is minimized with the wrong sign."""
    return Breach(operation, value, 0.0, "the loss is negated: training makes it grow", "Drop the minus sign.")


def unbounded(operation: Operation, value: float, by: str) -> Breach:
    """The breach of a loss that lies below zero and can fall without end."""
    what = f"the loss is a mean of {by}, at most 0 and unbounded below: minimizing it drives the right answers away"
    return Breach(
        operation, value, 0.0, what, "Negate it: the negative log-likelihood is what falls as they get likely."
    )


def _compare(step: Step, outputs: Tensor, targets: Tensor) -> Compare | None:
    if not outputs.numel() or not targets.numel():
        return None
    stretched = outputs.dim() == targets.dim() and all(
        a in (b, 1) for a, b in zip(targets.shape, outputs.shape, strict=True)
    )
    if outputs.numel() != targets.numel() and not stretched:
        return None
    t, o = targets.double(), outputs.double()
    if not bool(torch.isfinite(t).all()) or not bool(torch.isfinite(o).all()):
        return None
    rows = t.reshape(len(t), -1) if t.dim() > 1 else t.reshape(-1, 1)
    one_hot = t.dim() > 1 and rows.shape[1] > 1 and bool(((rows == 0) | (rows == 1)).all())
    one_hot = one_hot and bool((rows.sum(1) == 1).all())
    return Compare(
        operation=operation_of(step),
        output_rms=float(o.square().mean().sqrt()),
        target_mean=float(t.mean()),
        target_std=float(t.std(correction=0)),
        target_rms=float(t.square().mean().sqrt()),
        columns=rows.shape[1],
        classes=_classes(t),
        one_hot=one_hot,
        samples=len(rows),
    )


def _classes(t: Tensor) -> int:
    low, high = float(t.min()), float(t.max())
    if low != 0.0 or high > 1000 or not bool((t == t.round()).all()):
        return 0
    return int(high) + 1 if torch.unique(t).numel() == int(high) + 1 else 0


# ── What each loss takes ─────────────────────────────────────────────────────────────────────────────────────────────
def _given(step: Step) -> tuple[Tensor | None, Tensor | None]:
    outputs, targets = step.argument((0, "input")), step.argument((1, "target"))
    known = [t.detach() if isinstance(t, Tensor) and t.numel() else None for t in (outputs, targets)]
    return known[0], known[1]


def _span(t: Tensor) -> str:
    return f"{float(t.min()):.4g} to {float(t.max()):.4g}"


def _outside(t: Tensor | None, low: float, high: float) -> bool:
    return t is not None and bool(((t < low - _TOLERANCE) | (t > high + _TOLERANCE)).any())


def _farthest(t: Tensor) -> float:
    return float(t.min()) if float(t.min()) < 0 else float(t.max())


def _unit_targets(name: str) -> Check:
    def check(step: Step) -> tuple[float, float, str, str, bool] | None:
        _, targets = _given(step)
        if targets is None or not _outside(targets, 0.0, 1.0):
            return None if targets is None else _faint_labels(name, targets) or _positive_weight(step, targets)
        what = f"{name} takes targets in [0, 1], and these run from {_span(targets)}: the loss has no minimum"
        fix = "Bring them to 0 and 1 (masks of 0 and 255 by dividing by 255, labels of -1 and 1 by (t + 1) / 2)."
        return _farthest(targets), float(_farthest(targets) > 1), what, fix, True

    return check


def _faint_labels(name: str, targets: Tensor) -> tuple[float, float, str, str, bool] | None:
    """Targets of two values, of which one is 0 and the other far from 1."""
    if not targets.is_floating_point() or not 0 < float(targets.max()) < _FAINT or float(targets.min()) != 0:
        return None
    values = torch.unique(targets)
    if values.numel() != 2:
        return None
    most = float(values[1])
    what = f"{name} is given targets of two values, 0 and {most:.4g}: no output is ever to be likely"
    fix = "Bring them to 0 and 1; a mask that was divided by 255 once, as by to_tensor, is not to be divided again."
    return most, _FAINT, what, fix, False


def _positive_weight(step: Step, targets: Tensor) -> tuple[float, float, str, str, bool] | None:
    """One weight of the positive labels that makes what is rare rarer still."""
    weight = step.argument(_POSITIVE_WEIGHT) if step.function is F.binary_cross_entropy_with_logits else None
    if not isinstance(weight, Tensor) or weight.numel() != 1 or float(weight) <= 0:
        return None
    share, factor = float(targets.double().mean()), float(weight)
    odds = share / (1 - share) if 0 < share < 1 else 1.0
    if max(odds, 1 / odds) < _IMBALANCE or (factor if odds > 1 else 1 / factor) < _IMBALANCE:
        return None
    what = f"{share:.1%} of the labels are positive and weigh {factor:.3g} times as much as the negative ones"
    fix = "A pos_weight that is to balance them is negatives over positives: (y == 0).sum() / (y == 1).sum()."
    return factor, 1.0, what + ": what is rare counts even less", fix, False


def _class_weights(step: Step) -> tuple[float, float, str, str, bool] | None:
    """Weights that rise with the number of samples of a class, over the classes at hand."""
    _, targets = _given(step)
    weights = step.argument((2, "weight"))
    if targets is None or targets.is_floating_point() or not isinstance(weights, Tensor) or weights.dim() != 1:
        return None
    counts = torch.bincount(targets[(targets >= 0) & (targets < len(weights))].flatten(), minlength=len(weights))
    seen = (counts > 0) & (weights > 0)
    if int(seen.sum()) < 2:
        return None
    counts, weights = counts[seen].double(), weights[seen].double()
    many, few = counts.max(), counts.min()
    ratio = float(weights[counts.argmax()] / weights[counts.argmin()])
    logs = torch.stack((counts.log(), weights.log()))
    if float(many) < _IMBALANCE * float(few) or ratio < _IMBALANCE or float(torch.corrcoef(logs)[0, 1]) < _RISES:
        return None
    what = f"the class with {int(many)} samples weighs {ratio:.3g} times as much as that with {int(few)}"
    fix = "Weights that are to balance classes fall with their counts: weight = counts.sum() / counts."
    return ratio, _IMBALANCE, what + ": what is rare counts even less", fix, False


def _class_targets(step: Step) -> tuple[float, float, str, str, bool] | None:
    outputs, targets = _given(step)
    if outputs is None or targets is None or not targets.is_floating_point() or targets.shape != outputs.shape:
        return _class_weights(step)
    sums = targets.double().sum(1 if targets.dim() > 1 else 0)
    if _outside(targets, 0.0, math.inf):
        what = f"cross-entropy takes class probabilities, and these targets run from {_span(targets)}"
        return (
            float(targets.min()),
            0.0,
            what + ": the loss has no minimum",
            "Give class indices, or probabilities.",
            True,
        )
    most = float(sums.max())
    if most <= 1.0 + _MASS_TOLERANCE:
        return None
    whole = bool(((targets == 0) | (targets == 1)).all())
    what = f"cross-entropy takes class probabilities, which sum to 1, and these targets sum to {most:.4g} in a sample"
    fix = "Where several classes may hold at once use binary cross-entropy with logits; else divide them by their sum."
    return most, 1.0, what, fix, not whole


def _mass(log_probabilities: Tensor, axis: int) -> Tensor:
    return torch.logsumexp(log_probabilities.double(), axis)


def _nll(step: Step) -> tuple[float, float, str, str, bool] | None:
    outputs, _ = _given(step)
    if outputs is None or not outputs.is_floating_point() or not bool(torch.isfinite(outputs).any()):
        return None
    mass = _mass(outputs, 1 if outputs.dim() > 1 else 0)
    off = float(mass[torch.isfinite(mass)].abs().median()) if bool(torch.isfinite(mass).any()) else 0.0
    if off < _MASS_TOLERANCE:
        return _class_weights(step)
    probabilities = not _outside(outputs, 0.0, 1.0) and float((outputs.double().sum(1) - 1).abs().max()) < 0.02
    got = "probabilities" if probabilities else f"scores from {_span(outputs)}, whose exponentials do not sum to 1"
    bounded = float(outputs.max()) <= 0
    what = f"nll_loss takes log-probabilities, and is given {got}"
    what += ": the classes do not compete" if bounded else ": the loss has no lower bound, or one that says nothing"
    return (
        off,
        0.0,
        what,
        "Apply log_softmax over the classes before it, or use cross_entropy on the scores.",
        not bounded,
    )


def _kl(step: Step) -> tuple[float, float, str, str, bool] | None:
    outputs, targets = _given(step)
    if outputs is None or targets is None:
        return None
    fix = "Call kl_div(log_softmax(outputs, -1), probabilities), in this order, or say log_target=True."
    if _outside(outputs, -math.inf, 0.0):
        what = f"kl_div takes log-probabilities first, and is given values from {_span(outputs)}"
        return float(outputs.max()), 0.0, what, fix, True
    logs = bool(step.options.get("log_target", False))
    if not logs and _outside(targets, 0.0, math.inf):
        what = f"kl_div takes probabilities as targets, and these run from {_span(targets)}"
        return float(targets.min()), 0.0, what, fix, True
    axes = [a for a in {-1, 1 if outputs.dim() > 1 else -1}]
    off = min(float(_mass(outputs, a).abs().median()) for a in axes)
    if off > _MASS_TOLERANCE:
        what = "kl_div takes log-probabilities first, and the exponentials of these do not sum to 1"
        return off, 0.0, what, fix, False
    return None


def _signs(place: int, name: str) -> Check:
    def check(step: Step) -> tuple[float, float, str, str, bool] | None:
        targets = step.argument((place, "target"))
        if not isinstance(targets, Tensor) or not targets.numel():
            return None
        wrong = targets.detach()[(targets != 1) & (targets != -1)]
        if not wrong.numel():
            return None
        what = f"{name} takes targets of -1 and 1, and {wrong.numel()} of {targets.numel()} are others ({_span(wrong)})"
        return float(wrong[0]), 1.0, what, "Use 2 * t - 1 for targets of 0 and 1.", True

    return check


def _poisson(step: Step) -> tuple[float, float, str, str, bool] | None:
    outputs, targets = _given(step)
    if _outside(targets, 0.0, math.inf) and targets is not None:
        what = f"poisson_nll_loss takes counts of 0 or more, and these targets run from {_span(targets)}"
        return float(targets.min()), 0.0, what + ": the loss has no minimum", "Do not standardise counts.", True
    logs = step.argument((2, "log_input"))
    if logs is False and outputs is not None and bool((outputs < 0).any()):
        what = f"poisson_nll_loss with log_input=False takes rates above 0, and these run from {_span(outputs)}"
        return float(outputs.min()), 0.0, what, "Put softplus before it, or leave log_input=True.", True
    return None


def _ctc(step: Step) -> tuple[float, float, str, str, bool] | None:
    outputs, targets = step.argument((0, "log_probs")), step.argument((1, "targets"))
    steps, labels = step.argument((2, "input_lengths")), step.argument((3, "target_lengths"))
    blank = step.argument((4, "blank")) or 0
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return None
    off = float(_mass(outputs.detach(), -1).abs().median())
    if off > _MASS_TOLERANCE:
        what = "ctc_loss takes log-probabilities, and the exponentials of these do not sum to 1"
        return off, 0.0, what, "Apply log_softmax over the classes before it.", True
    short = torch.as_tensor(steps) < torch.as_tensor(labels)
    share, count = float(short.double().mean()), int(short.sum())
    what = f"{count} of {short.numel()} targets have more labels than the outputs have steps: no output can meet them"
    if count and not step.argument((6, "zero_infinity")):
        return float(count), 0.0, what, "Give longer outputs (subsample less), or set zero_infinity=True.", True
    if share > _UNMET:
        what += ", and zero_infinity=True makes their loss and its gradient zero, so that they train nothing"
        return share, _UNMET, what, "Give longer outputs: subsample less before the loss.", share > 0.5
    if targets.dim() == 1 and bool((targets == blank).any()):
        count = int((targets == blank).sum())
        return (
            float(count),
            0.0,
            f"{count} labels are {blank}, the number of the blank",
            "Number the labels apart.",
            True,
        )
    return None


def _gaussian(step: Step) -> tuple[float, float, str, str, bool] | None:
    variance = step.argument((2, "var"))
    eps = step.argument((4, "eps")) or 1e-6
    if not isinstance(variance, Tensor) or not variance.numel() or not variance.requires_grad:
        return None
    share = float((variance.detach() <= eps).double().mean())
    if share < 0.5:
        return None
    what = f"gaussian_nll_loss takes variances, and {share:.0%} of these lie at or below its eps of {eps:g}"
    return share, 0.5, what, "Put softplus before the variance, or exponentiate the network's output.", True


_CHECKS: dict[Any, Check] = {
    F.cross_entropy: _class_targets,
    F.nll_loss: _nll,
    F.binary_cross_entropy: _unit_targets("binary cross-entropy"),
    F.binary_cross_entropy_with_logits: _unit_targets("binary cross-entropy"),
    F.multilabel_soft_margin_loss: _unit_targets("multilabel_soft_margin_loss"),
    F.kl_div: _kl,
    F.hinge_embedding_loss: _signs(1, "hinge_embedding_loss"),
    F.soft_margin_loss: _signs(1, "soft_margin_loss"),
    F.margin_ranking_loss: _signs(2, "margin_ranking_loss"),
    F.cosine_embedding_loss: _signs(2, "cosine_embedding_loss"),
    F.poisson_nll_loss: _poisson,
    F.gaussian_nll_loss: _gaussian,
    F.ctc_loss: _ctc,
}
_CLASSIFICATION = frozenset(
    (F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.multi_margin_loss)
)
