"""Pictures of findings, from the examples of their rules: the loss of the network that has it, and of the healthy one.

Only for findings whose loss curve says something; of the others (a note, a parameter that is not used) it would not.
"""

import hashlib
import io
from inspect import cleandoc
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from theta0.diagnosis.documentation import PRELUDE
from theta0.diagnosis.rules import rule_of

STEPS = 100
CACHE = Path(__file__).parents[1] / "build" / "docs"
SHOWN = (
    "broadcast-loss",
    "unregistered-parameters",
    "gradient-cut",
    "loss-mismatch",
    "target-scale",
    "squashed-output",
    "identical-units",
    "input-scale",
    "linear-network",
    "frozen-batch-norm",
    "activation-shift",
    "vanishing-activations",
    "exploding-activations",
    "saturated-units",
    "dead-units",
    "constant-output",
    "initial-loss",
    "degenerate-softmax",
    "non-finite",
    "vanishing-gradients",
    "zero-gradient",
    "learning-rate-too-high",
    "learning-rate-too-low",
    "gradient-conflict",
    "does-not-train",
)


def caption(code: str) -> str:
    """What the picture of a finding shows."""
    return f"The loss of the two example networks of {code} on this page, {STEPS} steps each."


def made() -> dict[str, str | bytes]:
    """Every picture by its path in the site."""
    return {f"findings/{code}.svg": _picture(code) for code in SHOWN}


def _picture(code: str) -> str:
    rule = rule_of(code)
    assert rule is not None
    key = hashlib.sha256("\0".join((PRELUDE, rule.doc.ill, rule.doc.healthy, Path(__file__).read_text())).encode())
    stored = CACHE / f"{code}-{key.hexdigest()[:16]}.svg"
    if not stored.is_file():
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(_drawn(_losses(rule.doc.ill), _losses(rule.doc.healthy)), encoding="utf-8")
    return stored.read_text(encoding="utf-8")


def _losses(example: str) -> list[float]:
    """Train an example's network as it is written down, else by Adam at 0.01."""
    scope: dict[str, Any] = {"optimizer": None, "learning_rate": None}
    exec(PRELUDE, scope)
    exec(cleandoc(example), scope)
    model, loss = scope["model"], loss_function(scope["loss"])
    made_by = {"sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}
    more = {"momentum": 0.9} if scope["optimizer"] == "momentum" else {}
    maker = made_by.get(scope["optimizer"], torch.optim.Adam)
    optimizer = maker(model.parameters(), lr=scope["learning_rate"] or 0.01, **more)
    losses, batches = [], list(scope["batches"])
    for step in range(STEPS):
        inputs, targets = batches[step % len(batches)]
        value = loss(model(inputs), targets)
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return losses


def loss_function(loss: Any) -> Any:
    """A loss by its name, or the function itself."""
    named = {
        "cross_entropy": torch.nn.functional.cross_entropy,
        "mse": torch.nn.functional.mse_loss,
        "l1": torch.nn.functional.l1_loss,
        "bce": torch.nn.functional.binary_cross_entropy_with_logits,
    }
    return named[loss] if isinstance(loss, str) else loss


def _drawn(ill: list[float], healthy: list[float]) -> str:
    figure = Figure(figsize=(5.2, 2.1), layout="constrained")  # text as large as the page's on a phone
    for axes, losses, title, colour in zip(
        figure.subplots(1, 2), (ill, healthy), ("with the finding", "without it"), ("#b3261e", "#1b6e3c"), strict=True
    ):
        axes.plot(losses, color=colour, linewidth=1.6)
        axes.set(title=title, xlabel="step", ylabel="loss")
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter("{x:g}")
        finite = [value for value in losses if abs(value) < 1e30]
        if len(finite) < len(losses):
            axes.text(0.5, 0.5, "NaN or infinite", transform=axes.transAxes, ha="center", color=colour)
        elif finite and min(finite) > 0 and max(finite) > 100 * min(finite):
            axes.set_yscale("log")
        elif finite:
            axes.set_ylim(min(0.0, min(finite)), max(finite) * 1.1 or 1.0)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
