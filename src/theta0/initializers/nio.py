"""Neural initialization optimization: scales under which the gradients of sub-batches point the same way."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from theta0._batches import Batch, initialised
from theta0._losses import Loss
from theta0._models import in_place
from theta0._randomness import Randomness
from theta0.initializers.scale_search import ScaleSearch, SearchSettings, search_scales
from theta0.initializers.scaled_network import SECOND, Gradients, Objective, Quality, ScaledNetwork, Slope, norm_of
from theta0.initializers.sub_batch_gradients import (
    combined,
    pieces_suffice,
    shared_pass_cost,
    sub_batch_gradients,
)
from theta0.measurements.sub_batches import overlapping_cuts, require_parts

Statistic = Literal["max", "mean"]
Algorithm = Literal["verified", "published", "research"]
Cuts = Callable[[Batch], list[slice]]


def nio(
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
    steps: int | None = 100,
    lower_bound: float = 0.01,
    algorithm: Algorithm = "verified",
    whole_batch: bool | None = None,
    max_batches: int | None = 16,
    generator: Randomness = None,
) -> ScaleSearch:
    r"""One scale for each parameter tensor, found by ascending GradCosine under a cap on the gradient norm.

    $θ = s ∘ θ_0$ (yang2022nio, Algorithm 3, with the sub-batches of section B.1). At each step: where the norm of the
    sub-batches' gradients exceeds the cap, it is descended; otherwise
    $\frac{1}{D^2}\sum_{de}\cos∠(g_d, g_e)$ is ascended. All gradients are taken at the scaled parameters. The scaled
    start is kept only where it is better on held-out batches: its norm is within the cap, and GradCosine is higher or
    the start's norm exceeds the cap.

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
        learning_rate: the largest relative change of a scale in one step, or Adam's rate τ in the other algorithms.
        steps: how many, batches in turn; None for one pass over the batches in the other algorithms.
        lower_bound: the least scale; its inverse is the largest, in the other algorithms none is.
        algorithm: "verified", as above. "published" is the source's: Adam's steps on the scales themselves, with a
            first moment of the constraint's own, over all batches, and the last scales are kept whatever they come to.
            "research" differs from it as the authors' code does: the objective is the mean cosine of distinct
            sub-batches minus the sum of squared norms, the mean norm stands against the cap, sub-batches are its ranges
            of samples (unequal for D > 2) of one pass of the whole batch, only weights and biases of linear and
            convolutional layers and LayerNorm have scales, and those of biases may fall to 0.
        whole_batch: whether sub-batches share one pass, and with it batch normalisation's statistics, of the whole
            batch; None for the algorithm's own way (True for "research").
        max_batches: how many batches are read; None reads all.
        generator: a seed, a generator or None; orders the samples after the first pass over the batches.

    Returns:
        What was found; `kept` is False where that is nothing better, and the start is unchanged.

    Raises:
        ValueError: if an argument is out of range, a batch is too small for D parts that differ, the network cannot be
            differentiated twice, or the loss is constant; the start is then unchanged.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0.initializers import initialize
        >>> search = initialize("nio", model, batches, "cross_entropy", steps=5)
        >>> search.kept or bool(search.refusal)  # kept only where it is better on held-out batches
        True
    """
    if cap_statistic not in ("max", "mean"):
        raise ValueError(f"cap_statistic: expected 'max' or 'mean', got {cap_statistic!r}")
    if algorithm not in ("verified", "published", "research"):
        raise ValueError(f"algorithm: expected 'verified', 'published' or 'research', got {algorithm!r}")
    research = algorithm == "research"
    require_parts(sub_batches, overlap)  # what is out of range is refused before any work
    fair = partial(_equal_cuts, parts=sub_batches, overlap=overlap)
    cuts = partial(research_cuts, parts=sub_batches, overlap=overlap) if research else fair
    statistic: Statistic = "mean" if research else cap_statistic
    whole = research if whole_batch is None else whole_batch
    objective = Objective(
        method="nio",
        quantity="GradCosine",
        higher=True,
        slope=_slopes(cuts, statistic, research, whole),
        quality=partial(_quality, cuts=fair, statistic=statistic, whole=whole),
        quality_cost=shared_pass_cost(sub_batches) if whole else sub_batches / (1 + (sub_batches - 1) * (1 - overlap)),
    )
    settings = SearchSettings(
        gradient_norm_cap,
        cap_unit,
        learning_rate,
        steps,
        lower_bound,
        verified=algorithm == "verified",
        scaled=_research_parameters(model) if research else None,
        free_biases=research,
    )
    return search_scales(model, batches, loss, objective, settings, max_batches=max_batches, generator=generator)


nio_ = in_place(nio)


def research_cuts(batch: Batch, parts: int, overlap: float) -> list[slice]:
    """The samples of each sub-batch in the research code: D ranges of B/D samples, stretched by r at inner ends."""
    overlapping_cuts(batch.size, parts, overlap, number=batch.number)  # for its errors
    length = batch.size // parts
    starts = [0, *(int((1 - overlap) * length * number) for number in range(1, parts))]
    stops = [*(int((1 + overlap) * length * (number + 1)) for number in range(parts - 1)), batch.size]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


def _research_parameters(model: nn.Module) -> frozenset[str]:
    """The parameters that the research code scales."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd, nn.LayerNorm)
    owners = [(name, module) for name, module in initialised(model).named_modules() if isinstance(module, kinds)]
    return frozenset(
        f"{name}.{own}".lstrip(".") for name, module in owners for own, _ in module.named_parameters(recurse=False)
    )


