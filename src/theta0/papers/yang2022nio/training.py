"""One run of the comparison: a start, its gradients, and the test accuracy after a fixed budget."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from theta0.initializers import initialize, unit_variance_
from theta0.measurements import gradients
from theta0.papers.datasets import Dataset
from theta0.papers.devices import device
from theta0.papers.sweeps import Configuration
from theta0.papers.yang2022nio.appendix import recipe_for
from theta0.papers.yang2022nio.setting import PUBLISHED, network

Batches = list[tuple[Tensor, Tensor]]
_MEASURED = ("gradcosine", "gradient_norm_mean", "output_sample_std")  # over four disjoint parts of a batch


def run(data: Dataset, configuration: Configuration) -> dict[str, Any]:
    """Start, measure, train and test one network.

    Args:
        data: standardised images.
        configuration: network, start, seed and budget, as `table.configurations` makes them.

    Returns:
        Test accuracy and loss, numbers of the start before and after its treatment, and why a treatment was refused.
    """
    seed, batch = configuration["seed"], configuration["batch"]
    classes = int(data.train_y.max()) + 1
    model = network(
        configuration["network"], data.train_x.shape[1], classes, configuration["batch_norm"], configuration["seed"]
    ).to(device())
    order = torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(1000 + seed))
    parts = [part for part in torch.split(order, batch) if len(part) == batch]
    count = min(configuration["search_batches"], len(parts) - 1)
    judge = _batches(data, [parts.pop(count)])  # not seen by any start's search
    if configuration["start"] == PUBLISHED:
        count = max(1, (configuration["search_samples"] or len(order)) // batch)
    before = _numbers(model, judge)
    refused, cost = _start_(model, _batches(data, parts[:count]), configuration)
    after = _numbers(model, judge)
    losses = train_(model, data.train_x, data.train_y, configuration)
    accuracy, loss = _tested(model, data.test_x, data.test_y)
    finite = [value if math.isfinite(value) else None for value in (losses[-1], loss)]
    return {
        "test_accuracy": accuracy,
        "test_loss": finite[1],
        "train_loss": finite[0],
        "before": before,
        "after": after,
        "refused": refused,
        "search_cost": cost,
    }


def train_(
    model: nn.Module, x: Float[Tensor, "n ..."], y: Int[Tensor, " n"], configuration: Configuration
) -> list[float]:
    """SGD with momentum 0.9 and a cosine-annealed rate for a number of updates (yang2022nio, §B.2).

    Args:
        model: trained in place.
        x: images.
        y: classes.
        configuration: seed, batch, train_steps, rate, clip and augment.

    Returns:
        The loss at every update; it ends with the first that is not finite.
    """
    steps, batch = configuration["train_steps"], configuration["batch"]
    generator = torch.Generator().manual_seed(2000 + configuration["seed"])
    optimizer = torch.optim.SGD(model.parameters(), configuration["rate"], momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order, losses, here = torch.randperm(len(x), generator=generator), [], next(model.parameters()).device
    model.train()
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(len(x), generator=generator)
        chosen, order = order[:batch], order[batch:]
        images = augmented(x[chosen], generator) if configuration["augment"] else x[chosen]
        loss = F.cross_entropy(model(images.to(here)), y[chosen].to(here))
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if configuration["clip"] is not None:
            nn.utils.clip_grad_norm_(model.parameters(), configuration["clip"])
        optimizer.step()
        schedule.step()
    return losses


def augmented(x: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
    """Random crops of images padded by 4, flips, and a square of half the side set to zero (cutout).

    Args:
        x: standardised images.
        generator: source of the draws.

    Returns:
        New images.
    """
    n, _, height, width = x.shape
    padded, out = F.pad(x, (4, 4, 4, 4)), torch.empty_like(x)
    draws = torch.rand(5, n, generator=generator).tolist()
    half = height // 4
    for i, (top, left, flip, row, column) in enumerate(zip(*draws, strict=True)):
        image = padded[i, :, int(top * 9) : int(top * 9) + height, int(left * 9) : int(left * 9) + width]
        out[i] = image.flip(-1) if flip < 0.5 else image
        r, c = int(row * height), int(column * width)
        out[i, :, max(0, r - half) : r + half, max(0, c - half) : c + half] = 0
    return out


def _batches(data: Dataset, parts: Sequence[Int[Tensor, " batch"]]) -> Batches:
    return [(data.train_x[part], data.train_y[part]) for part in parts]


def _start_(model: nn.Module, batches: Batches, configuration: Configuration) -> tuple[str | None, float]:
    """Treat the Kaiming start; where a method refuses it stays as it is."""
    start, seed = configuration["start"], configuration["seed"]
    options: dict[str, Any] = {"steps": configuration["search_steps"] or len(batches), "max_batches": None}
    if start == PUBLISHED:
        recipe = recipe_for(configuration["network"], configuration["batch_norm"], configuration["classes"])
        options = recipe.keywords(len(batches) * recipe.batch)  # one pass
    try:
        if start in ("nio", PUBLISHED):
            found = initialize("nio", model, batches, "cross_entropy", **options, generator=seed)
        elif start == "gradinit":
            found = initialize("gradinit", model, batches, "cross_entropy", **options)
        else:
            if start == "lsuv":
                unit_variance_(model, batches[:1], draw="orthogonal", generator=seed)
            return None, 0.0
    except ValueError as error:
        return str(error), 0.0
    return None if found.kept else found.refusal, found.cost


def _numbers(model: nn.Module, batches: Batches) -> dict[str, float]:
    found = {r.quantity: r.value for r in gradients(model, batches, "cross_entropy", sub_batches=4)}
    return {quantity: found[quantity] for quantity in _MEASURED if quantity in found}


def _tested(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part.to(device())).cpu() for part in torch.split(x, 256)])
    return float((outputs.argmax(1) == y).float().mean()), float(F.cross_entropy(outputs, y))
