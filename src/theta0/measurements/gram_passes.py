"""The passes behind a gradient Gram matrix: a batch at once, a few samples alone, and what neither can explain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from theta0._batches import Batch, sliced
from theta0._losses import Loss, loss_of
from theta0._models import graph_nodes
from theta0._trace.layouts import Layout, layout
from theta0._training import count_gradients
from theta0.measurements.gram_factors import Factors, alike, factors_of, normalised
from theta0.measurements.gram_products import Route, gram_of, gram_of_rows, multiplications
from theta0.measurements.parameter_uses import Uses, uses_of
from theta0.measurements.sample_losses import (
    SampleLoss,
    gradients_of,
    per_sample_gradients,
    sample_loss,
)

Gram = Float64[Tensor, "n n"]


@dataclass(frozen=True, eq=False)
class Probe:
    """One sample, by its number in the Gram matrix, differentiated alone, by plain differentiation."""

    number: int
    gradients: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class BatchPass:
    """What one batch contributes.

    `start` is its first sample's number in the Gram matrix, `reached` are the parameters in the loss's graph. Factors
    are None where the per-sample gradients of a parameter have no short form.
    """

    batch: Batch
    start: int
    losses: SampleLoss
    factors: dict[str, list[Factors] | None]
    reached: frozenset[str]
    probes: list[Probe]


def batch_pass(
    model: nn.Module, batch: Batch, start: int, loss: Loss, parameters: dict[str, nn.Parameter]
) -> BatchPass:
    """Run a batch forward and backward once, noting where parameters act, and its first and last samples alone.

    Raises:
        ValueError: if samples have no gradient of their own, the loss is not finite, or depends on no parameter.
    """
    with uses_of(model) as uses:
        value = loss_of(model, batch, loss)[0]
    number = float(value.detach())
    if not math.isfinite(number):
        raise ValueError(
            f"batch {batch.number}: expected a finite loss, got {number}; "
            "run diagnose to find the layer where it begins"
        )
    if uses.batch_statistics:
        raise ValueError(
            "model: expected samples that do not meet, got batch normalization on batch statistics "
            f"(layer {uses.batch_statistics[0]!r}), under which a single sample has no gradient; pass sub_batches=D to "
            "take the gradients of D equal parts instead, or call model.eval() to use running statistics"
        )
    losses = sample_loss(model, batch, loss, number)
    leaves = _leaves(value)
    reached = frozenset(name for name, p in parameters.items() if id(p) in leaves)
    if not reached:
        raise ValueError(
            "loss: expected one that depends on a trainable parameter, got none in its graph; does the model detach "
            "its outputs or run under no_grad?"
        )
    gradients = _output_gradients(value * losses.ratio(batch), uses, batch)
    probes: list[Probe] = []
    places = None
    for sample in sorted({0, batch.size - 1}):  # the last decides on layouts, which the first cannot tell apart
        probe, seen = _probe(model, batch, losses, sample, start, parameters)
        probes.append(probe)
        places = _places(uses, seen, batch.size, sample)
    factors = _factors(uses, gradients, places, parameters, start)
    return BatchPass(batch, start, losses, factors, reached, probes)


def parameter_gram(
    name: str, parameter: Tensor, passes: Sequence[BatchPass], samples: int, workspace: int
) -> tuple[Gram | None, Route, float, float]:
    """One parameter's share of the Gram matrix from the factors of its gradients, checked on the probes.

    The share is None where there is no short form, or it does not reproduce the probes' gradients. With it come the
    route, its multiplications, and those that the parameter's gradient takes.
    """
    if not any(name in p.reached for p in passes):
        return torch.zeros(samples, samples, dtype=torch.float64, device=parameter.device), "unused", 0.0, 0.0
    found: list[Factors] = []
    for p in passes:
        factors = p.factors.get(name, [])
        if factors is None:
            return None, "per-sample", 0.0, 0.0
        found += factors
    if not found or not alike(found):
        return None, "per-sample", 0.0, 0.0
    gram, route, cost = gram_of(found, parameter, samples, workspace)
    return (gram if _agrees(gram, name, passes) else None), route, cost, multiplications(found)


def fallback_gram(
    model: nn.Module,
    names: Sequence[str],
    passes: Sequence[BatchPass],
    samples: int,
    workspace: int,
) -> tuple[Gram, float]:
    """The share of parameters whose per-sample gradients are stored, as many parameters at a time as memory allows."""
    parameters = dict(model.named_parameters())
    groups: list[list[str]] = [[]]
    room = workspace // samples
    for name in names:
        if groups[-1] and sum(parameters[n].numel() for n in groups[-1]) + parameters[name].numel() > room:
            groups.append([])
        groups[-1].append(name)
    device = parameters[names[0]].device
    total = torch.zeros(samples, samples, dtype=torch.float64, device=device)
    for group in groups:
        width = sum(parameters[n].numel() for n in group)
        kinds = [torch.promote_types(parameters[n].dtype, torch.float32) for n in group]
        rows = torch.zeros(samples, width, dtype=max(kinds, key=lambda k: k.itemsize), device=device)
        for p in passes:
            for start, block in per_sample_gradients(model, p.batch, p.losses, group):
                rows[p.start + start : p.start + start + len(block)] = block
        largest = float(rows.abs().max())
        total += gram_of_rows(rows.div_(largest), largest) if largest > 0 else 0
    return total, float(len(groups))


def passes_cost(passes: Sequence[BatchPass]) -> float:
    """Gradients taken by the passes over batches, halves and probes, in gradients of the mean batch."""
    samples = sum(p.batch.size for p in passes)
    candidates = 1 if all(p.losses.mean for p in passes) else 2
    return len(passes) * count_gradients(1 + sum(len(p.probes) for p in passes) / samples, forward=candidates)


def _leaves(value: Tensor) -> set[int]:
    """The identities of the leaf tensors in a graph."""
    return {id(node.variable) for node in graph_nodes([value]) if hasattr(node, "variable")}


def _output_gradients(value: Tensor, uses: Uses, batch: Batch) -> list[tuple[Tensor, float] | None]:
    """The gradient at every use's output, near 1, and what it is to be multiplied by; uses of one output share it."""
    edges = {(u.edge.node, u.edge.output_nr): u.edge for u in uses.found}
    if not edges:
        return []
    try:
        raw = list(torch.autograd.grad(value, list(edges.values()), allow_unused=True))
    except RuntimeError as error:
        raise ValueError(f"batch {batch.number}: the backward pass raised {str(error).splitlines()[0]}") from error
    names = {(u.edge.node, u.edge.output_nr): u.parameter for u in uses.found}
    found: dict[Any, tuple[Tensor, float] | None] = {}
    for place in edges:
        gradient = raw.pop(0)
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            raise ValueError(
                f"batch {batch.number}: expected finite gradients, got NaN or infinite ones at the output of "
                f"{names[place]}; run diagnose to find the layer where they begin"
            )
        found[place] = None if gradient is None else normalised(gradient.detach())
    return [found[u.edge.node, u.edge.output_nr] for u in uses.found]


