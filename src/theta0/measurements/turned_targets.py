"""Images and maps over them that were turned or mirrored apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from theta0._batches import Batch

MOST, LEAST = 64, 12  # samples
_SIDE = 32  # places of an image along each axis; larger ones are averaged
_CLASSES = 8  # of integer labels: the most frequent ones
_RELATED, _CLEAR = 0.1, 5.0  # by which own targets fit better than others', in correlations and in standard errors
_NEARLY = 0.8  # of the best such margin: as good a pair of channels
_APART = 0.05  # of a correlation; three of its standard errors where images are small
_ONE = 0.9  # of the samples: the same turn for nearly all of them is a task


@dataclass(frozen=True)
class TurnedTargets:
    """Targets that fit their own inputs only after a flip or a turn.

    Attributes:
        share: of the samples whose target fits clearly better turned or mirrored than as it is; 0 where one turn fits
            nearly all.
        samples: how many were compared.
        fit: the mean correlation of targets and inputs after each one's best turn.
        given: the same as the targets are.
    """

    share: float
    samples: int
    fit: float
    given: float


def turned_targets(batches: Sequence[Batch]) -> TurnedTargets | None:
    """Compare each target with its input as it is and under the flips and quarter turns of the plane.

    Channels of inputs (values, their distance from the image's mean, edges) are correlated over the places with
    channels of targets. Only pairs of channels count in which a target fits its own input, turned at best, clearly
    better than another sample's input. Cost: no pass of a model.

    Args:
        batches: with images (N, C, H, W) and targets over the same places, (N, K, H, W) or class numbers (N, H, W).

    Returns:
        What was found, whether or not targets are turned; None where inputs and targets are of other forms, or nothing
        in them is related.
    """
    images = _images(batches)
    maps = None if images is None else _maps(batches)
    if images is None or maps is None or images.shape[-2:] != maps.shape[-2:] or len(images) != len(maps):
        return None
    if len(images) < LEAST:
        return None
    x, turned = _unit(_features(_smaller(images))), [_unit(t) for t in _turns(_smaller(maps))]
    own = torch.stack([torch.einsum("nfp,nkp->nfk", x, t) for t in turned], -1)
    other = torch.stack([torch.einsum("nfp,nkp->nfk", x, t.roll(1, 0)) for t in turned], -1)
    own, other = torch.cat([own, -own], 1).flatten(1, 2), torch.cat([other, -other], 1).flatten(1, 2)
    gain = own.amax(-1) - other.amax(-1)  # (samples, pairs)
    margin, error = gain.mean(0), gain.std(0) / len(gain) ** 0.5
    related = (margin > _RELATED) & (margin > _CLEAR * error) & (margin >= _NEARLY * margin.max())
    if not bool(related.any()):
        return None
    fits = own[:, related]
    apart = fits.amax(-1, keepdim=True) - fits > max(_APART, 3 / x.shape[-1] ** 0.5)  # (samples, pairs, turns)
    best = int(apart[..., 0].double().mean(0).argmin())  # the pair of channels that speaks most for the targets
    chosen, moved = fits[:, best], apart[:, best]
    one = float((~moved).double().mean(0)[1:].max()) > _ONE
    return TurnedTargets(
        share=0.0 if one else float(moved[:, 0].double().mean()),
        samples=len(moved),
        fit=float(chosen.amax(-1).mean()),
        given=float(chosen[:, 0].mean()),
    )


def _images(batches: Sequence[Batch]) -> Tensor | None:
    found = []
    for batch in batches:
        images = [t for t in tree_leaves(batch.inputs) if isinstance(t, Tensor) and t.dim() == 4]
        if len(images) != 1 or not images[0].is_floating_point():
            return None
        found.append(images[0].detach()[:MOST].float().cpu())
    return _joined(found)


def _maps(batches: Sequence[Batch]) -> Tensor | None:
    found = [batch.targets.detach()[:MOST].cpu() for batch in batches if isinstance(batch.targets, Tensor)]
    if len(found) < len(batches) or any(t.dim() not in (3, 4) for t in found):
        return None
    joined = _joined([t[:, None] if t.dim() == 3 else t for t in found])
    if joined is None or joined.is_floating_point() or joined.dtype == torch.bool:
        return None if joined is None else joined.float()
    values, counts = torch.unique(joined, return_counts=True)
    kept = values[counts.argsort(descending=True)[:_CLASSES]]
    classes: Tensor = joined[:, :1] == kept[:, None, None]
    return classes.float()


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    same = len({part.shape[1:] for part in parts}) == 1
    return torch.cat(list(parts))[:MOST] if same else None


def _smaller(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c a b"]:
    height, width = images.shape[-2:]
    return F.adaptive_avg_pool2d(images[:, :_CLASSES], (min(height, _SIDE), min(width, _SIDE)))


def _features(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f h w"]:
    """Channels, their mean, its distance from the image's mean, and its edges."""
    gray = images.mean(1, keepdim=True)
    distance = (gray - gray.mean((2, 3), keepdim=True)).abs()
    down, right = (gray.diff(dim=d, append=gray.narrow(d, gray.shape[d] - 1, 1)).abs() for d in (2, 3))
    return torch.cat([images, gray, distance, down + right], 1)


def _turns(maps: Float[Tensor, "n k h w"]) -> list[Float[Tensor, "n k h w"]]:
    """The maps as they are, then mirrored and turned; quarter turns where height and width are equal."""
    quarters = (0, 1, 2, 3) if maps.shape[-1] == maps.shape[-2] else (0, 2)
    return [
        turned for k in quarters for turned in (torch.rot90(maps, k, (2, 3)), torch.rot90(maps, k, (2, 3)).flip(-1))
    ]


def _unit(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c places"]:
    """Mean 0 and norm 1 over the places; zero where a channel is constant."""
    flat = images.flatten(2).double()
    flat = flat - flat.mean(-1, keepdim=True)
    units: Tensor = flat / flat.norm(dim=-1, keepdim=True).clamp_min(1e-9)
    return units
