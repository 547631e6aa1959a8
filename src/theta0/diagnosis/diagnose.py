"""Measure a starting point and judge it."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from theta0._batches import Batch, load_batches, with_shapes
from theta0._losses import Loss, checked, loss_of, name_of
from theta0._models import unwrapped
from theta0._records import Table, by_layer
from theta0._state import preserve_state
from theta0._training import checked_optimizer, steps_from
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.backward import (
    backward_findings,
    frozen_parameters,
    gradient_conflict,
    unused_parameters,
    zero_gradient,
)
from theta0.diagnosis.chain import chain
from theta0.diagnosis.finiteness import nonfinite_signals, nonfinite_weights
from theta0.diagnosis.forward import forward_findings
from theta0.diagnosis.inputs import input_findings
from theta0.diagnosis.ordering import ordered
from theta0.diagnosis.outputs import broadcast_loss, squashed_output
from theta0.diagnosis.rates import first_step, measured_rate, rate_findings
from theta0.diagnosis.residual import growing_stream
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.diagnosis.units import identical_units
from theta0.measurements.inspection import Inspection, inspection
from theta0.measurements.signals import signals_of

_PROBE_STEPS = 2


def diagnose(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    max_batches: int | None = 4,
) -> Diagnosis:
    """Look at a network's starting point and say what is wrong with it.

    The model is left bit-identical. Cost: one gradient per batch, a forward pass, another where activations or the
    first loss are too large, and three gradients on one batch where a parameter's gradient is exactly zero (only one
    that stays zero after two probe steps is a fault); about ten more, twelve at most, where a learning rate is given,
    to hold it against the curvature.

    Args:
        model: any module, in the mode in which it will be trained.
        batches: `(inputs, targets)` batches.
        loss: "cross_entropy", "mse", "l1", "bce", a callable, or None where the model returns its own `.loss`.
        optimizer: the one that will train it; default SGD.
        learning_rate: its rate, which is judged too; without it probe steps use 0.01.
        max_batches: how many batches are read; None reads all.

    Returns:
        Records, findings ordered by cause, and the cost in gradients.

    Raises:
        ValueError: if the data, the loss or the model's forward cannot be used; the message says what to do.
    """
    checked(loss)
    inner = unwrapped(model)
    found = load_batches(batches, inner, max_batches=max_batches)
    return diagnosis_of(inner, found, loss, optimizer=optimizer, rate=learning_rate)


def diagnosis_of(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, *, optimizer: str | None = None, rate: float | None = None
) -> Diagnosis:
    """As `diagnose`, on batches already loaded.

    Returns:
        The diagnosis.
    """
    checked_optimizer(optimizer or "sgd")
    model = with_shapes(model, batches[0])
    seen = inspection(model, batches[0], loss)
    records = signals_of(model, list(batches), loss)
    table = by_layer(records)
    cost = len(batches) + 1 / 3
    broken = nonfinite_weights(table)
    if broken:
        return Diagnosis(tuple(records), tuple(broken), cost)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    zero = [name for name in trained if table[name].get("gradient_norm") == 0.0]
    stuck: list[str] = []
    if zero and math.isfinite(table[""]["loss"]):
        stuck = _still_zero(model, batches[0], loss, zero, optimizer or "sgd", rate or 0.01)
        cost += _PROBE_STEPS + 1
    factors = [name for name in stuck if table[name]["value_rms"] == 0 and not name.endswith("bias")]
    stuck = factors + [name for name in stuck if name not in factors]
    flowing, spent = growing_stream(_of_forward(seen, table, loss), model, batches[0], table)
    findings, cost = [*flowing, *nonfinite_signals(table)], cost + spent
    if trained or "loss" in table.get("", {}):
        findings += [
            *backward_findings(table),
            *zero_gradient(stuck, _PROBE_STEPS, len(trained)),
            *_participation(model, table),
        ]
    allowed = None
    if rate is not None and trained and not any(f.code == "non-finite" for f in findings):
        allowed = measured_rate(model, batches, loss, optimizer or "sgd")
    cost += 0.0 if allowed is None else allowed.cost
    if rate is not None:
        findings += _of_rate(model, table, findings, allowed, optimizer or "sgd", rate)
    conflict = gradient_conflict(table, len(batches)) if all(f.severity == "note" for f in findings) else None
    findings += [] if conflict is None else [conflict]
    return Diagnosis(tuple(records), tuple(ordered(findings, zero_factor=bool(factors))), cost, allowed)


def _of_forward(seen: Inspection, table: Table, loss: Loss) -> list[Finding]:
    """What the data, the forward pass and the loss say."""
    single = (broadcast_loss(seen), squashed_output(seen), identical_units(chain(table), table))
    found = [finding for finding in single if finding is not None]
    return [*found, *input_findings(seen, table), *forward_findings(table, regression=name_of(loss) in ("mse", "l1"))]


def _of_rate(
    model: nn.Module, table: Table, others: list[Finding], allowed: LearningRate | None, optimizer: str, rate: float
) -> list[Finding]:
    """What the curvature says of the rate, and, where that is nothing, what the first step would do."""
    healthy = all(f.severity == "note" for f in others)
    normalised = any(isinstance(m, _BatchNorm) and m.training for m in model.modules())
    found = []
    if allowed is not None:
        found = rate_findings(rate, allowed, otherwise_healthy=healthy, batch_norm=normalised)
    if not found and not any(f.code == "non-finite" for f in others):
        leap = first_step(model, table, rate, optimizer, batch_norm=normalised)
        found = [] if leap is None else [leap]
    return found


def _participation(model: nn.Module, table: Table) -> list[Finding]:
    """Parameters that take no part in training."""
    named = dict(model.named_parameters())
    trained = [name for name, p in named.items() if p.requires_grad]
    unused = [name for name in trained if "gradient_norm" not in table.get(name, {})]
    frozen = [name for name in named if name not in set(trained)]
    measured = "loss" in table.get("", {})
    return (unused_parameters(unused, len(trained)) if measured else []) + frozen_parameters(frozen, len(trained))


def _still_zero(
    model: nn.Module, batch: Batch, loss: Loss, names: Sequence[str], optimizer: str, rate: float
) -> list[str]:
    """Those parameters whose gradient is zero after probe steps as well."""
    with preserve_state(model), torch.enable_grad():
        steps_from(model, [batch], loss, optimizer=optimizer, rate=rate, steps=_PROBE_STEPS)
        named = dict(model.named_parameters())
        value, _ = loss_of(model, batch, loss)
        found = torch.autograd.grad(value, [named[name] for name in names], allow_unused=True)
    return [name for name, g in zip(names, found, strict=True) if g is None or not bool(g.any())]