def _probe(
    model: nn.Module,
    batch: Batch,
    losses: SampleLoss,
    number: int,
    start: int,
    parameters: dict[str, nn.Parameter],
) -> tuple[Probe, Uses]:
    part = sliced(batch, slice(number, number + 1))
    with uses_of(model) as uses:
        value = losses.total(model, part)
    gradients = dict(zip(parameters, gradients_of(value, list(parameters.values()), part), strict=True))
    for name, gradient in gradients.items():
        if not bool(torch.isfinite(gradient).all()):
            raise ValueError(
                f"batch {batch.number}, sample {number}: expected a finite gradient, got NaN or infinite numbers in "
                f"that of {name}; run diagnose to find the layer where they begin"
            )
    return Probe(start + number, gradients), uses


def _places(uses: Uses, alone: Uses, samples: int, number: int) -> list[Layout | None] | None:
    """Where each output keeps its samples; None where a sample alone takes another way through the model."""
    if [u.parameter for u in uses.found] != [u.parameter for u in alone.found]:
        return None
    return [layout(u.output, a.output, samples, number) for u, a in zip(uses.found, alone.found, strict=True)]


def _factors(
    uses: Uses,
    gradients: list[tuple[Tensor, float] | None],
    places: list[Layout | None] | None,
    parameters: dict[str, nn.Parameter],
    start: int,
) -> dict[str, list[Factors] | None]:
    factors: dict[str, list[Factors] | None] = {}
    for number, (use, gradient) in enumerate(zip(uses.found, gradients, strict=True)):
        known = factors.setdefault(use.parameter, [])
        if gradient is None or known is None:
            continue
        place = places[number] if places is not None else None
        new = None if place is None else factors_of(use, *gradient, parameters[use.parameter], place, start)
        if new is None:
            factors[use.parameter] = None
        else:
            known.append(new)
    return factors


def _agrees(gram: Gram, name: str, passes: Sequence[BatchPass]) -> bool:
    """Whether the Gram matrix reproduces the products of the probes' gradients."""
    probes = [probe for p in passes for probe in p.probes]
    gradients = torch.stack([probe.gradients[name].flatten().double() for probe in probes])
    largest = gradients.abs().max().clamp_min(1e-300)
    exact = (gradients / largest) @ (gradients / largest).T * largest**2
    numbers = torch.tensor([probe.number for probe in probes], device=gram.device)
    claimed = gram[numbers[:, None], numbers]
    scale = torch.maximum(exact.abs().max(), claimed.abs().max())
    eps = torch.finfo(probes[0].gradients[name].dtype).eps
    whole = max(float(sum(g.double().square().sum() for g in probe.gradients.values())) for probe in probes)
    # The floor is for gradients that vanish but for rounding, such as those of attention's key biases.
    allowed = max(1e-8, 1e4 * eps) * scale + (32 * eps) ** 2 * whole
    return bool((claimed - exact).abs().max() <= allowed)
