"""Findings about numbers that are not finite: in the weights, in the forward pass, in the backward pass."""

import math

from theta0._records import Table
from theta0.diagnosis.results import Finding

LEFT_OVER = 1e10


def nonfinite_weights(table: Table) -> list[Finding]:
    """Parameters that hold NaN or infinite values, before any forward pass.

    Returns:
        One finding for all of them, or none.
    """
    bad = [name for name, n in table.items() if name and "value_rms" in n and n.get("nonfinite_share")]
    if not bad:
        return _left_over(table)
    share = table[bad[0]]["nonfinite_share"]
    return [
        Finding(
            code="non-finite",
            severity="error",
            layer=bad[0],
            value=share,
            threshold=0.0,
            message=(
                f"Parameter {bad[0]!r} holds NaN or infinite values ({share:.0%} of its entries), before any forward "
                "pass. "
                "Initialise it: torch.empty gives memory as it was."
            ),
            remedy=f"torch.nn.init.normal_(model.get_parameter({bad[0]!r}), std=0.02)",
            source="IEEE 754",
            layers=tuple(bad),
        )
    ]


def _left_over(table: Table) -> list[Finding]:
    """Finite numbers that no draw makes: memory as it was."""
    bad = [name for name, n in table.items() if name and n.get("value_max", 0.0) > LEFT_OVER]
    if not bad:
        return []
    largest = table[bad[0]]["value_max"]
    return [
        Finding(
            code="non-finite",
            severity="error",
            layer=bad[0],
            value=largest,
            threshold=LEFT_OVER,
            message=(
                f"Parameter {bad[0]!r} holds values up to {largest:.1e}, as memory that was never initialised does; "
                "products of them overflow. Initialise it: torch.empty gives memory as it was."
            ),
            remedy=f"torch.nn.init.normal_(model.get_parameter({bad[0]!r}), std=0.02)",
            source="no initialization draws such numbers; their squares leave float32's range",
            layers=tuple(bad),
        )
    ]


def nonfinite_signals(table: Table) -> list[Finding]:
    """Finite weights and inputs, yet a NaN or an infinity arises on the way.

    Returns:
        One finding naming the first layer forward or, failing that, the last layer backward; or none.
    """
    forward = [layer for layer, n in table.items() if "preactivation_variance" in n and n.get("nonfinite_share")]
    backward = [layer for layer, n in table.items() if not math.isfinite(n.get("backward_norm", 0.0))]
    loss = table.get("", {}).get("loss", 0.0)
    if forward:
        where, layers, value = "forward", forward, table[forward[0]]["nonfinite_share"]
        what = f"Layer {forward[0]!r} is the first whose output is not finite ({value:.0%} of its entries). "
    elif not math.isfinite(loss):
        where, layers, value = "loss", [""], loss
        what = "Every layer's output is finite, but the loss is not. "
    elif backward:
        where, layers, value = "backward", backward[::-1], table[backward[-1]]["backward_norm"]
        what = f"Going backward, the gradient becomes not finite at layer {backward[-1]!r}. "
    else:
        return []
    advice = {
        "forward": "Look at the scale of its inputs and weights; in half precision 65,504 is the largest number.",
        "loss": "Look for a logarithm of zero, a division by zero or an exponential of a large number in the loss.",
        "backward": "Look for a square root, norm or division at zero between that layer and the loss.",
    }[where]
    return [Finding("non-finite", "error", layers[0], value, 0.0, what + advice, "", "IEEE 754", tuple(layers))]
