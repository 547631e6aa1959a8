"""Remedies that scale: the output head to its best first loss, a tied matrix once, gains that a silent channel made."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _WeightNorm

from theta0._batches import Batch, initialised, load_batches
from theta0._errors import InapplicableError
from theta0._losses import Loss
from theta0._randomness import Randomness
from theta0._state import preserve_state, transaction
from theta0._trace.layers import layers
from theta0._training import mean_loss
from theta0._weights import scale_weight, trained_tensors
from theta0.treatment.results import Applied

_HALVINGS = 16
_NEAR = 1.05  # of the least first loss
_LOUD = 10.0  # times what its row of directions has, and the typical channel of its layer


def head_scale(model: nn.Module, batches: Iterable[Any], loss: Loss = None, *, generator: Randomness = None) -> Applied:
    """Halve the last layer's weight and bias until the first loss is near the least that halving can give."""
    inner = initialised(model)
    found = load_batches(batches, inner)
    last = next((x for x in reversed(layers(inner, found[0])) if x.kind not in ("embedding", "recurrent")), None)
    if last is None or last.frozen or last.tied:
        what = "none" if last is None else f"{last.path!r}, which is {'tied' if last.tied else 'frozen'}"
        raise InapplicableError(f"expected a last layer of its own that is trained, got {what}")
    with transaction(inner):
        _halved(inner, found, loss, [_scaler(last.module, last.attribute)])
    return Applied()


def tied_scale(model: nn.Module, batches: Iterable[Any], loss: Loss = None, *, generator: Randomness = None) -> Applied:
    """Halve a matrix that is an embedding and the head at once, until the first loss is near the least.

    The other embeddings and the parameters of the model itself, which are added to it, are scaled alike.
    """
    inner = initialised(model)
    found = load_batches(batches, inner)
    seen = [x for x in layers(inner, found[0]) if x.kind == "embedding" and not x.frozen]
    if not any(x.tied for x in seen):
        raise InapplicableError("expected a trained embedding whose matrix another layer uses too, got none")
    with transaction(inner):
        _halved(inner, found, loss, _tables(inner))
    return Applied()


def gain_guard(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> Applied:
    """Take back the gains of weight normalization that dividing by the deviation of a silent channel made.

    Such a gain is ten times the norm of its direction and of its layer's typical gain, or more; it becomes that
    norm, and its bias zero (Salimans & Kingma, 2016, section 3, assumes channels that vary).
    """
    inner = initialised(model)
    guarded = 0
    with transaction(inner):
        for module in inner.modules():
            for gain, direction in _gains(module):
                guarded += _guard(gain, direction, getattr(module, "bias", None))
        if not guarded:
            raise InapplicableError("expected a weight-normalized layer with a gain out of all proportion, got none")
    return Applied()


def _guard(gain: Tensor, direction: Tensor, bias: Any) -> int:
    norms = torch.linalg.vector_norm(direction.detach().flatten(1).float(), dim=1)
    flat = gain.detach().flatten().float()
    if flat.shape != norms.shape:
        return 0
    ratio = flat.abs() / norms.clamp_min(1e-12)
    typical = float(ratio[ratio <= _LOUD].median()) if bool((ratio <= _LOUD).any()) else 1.0
    loud = ratio > _LOUD * max(1.0, typical)
    gain.data.copy_(torch.where(loud, norms, flat).reshape(gain.shape))
    if isinstance(bias, nn.Parameter) and bias.shape == flat.shape:
        bias.data.masked_fill_(loud, 0.0)
    return int(loud.sum())


def _gains(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Gains and directions of new and old weight normalization, where they are one per unit."""
    found = []
    if parametrize.is_parametrized(module):
        for entry in module.parametrizations.values():  # type: ignore[operator]
            if len(entry) == 1 and isinstance(entry[0], _WeightNorm):
                found.append((entry.original0, entry.original1))
    own = dict(module.named_parameters(recurse=False))
    found += [(own[n], own[n[:-1] + "v"]) for n in own if n.endswith("_g") and n[:-1] + "v" in own]
    return [(g, v) for g, v in found if g.requires_grad]


def _tables(model: nn.Module) -> list[Callable[[float], None]]:
    """Every embedding, also one whose weight is used without calling it, and positions kept by the model itself."""
    kept = trained_tensors(model).values()
    return [_scaler(m, a) for m, a, p in kept if isinstance(m, nn.Embedding) or (m is model and p.dim() > 1)]


def _scaler(module: nn.Module, attribute: str) -> Callable[[float], None]:
    def scale(factor: float) -> None:
        scale_weight(module, attribute, factor)
        bias = getattr(module, "bias", None) if attribute == "weight" else None
        if isinstance(bias, nn.Parameter) and bias.requires_grad:
            bias.data.mul_(factor)

    return scale


def _halved(model: nn.Module, found: Sequence[Batch], loss: Loss, scalers: Sequence[Callable[[float], None]]) -> None:
    """Scale by the largest power of two, at most 1, whose first loss is within 5 % of the least."""
    reached = [_loss(model, found, loss)]
    with preserve_state(model):
        for _ in range(_HALVINGS):
            for scale in scalers:
                scale(0.5)
            reached.append(_loss(model, found, loss))
    finite = [value for value in reached if math.isfinite(value)]
    least = min(finite, default=math.inf)
    chosen = next((i for i, value in enumerate(reached) if value <= least + (_NEAR - 1) * abs(least)), 0)
    if chosen == 0:
        raise InapplicableError(f"expected a first loss that a smaller scale lowers, got {reached[0]:.4g} as the least")
    for scale in scalers:
        scale(0.5**chosen)


def _loss(model: nn.Module, found: Sequence[Batch], loss: Loss) -> float:
    with preserve_state(model):
        return mean_loss(model, found, loss)