def _equal_cuts(batch: Batch, parts: int, overlap: float) -> list[slice]:
    return overlapping_cuts(batch.size, parts, overlap, number=batch.number)


def _slopes(
    cuts: Cuts, statistic: Statistic, research: bool, whole: bool
) -> Callable[[ScaledNetwork, Batch, float], Slope]:
    """The slope of one batch; the first one decides whether samples meet in the network."""
    joint: list[bool] = [False] if whole else []
    chosen = partial(_slope, cuts=cuts, statistic=statistic, research=research, whole=whole)

    def slope(network: ScaledNetwork, batch: Batch, cap: float) -> Slope:
        cost = 0.0
        if not joint:
            suffice, cost = pieces_suffice(network, batch, cuts(batch))
            joint.append(suffice)
        found = chosen(network, batch, cap, joint=joint[0])
        return replace(found, cost=found.cost + cost)

    return slope


def _slope(
    network: ScaledNetwork,
    batch: Batch,
    cap: float,
    *,
    cuts: Cuts,
    statistic: Statistic,
    research: bool,
    joint: bool,
    whole: bool = False,
) -> Slope:
    taken = sub_batch_gradients(network, batch, cuts(batch), joint=joint, whole=whole)
    quality, norms = _judged(taken.rows, statistic)
    constrained = quality.gradient_norm > cap
    gram = _gram(taken.rows, norms)
    if constrained:
        weights = _norm_weights(norms, statistic)
    elif research:
        weights = _research_weights(gram, norms)
    else:
        weights = -_cosine_weights(gram, norms)
    along = taken.weights.T @ weights  # from ∂/∂g_d to ∂/∂h_s, still over the rows
    used = [s for s, row in enumerate(along) if bool(row.any())]
    directions = [combined(along[s].tolist(), taken.rows) for s in used]
    derivative = network.pulled_back([taken.local[s] for s in used], directions)
    once, twice = sum(taken.samples), sum(taken.samples[s] for s in used)
    return Slope(quality, constrained, derivative, (taken.lost + once + SECOND * twice) / batch.size)


def _quality(network: ScaledNetwork, batch: Batch, *, cuts: Cuts, statistic: Statistic, whole: bool) -> Quality:
    taken = sub_batch_gradients(network, batch, cuts(batch), joint=False, graph=False, whole=whole)
    return _judged(taken.rows, statistic)[0]


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
