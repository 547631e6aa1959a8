"""Targets over the places of an image that were flipped or turned apart from it."""

import pytest
import torch
from torch import nn

from theta0 import diagnose
from theta0._batches import Batch
from theta0.measurements.turned_targets import turned_targets

N, SIDE = 32, 24


def shapes(side=SIDE, count=N, seed=0):
    """Images of one bright box each, with noise, and its mask."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.randint(1, side // 2, (count, 2), generator=generator)
    size = torch.randint(4, side // 2, (count, 2), generator=generator)
    rows = torch.arange(side)
    inside = [(rows >= corner[:, i : i + 1]) & (rows < (corner + size)[:, i : i + 1]) for i in range(2)]
    masks = (inside[0][:, :, None] & inside[1][:, None, :]).float()
    images = masks[:, None] + 0.3 * torch.randn(count, 3, side, side, generator=generator)
    return images, masks


def turned(tensor, number):
    out = torch.rot90(tensor, number % 4, (-2, -1))
    return out.flip(-1) if number >= 4 else out


IMAGES, MASKS = shapes()
RANDOM = torch.randint(0, 8, (N,), generator=torch.Generator().manual_seed(1)).tolist()
APART = torch.stack([turned(mask, number) for mask, number in zip(MASKS, RANDOM, strict=True)])
MIRRORED = torch.stack([turned(mask, 4 * (number % 2)) for mask, number in zip(MASKS, RANDOM, strict=True)])


def share(images, maps):
    found = turned_targets([Batch(images[:16], maps[:16], 16), Batch(images[16:], maps[16:], 16)])
    return None if found is None else found.share


@pytest.mark.parametrize(
    "maps",
    [APART, APART[:, None], APART.long(), APART.bool(), MIRRORED, torch.stack([APART, 1 - APART], 1)],
    ids=["all turns", "a channel", "classes", "truth values", "one mirror", "two channels"],
)
def test_maps_that_are_turned_apart_are_counted(maps):
    assert 0.25 < share(IMAGES, maps) <= 1


@pytest.mark.parametrize(
    ("images", "maps"),
    [
        (IMAGES, MASKS),
        (-IMAGES, MASKS.long()),
        (IMAGES, MASKS.flip(-1)),  # the same for all is a task
        (torch.cat([MASKS[:, None]] * 2, 1) * 0 + torch.randn(N, 2, SIDE, SIDE), MASKS),
        (IMAGES, IMAGES),
        (IMAGES[..., :8, :8], IMAGES[..., :8, :8] + torch.randn(N, 3, 8, 8)),
    ],
    ids=["as they are", "negative", "all mirrored", "nothing related", "an autoencoder's", "small and noisy"],
)
def test_maps_that_belong_to_their_images_or_to_none_are_not(images, maps):
    assert share(images, maps) in (None, 0.0) or share(images, maps) < 0.1


def test_other_forms_are_not_asked():
    assert share(IMAGES, MASKS[:, 0, 0].long()) is None
    assert share(IMAGES.flatten(1), MASKS) is None
    assert share(IMAGES, MASKS[..., :12]) is None


def test_the_finding_says_what_to_do():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
    first = diagnose(model, [(IMAGES, APART[:, None])], "bce", probe_steps=0).findings[0]
    assert (first.code, first.severity) == ("no-signal", "error")
    assert "augmented apart" in first.message
    assert "no-signal" not in {
        f.code for f in diagnose(model, [(IMAGES, MASKS[:, None])], "bce", probe_steps=0).findings
    }
