"""Neural initialization optimization: scales under which the gradients of sub-batches point the same way."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from theta0._batches import Batch, sliced
from theta0._losses import Loss
from theta0._randomness import Randomness
from theta0._ranks import averaged
from theta0.initializers.scale_search import Objective, Quality, Report, Settings, Slope, search_scales_
from theta0.initializers.scaled_network import SECOND, Gradients, ScaledNetwork, norm_of
from theta0.measurements.sub_batches import overlapping

Statistic = Literal["max", "mean"]
Compatibility = Literal["research"] | None
Cut = Callable[[Batch], list[Batch]]


def nio_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    sub_batches: int = 2,
    overlap: float = 0.6,
    gradient_norm_cap: float = 1.5,
    cap_unit: Literal["start", "absolute"] = "start",
    cap_statistic: Statistic = "max",
    learning_rate: float = 0.02,
    steps: int = 100,
    lower_bound: float = 0.01,
    compatibility: Compatibility = None,
    max_batches: int | None = 16,
    generator: Randomness = None,
    report: Report | None = None,
) -> nn.Module:
    r"""One scale for each parameter tensor, found by ascending GradCosine under a cap on the gradient norm.

    $θ = s ∘ θ_0$ (yang2022nio, Algorithm 3, with the sub-batches of section B.1). At each step: where the norm of the
    sub-batches' gradients exceeds the cap, it is descended; otherwise
    $\frac{1}{D^2}\sum_{de}\cos∠(g_d, g_e)$ is ascended. All gradients are taken at the scaled parameters. The scaled
    start is kept only where GradCosine is higher on held-out batches at a norm within the cap.

    Attention runs on plain kernels, dropout is off, and batch normalisation in training mode uses batch statistics
    and leaves its running ones alone. Frozen and zero tensors have no scale, tied ones share theirs. In a process
    group sub-batch gradients are averaged over the ranks, which must bring equally many samples: sub-batch d of the
    whole is that of all ranks together.

    Args:
        model: changed in place; bit for bit as it was if nothing better is found, or anything fails.
        batches: `(inputs, targets)` batches; the last quarter is held out.
        loss: a name, a callable, or None where the model returns its own.
        sub_batches: D.
        overlap: r, the share of its samples that a sub-batch has in common with the next.
        gradient_norm_cap: the largest gradient norm: a multiple of the one at the start, or a number.
        cap_unit: which of the two.
        cap_statistic: "max" over sub-batches (the paper's) or "mean" (the research code's).
        learning_rate: the largest relative change of a scale in one step.
        steps: how many, batches in turn.
        lower_bound: the least scale; its inverse is the largest.
        compatibility: "research" for the research code's ways: the mean cosine of distinct sub-batches minus the sum
            of squared norms, the mean norm against the cap, its ranges of samples (unequal for D > 2), and Adam's
            plain steps on the scales with `learning_rate` as Adam's.
        max_batches: how many batches are read; None reads all.
        generator: a seed, a generator or None; orders the samples after the first pass over the batches.
        report: receives a `ScaleSearch`, also where the start was not changed.

    Returns:
        The model.

    Raises:
        ValueError: if an argument is out of range, a batch has fewer samples than D, the network cannot be
            differentiated twice, the loss is constant, or nothing better was found; the start is then unchanged.
    """
    if cap_statistic not in ("max", "mean"):
        raise ValueError(f"cap_statistic: expected 'max' or 'mean', got {cap_statistic!r}")
    if compatibility not in (None, "research"):
        raise ValueError(f"compatibility: expected None or 'research', got {compatibility!r}")
    research = compatibility == "research"
    cut: Cut = partial(research_ranges if research else overlapping, parts=sub_batches, overlap=overlap)
    overlapping(Batch(None, None, sub_batches), sub_batches, overlap)  # what is out of range is told before any work
    statistic: Statistic = "mean" if research else cap_statistic
    objective = Objective(
        method="nio",
        quantity="GradCosine",
        higher=True,
        slope=partial(_slope, cut=cut, statistic=statistic, research=research),
        quality=partial(_quality, cut=partial(overlapping, parts=sub_batches, overlap=overlap), statistic=statistic),
        quality_cost=sub_batches / (1 + (sub_batches - 1) * (1 - overlap)),
    )
    settings = Settings(gradient_norm_cap, cap_unit, learning_rate, steps, lower_bound, raw=research)
    return search_scales_(
        model, batches, loss, objective, settings, max_batches=max_batches, generator=generator, report=report
    )


def research_ranges(batch: Batch, parts: int, overlap: float) -> list[Batch]:
    """The samples of each sub-batch in the research code: D ranges of B/D samples, stretched by r at inner ends.

    Args:
        batch: the batch.
        parts: D.
        overlap: r.

    Returns:
        Views of the batch; those in the middle are longer.
    """
    overlapping(batch, parts, overlap)  # for its errors
    length = batch.size // parts
    starts = [0, *(int((1 - overlap) * length * number) for number in range(1, parts))]
    stops = [*(int((1 + overlap) * length * (number + 1)) for number in range(parts - 1)), batch.size]
    return [sliced(batch, slice(start, stop)) for start, stop in zip(starts, stops, strict=True)]


def _slope(
    network: ScaledNetwork, batch: Batch, cap: float, *, cut: Cut, statistic: Statistic, research: bool
) -> Slope:
    parts = cut(batch)
    local = [network.gradients(network.loss_of(part)) for part in parts]
    rows = [averaged(gradients) for gradients in local]
    quality, norms = _judged(rows, statistic)
    constrained = quality.gradient_norm > cap
    gram = _gram(rows, norms)
    if constrained:
        weights = _norm_weights(norms, statistic)
    elif research:
        weights = _research_weights(gram, norms)
    else:
        weights = -_cosine_weights(gram, norms)
    used = [d for d, row in enumerate(weights) if bool(row.any())]
    derivative = network.pulled_back([local[d] for d in used], [_combined(weights[d].tolist(), rows) for d in used])
    once, twice = sum(part.size for part in parts), sum(parts[d].size for d in used)
    return Slope(quality, constrained, derivative, (once + SECOND * twice) / batch.size)


def _quality(network: ScaledNetwork, batch: Batch, *, cut: Cut, statistic: Statistic) -> Quality:
    rows = [averaged(network.gradients(network.loss_of(part), graph=False)) for part in cut(batch)]
    return _judged(rows, statistic)[0]


def _judged(rows: Sequence[Gradients], statistic: Statistic) -> tuple[Quality, Float64[Tensor, " d"]]:
    norms = torch.tensor([norm_of(row) for row in rows], dtype=torch.float64)
    smallest = float(norms.min())
    if not (math.isfinite(float(norms.max())) and smallest > 0):
        found = ", ".join(f"{norm:.3g}" for norm in norms.tolist())
        raise ValueError(f"nio: expected sub-batch gradients that are finite and not zero, got norms {found}")
    cosine = float((_gram(rows, norms)).mean())
    return Quality(cosine, float(norms.max() if statistic == "max" else norms.mean())), norms


def _gram(rows: Sequence[Gradients], norms: Float64[Tensor, " d"]) -> Float64[Tensor, "d d"]:
    """Cosines between sub-batch gradients."""
    cosines = torch.eye(len(rows), dtype=torch.float64)
    units = [[g.double() / norm for g in row] for row, norm in zip(rows, norms.tolist(), strict=True)]
    for d, first in enumerate(units):
        for e, second in enumerate(units[:d]):
            cosines[d, e] = cosines[e, d] = float(sum((a * b).sum() for a, b in zip(first, second, strict=True)))
    return cosines


def _cosine_weights(cosines: Float64[Tensor, "d d"], norms: Float64[Tensor, " d"]) -> Float64[Tensor, "d d"]:
    r"""W with $∂\,\mathrm{GradCosine}/∂g_d = \sum_e W_{de} g_e$."""
    weights = 1 / torch.outer(norms, norms) - torch.diag(cosines.sum(1) / norms.square())
    return weights * 2 / len(norms) ** 2


def _norm_weights(norms: Float64[Tensor, " d"], statistic: Statistic) -> Float64[Tensor, "d d"]:
    """The same for the largest or the mean norm."""
    if statistic == "mean":
        return torch.diag(1 / norms) / len(norms)
    largest = torch.zeros_like(norms)
    largest[norms.argmax()] = 1.0
    return torch.diag(largest / norms)


def _research_weights(cosines: Float64[Tensor, "d d"], norms: Float64[Tensor, " d"]) -> Float64[Tensor, "d d"]:
    """The same for what the research code descends: minus the mean cosine of distinct pairs and all squared norms."""
    count = len(norms)
    return -_cosine_weights(cosines, norms) * count / (count - 1) - 2 * torch.eye(count, dtype=torch.float64)


def _combined(weights: Sequence[float], rows: Sequence[Gradients]) -> Gradients:
    """Σ_e w_e g_e."""
    used = [(weight, row) for weight, row in zip(weights, rows, strict=True) if weight]
    total = [g * used[0][0] for g in used[0][1]]
    for weight, row in used[1:]:
        total = [t.add_(g, alpha=weight) for t, g in zip(total, row, strict=True)]
    return total
