"""Which sample each entry of a gradient belongs to, whatever way a layer lays its samples out."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_BASE = 16  # exponents of one probe: 2^-8 … 2^7, within the range of every floating type
_MIXED = 1e-6  # what share of a squared gradient may not follow its sample's weight


def sample_owners(logits: Float[Tensor, "samples classes"], places: Sequence[Any]) -> list[Tensor | None]:
    """The sample of every entry of some tensors in a graph.

    Weighting sample n's logits by a power of two multiplies the gradient in its own entries by exactly that power, so a
    few backward passes spell the digits of n. Entries without any gradient are given to any sample. For each place (a
    tensor or gradient edge) there are the samples of equal stretches of its flattened entries, a stretch a sample where
    samples come first; None where several samples share entries.
    """
    samples, classes = logits.shape
    count = max(1, math.ceil(math.log(samples, _BASE) - 1e-9))
    numbers = torch.arange(samples, device=logits.device)
    # Any weights would do unless they cancel: irrational steps over samples and classes.
    sample = 1 + (numbers * math.sqrt(2)) % 1
    kind = 1 + (torch.arange(classes, device=logits.device) * math.sqrt(3)) % 1
    weights = (sample[:, None] * kind).to(logits.dtype)
    plain = _gradients(logits, weights, places)
    owners: list[Tensor] = [torch.zeros_like(g, dtype=torch.int64) for g in plain]
    mixed = [torch.zeros((), device=g.device, dtype=torch.float64) for g in plain]
    for digit in range(count):
        exponents = (numbers // _BASE**digit % _BASE) - _BASE // 2
        scaled = _gradients(logits, torch.ldexp(weights, exponents[:, None]), places)
        for k, (one, other) in enumerate(zip(plain, scaled, strict=True)):
            ratio = torch.where(one == 0, 1.0, other / one).abs().log2().nan_to_num(0.0)
            power = ratio.round().clamp(-_BASE // 2, _BASE // 2 - 1)
            mixed[k] += (torch.ldexp(other, -power) - one).double().square().sum()
            owners[k] += (power.long() + _BASE // 2) * _BASE**digit
    return [
        _shortened(owner.clamp(max=samples - 1), g, samples) if float(rest) <= _MIXED * float(_total(g)) else None
        for owner, g, rest in zip(owners, plain, mixed, strict=True)
    ]


def squares_by_sample(
    logit: Float[Tensor, " samples"], places: Sequence[Any], owners: Sequence[Tensor | None], differentiable: bool
) -> list[Float[Tensor, " samples"]]:
    """The squared norm of every sample's gradient in each place.

    `logit` holds one number a sample, `owners` comes from `sample_owners`.
    """
    found = _gradients(logit, torch.ones_like(logit), places, differentiable)
    result = [
        torch.zeros_like(logit)
        if owner is None
        else torch.zeros_like(logit).index_add(0, owner, g.square().reshape(len(owner), -1).sum(1).to(logit.dtype))
        for g, owner in zip(found, owners, strict=True)
    ]
    shared = [k for k, owner in enumerate(owners) if owner is None]
    if shared:
        each = [_gradients(one, torch.ones_like(one), [places[k] for k in shared], differentiable) for one in logit]
        for position, k in enumerate(shared):
            result[k] = torch.stack([row[position].square().sum() for row in each]).to(logit.dtype)
    return result


def _gradients(outputs: Tensor, weights: Tensor, places: Sequence[Any], differentiable: bool = False) -> list[Tensor]:
    if not places:
        return []
    found = torch.autograd.grad(
        outputs, list(places), weights, retain_graph=True, create_graph=differentiable, allow_unused=True
    )
    return [outputs.new_zeros(len(outputs) if outputs.dim() else 1) if g is None else g for g in found]


def _shortened(owner: Tensor, gradient: Tensor, samples: int) -> Tensor:
    """One owner a stretch where samples come first and slowest, else one an entry."""
    if owner.numel() % samples == 0:
        expected = torch.arange(samples, device=owner.device)
        agrees = (owner.reshape(samples, -1) == expected[:, None]) | (gradient.reshape(samples, -1) == 0)
        if bool(agrees.all()):
            return expected
    return owner.flatten()


def _total(gradient: Tensor) -> Tensor:
    return gradient.double().square().sum()
