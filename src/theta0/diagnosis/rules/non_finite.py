"""Numbers that are not finite, or never were set: in the weights, in the forward pass, in the backward pass."""

import math
from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, error_codes

LEFT_OVER = 1e10  # no initialization draws such numbers


def judge(evidence: Evidence) -> Finding | None:
    """Parameters first; with finite ones, the layers' outputs, the loss and the gradients."""
    return _weights(evidence) or _left_over(evidence) or _signals(evidence)


def alone(evidence: Evidence) -> bool:
    """Where parameters are not numbers, nothing that is computed with them says anything."""
    return (_weights(evidence) or _left_over(evidence)) is not None


def place(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> tuple[Place, str]:
    """Before what flows; but after exploding activations, which grew until they were past the largest number."""
    return (Place.FORWARD if "exploding-activations" in error_codes(others) else Place.ARITHMETIC), ""


def _weights(evidence: Evidence) -> Finding | None:
    """Parameters that hold NaN or infinite values, before any forward pass."""
    bad = [name for name, n in evidence.table.items() if name and "value_rms" in n and n.get("nonfinite_share")]
    if not bad:
        return None
    share = evidence.table[bad[0]]["nonfinite_share"]
    return Finding(
        code="non-finite",
        severity="error",
        layer=bad[0],
        value=share,
        threshold=0.0,
        message=(
            f"Parameter {bad[0]!r} holds NaN or infinite values ({share:.0%} of its entries), before any forward "
            "pass. Initialize it: torch.empty does not."
        ),
        remedy=_drawn(bad[0]),
        source="IEEE 754",
        layers=tuple(bad),
    )


def _left_over(evidence: Evidence) -> Finding | None:
    """Finite numbers that no draw makes: memory as it was."""
    bad = [name for name, n in evidence.table.items() if name and n.get("value_max", 0.0) > LEFT_OVER]
    if not bad:
        return None
    largest = evidence.table[bad[0]]["value_max"]
    return Finding(
        code="non-finite",
        severity="error",
        layer=bad[0],
        value=largest,
        threshold=LEFT_OVER,
        message=(
            f"Parameter {bad[0]!r} holds values up to {largest:.1e}, as memory that was never initialized does; "
            "products of them overflow. Initialize it: torch.empty does not."
        ),
        remedy=_drawn(bad[0]),
        source="no initialization draws such numbers; their squares leave float32's range",
        layers=tuple(bad),
    )


def _drawn(name: str) -> str:
    return f"torch.nn.init.normal_(model.get_parameter({name!r}), std=0.02)"


def _signals(evidence: Evidence) -> Finding | None:
    """Finite weights and inputs, yet a NaN or an infinity arises: named by the operation that makes it."""
    found = _reached(evidence)
    if found is None or evidence.origin is None:
        return found
    origin = evidence.origin
    what = "the derivative" if origin.backward else "the result"
    why = f": {origin.why}" if origin.why else ""
    hidden = evidence.table.get(found.layer, {}).get("nonfinite_share")
    reach = f" Layer {found.layer!r} is the first that it reaches." if hidden and not origin.backward else ""
    place = origin.operation.path or found.layer
    return replace(
        found,
        layer=place,
        message=f"The first number that is not finite is {what} of {origin.operation}{why}.{reach}",
        layers=tuple(dict.fromkeys((place, *found.layers))),
        source_line=origin.operation.line,
    )


def _reached(evidence: Evidence) -> Finding | None:
    """The first layer forward, the loss, or the last layer backward."""
    table, loss = evidence.table, evidence.network.get("loss", 0.0)
    forward = [layer for layer, n in table.items() if "preactivation_variance" in n and n.get("nonfinite_share")]
    backward = [layer for layer, n in table.items() if not math.isfinite(n.get("backward_norm", 0.0))][::-1]
    if forward:
        layers, value = forward, table[forward[0]]["nonfinite_share"]
        message = (
            f"Layer {forward[0]!r} is the first whose output is not finite ({value:.0%} of its entries). "
            "Look at the scale of its inputs and weights; in half precision 65,504 is the largest number."
        )
    elif not math.isfinite(loss):
        layers, value = [""], loss
        message = (
            "Every layer's output is finite, but the loss is not. "
            "Look for a logarithm of zero, a division by zero or an exponential of a large number in the loss."
        )
    elif backward or _bad_gradients(evidence):
        layers = backward or _bad_gradients(evidence)
        value = table[layers[0]].get("backward_norm", math.nan)
        message = (
            f"Going backward, the gradient becomes not finite at {layers[0]!r}. "
            "Look for a square root, norm or division at zero between there and the loss."
        )
    else:
        return None
    return Finding("non-finite", "error", layers[0], value, 0.0, message, "", "IEEE 754", tuple(layers))


def _bad_gradients(evidence: Evidence) -> list[str]:
    """Parameters whose gradient is not finite though those of the layers' outputs are, last first."""
    named = [name for name in evidence.trained if not math.isfinite(evidence.table[name].get("gradient_norm", 0.0))]
    return named[::-1]


RULE = Rule(
    code="non-finite",
    judge=judge,
    alone=alone,
    place=place,
    brings=frozenset({"exploding-activations", "exploding-gradients", "initial-loss", "dead-units", "saturated-units"}),
    remedies=("redraw", "branch-scale", "recurrent", "gain-guard", "unit-variance", "type-defaults"),
    doc=RuleDoc(
        meaning="A number is NaN or infinite. After one step, so are all weights that it reaches.",
        why="A parameter created by `torch.empty` was never initialized; signals overflow, soonest in half "
        "precision; or an operation such as `log(0)`, `0/0` or the derivative of `sqrt` at 0 is computed.",
        numbers=(
            (
                "the share of NaN or infinite entries of a parameter (before any forward pass), of a layer's output "
                "or of a gradient; or a loss that is not finite",
                "error above 0",
                "IEEE 754",
            ),
            (
                "the largest magnitude of a parameter, as memory that was never initialized has it",
                f"error above {LEFT_OVER:.0e}".replace("+", ""),
                "no initialization draws such numbers",
            ),
        ),
        fix="nn.init.kaiming_normal_(model[0].weight)",
        command="`theta0 treat TARGET --with redraw --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            model[0].weight.data[0, 0] = float("nan")
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="Do not ignore it.",
    ),
)
