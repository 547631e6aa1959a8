"""Per-sample gradients seen through their Gram matrix G_ij = g_i · g_j: alignment, noise, norms, Fisher eigenvalues."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from theta0._batches import Batch, checked_forward, prepared
from theta0._losses import Loss, checked, loss_of
from theta0._records import Record
from theta0._state import functorch_safe
from theta0.measurements.gram_passes import BatchPass, batch_pass, fallback_gram, parameter_gram, passes_cost
from theta0.measurements.gram_products import Route, gram_of_rows
from theta0.measurements.outputs import Pass, output_records
from theta0.measurements.sample_losses import gradients_of
from theta0.measurements.sub_batches import overlapping

_SHARE = 16  # the workspace holds this fraction of all per-sample gradients
_LEAST = 1 << 18  # numbers, below which splitting the work only costs time


@dataclass(frozen=True, eq=False)
class GradientGram:
    """The inner products of per-sample gradients.

    Attributes:
        gram: G_ij = g_i · g_j over all trainable parameters.
        routes: how each trainable parameter's share was found (see `gram_products.gram_of`); "per-sample" where
            gradients were stored, "unused" where the loss does not depend on it.
        size: how many samples a row stands for: 1, or a sub-batch's length.
        cost: in gradients (forward and backward) of the mean batch: passes over samples, and multiplications in
            products relative to those that the same parameters' gradients take.
    """

    gram: Float64[Tensor, "n n"]
    routes: Mapping[str, Route]
    size: int
    cost: float


def gradient_gram(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    sub_batches: int | None = None,
    overlap: float = 0.0,
    max_batches: int | None = 4,
) -> GradientGram:
    """The Gram matrix of per-sample gradients, over all samples of all batches and all trainable parameters.

    g_i is the gradient of sample i's loss; the batch's loss is the mean or the sum of these, which is verified. Tied
    weights, modules called several times and views of parameters are exact. For linear maps, convolutions,
    embeddings, normalisations' affine parameters, biases, attention projections and parameters added or multiplied
    elementwise no gradient of a weight is stored: the products are made from layer inputs and output gradients, which
    are kept for all batches at once. Other parameters (recurrent, parametrized and transposed-convolution weights)
    fall back to per-sample gradients, as many parameters at a time as a sixteenth of all gradients' memory holds, at
    about one gradient's cost each time. Every parameter's share is compared with plain gradients of each batch's
    first and last samples; where it does not agree, it falls back.

    Dropout is off; modes are otherwise as found. The model is left bit-identical.

    Args:
        model: any module whose samples do not meet, unless `sub_batches` is given.
        batches: `(inputs, targets)` batches, samples along the first axis.
        loss: a name, a callable, or None where the model returns its own.
        sub_batches: D, to replace sample gradients by the gradients of D equal consecutive parts of all samples (a
            remainder is left out; stored: D gradients). Under batch normalisation in training mode only these exist.
        overlap: r, the fraction of its samples that a part shares with the next (see `sub_batches.overlapping`).
        max_batches: how many batches are read; None reads all.

    Returns:
        The matrix, rows in the order of the samples (or parts), and how it was found.

    Raises:
        ValueError: if there are fewer than two samples (or parts), no trainable parameter, a loss or gradient that is
            not finite, a loss that is not additive over samples, or batch normalisation on batch statistics.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> gradient_gram(layer, [(x, None)], lambda outputs, targets: outputs.sum()).gram.tolist()
        [[1.0, 1.0], [1.0, 2.0]]
    """
    checked(loss)
    model, found = prepared(model, batches, max_batches)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("model: expected a trainable parameter, got none; unfreeze some with requires_grad_(True)")
    samples = sum(batch.size for batch in found)
    if samples < 2:
        raise ValueError(f"batches: expected at least two samples to compare, got {samples}; pass a larger batch")
    with functorch_safe(model):
        if sub_batches is not None:
            return _sub_batch_gram(model, found, loss, sub_batches, overlap, parameters)
        return _sample_gram(model, found, loss, samples, parameters)


def gradients(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    sub_batches: int | None = None,
    overlap: float = 0.0,
    max_batches: int | None = 4,
) -> list[Record]:
    """Numbers that per-sample gradients give for the whole network (layer "").

    Quantities: `gradcosine`, `gradient_noise` (left out where the mean gradient vanishes), `gradient_norm_mean` and
    `gradient_norm_max` (of samples, or of sub-batches), `path_bound` (left out where a sample has no gradient),
    `top_fisher_eigenvalue` (of the empirical Fisher matrix; of single samples only), and `output_rms` and
    `output_sample_std` of the main output (its root mean square, and the deviation between samples): where samples
    come out alike they pull the same way, so that a high `gradcosine` is then no good sign.

    Args:
        model: any module; left bit-identical.
        batches: `(inputs, targets)` batches.
        loss: a name, a callable, or None where the model returns its own.
        sub_batches: as in `gradient_gram`.
        overlap: as in `gradient_gram`.
        max_batches: how many batches are read; None reads all.

    Returns:
        The records.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> found = {record.quantity: record.value for record in gradients(model, batches, "cross_entropy")}
        >>> 0 < found["gradcosine"] < 1
        True
    """
    model, found = prepared(model, batches, max_batches)
    gram = gradient_gram(model, found, loss, sub_batches=sub_batches, overlap=overlap, max_batches=None)
    norms = gradient_norms(gram)
    values = {
        "gradcosine": gradcosine(gram),
        "gradient_noise": gradient_noise(gram),
        "gradient_norm_mean": float(norms.mean()),
        "gradient_norm_max": float(norms.max()),
        "path_bound": path_bound(gram),
    }
    if sub_batches is None:
        values["top_fisher_eigenvalue"] = float(fisher_eigenvalues(gram)[0])
    records = [Record("", quantity, value) for quantity, value in values.items() if math.isfinite(value)]
    return records + _outputs(model, found)


def gradient_norms(gram: GradientGram) -> Float64[Tensor, " n"]:
    """‖g_i‖ of every sample.

    Returns:
        One norm per sample.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)  # its gradients for the loss w·x are the samples themselves
        >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2))]
        >>> gram = gradient_gram(model, batches, lambda outputs, targets: outputs.mean())
        >>> gradient_norms(gram).tolist()
        [1.0, 2.0]
    """
    return gram.gram.diagonal().clamp_min(0).sqrt()


def gradcosine(gram: GradientGram) -> float:
    r"""$(1/n^2) \sum_{ij} \cos∠(g_i, g_j)$ (yang2022nio, section 3): 1 where all samples pull the same way.

    A sample without gradient counts as orthogonal to all, itself included.

    Returns:
        The mean cosine, between 0 and 1.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)  # its gradients for the loss w·x are the samples themselves
        >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2))]
        >>> gram = gradient_gram(model, batches, lambda outputs, targets: outputs.mean())
        >>> gradcosine(gram)
        0.5
    """
    norms = gradient_norms(gram)
    directions = torch.where(norms > 0, 1 / norms, 0.0)
    return float(directions @ gram.gram @ directions) / len(norms) ** 2


def gradient_noise(gram: GradientGram) -> float:
    r"""$\mathrm{tr}\,Σ / ‖ḡ‖^2$, Σ the covariance of the rows' gradients (n - 1 in its denominator) and ḡ their mean.

    Times `gram.size` it is the batch size at which noise and signal are equal ("simple noise scale").

    Returns:
        The ratio; infinite where the mean gradient vanishes.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)  # its gradients for the loss w·x are the samples themselves
        >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2))]
        >>> gram = gradient_gram(model, batches, lambda outputs, targets: outputs.mean())
        >>> gradient_noise(gram)
        2.0
    """
    n = len(gram.gram)
    mean = float(gram.gram.sum()) / n**2
    trace = max(0.0, float(gram.gram.trace()) - n * mean) / (n - 1)
    return trace / mean if mean > 0 else math.inf


def fisher_eigenvalues(gram: GradientGram) -> Float64[Tensor, " n"]:
    r"""Eigenvalues of the empirical Fisher matrix $(1/n) \sum_i g_i g_i^⊤$, which are those of G/n, and zeros.

    Returns:
        The n largest, in descending order.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)  # its gradients for the loss w·x are the samples themselves
        >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2))]
        >>> gram = gradient_gram(model, batches, lambda outputs, targets: outputs.mean())
        >>> fisher_eigenvalues(gram).tolist()
        [2.0, 0.5]
    """
    values: Tensor = torch.linalg.eigvalsh(gram.gram / len(gram.gram))
    return values.flip(0).clamp_min(0)


def path_bound(gram: GradientGram) -> float:
    r"""Theorem 2's bound of the loss that training can reach, in units of its constants: $Θ / (H η^2)$.

    $Θ = \frac{H α^2}{n} \sum_{ij} (α/β - \cos∠(p_i, p_j))$ (yang2022nio, section A.2, eq. 13), p_i the path from the
    start to the optimum of sample i alone, α and β the longest and the shortest. Each path is taken as one step of
    gradient descent at rate η, $p_i ≈ -η g_i$ (its eq. 3), and H bounds the curvature: neither is known here.

    Returns:
        The number; infinite where a sample has no gradient, since β is then 0.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)  # its gradients for the loss w·x are the samples themselves
        >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2))]
        >>> gram = gradient_gram(model, batches, lambda outputs, targets: outputs.mean())
        >>> path_bound(gram)
        12.0
    """
    norms = gradient_norms(gram)
    longest, shortest = float(norms.max()), float(norms.min())
    if shortest == 0:
        return math.inf
    return longest**2 * len(norms) * (longest / shortest - gradcosine(gram))


def _symmetric(gram: Float64[Tensor, "n n"]) -> Float64[Tensor, "n n"]:
    """The Gram matrix without what rounding does to its symmetry; one that is not finite is refused."""
    if not bool(torch.isfinite(gram).all()):
        raise ValueError("gradients: expected finite inner products, got NaN or infinite ones; run diagnose first")
    return (gram + gram.T) / 2


def _outputs(model: nn.Module, batches: list[Batch]) -> list[Record]:
    with functorch_safe(model), torch.no_grad():
        passes = [Pass(batch, checked_forward(model, batch), None) for batch in batches]
        return [record for record in output_records(passes, None) if record.quantity.startswith("output_")]


def _sample_gram(
    model: nn.Module, batches: list[Batch], loss: Loss, samples: int, parameters: dict[str, nn.Parameter]
) -> GradientGram:
    passes: list[BatchPass] = []
    for batch in batches:
        start = passes[-1].start + passes[-1].batch.size if passes else 0
        passes.append(batch_pass(model, batch, start, loss, parameters))
    workspace = max(_LEAST, samples * sum(p.numel() for p in parameters.values()) // _SHARE)
    routes: dict[str, Route] = {}
    total = torch.zeros(samples, samples, dtype=torch.float64, device=next(iter(parameters.values())).device)
    spent = whole = 0.0
    for name, parameter in parameters.items():
        share, routes[name], cost, gradient = parameter_gram(name, parameter, passes, samples, workspace)
        spent, whole = spent + cost, whole + 3 * gradient
        if share is None:
            routes[name] = "per-sample"
        else:
            total += share
    cost = passes_cost(passes) + len(batches) * (spent / whole if whole else 0.0)
    rest = [name for name, route in routes.items() if route == "per-sample"]
    if rest:
        share, runs = fallback_gram(model, rest, passes, samples, workspace)
        total, cost = total + share, cost + runs * len(batches)
    return GradientGram(_symmetric(total), routes, 1, cost)


def _sub_batch_gram(
    model: nn.Module,
    batches: list[Batch],
    loss: Loss,
    parts: int,
    overlap: float,
    parameters: dict[str, nn.Parameter],
) -> GradientGram:
    """The Gram matrix of the gradients of equal parts of all batches together."""
    batch = _joined(batches)
    cut = overlapping(batch, parts, overlap)
    rows = []
    for part in cut:
        found = gradients_of(loss_of(model, part, loss)[0], list(parameters.values()), part)
        rows.append(torch.cat([g.flatten() for g in found]))
    stored = torch.stack(rows)
    stored = stored.to(torch.promote_types(stored.dtype, torch.float32))
    largest = float(stored.abs().max())
    if not math.isfinite(largest):
        raise ValueError(
            "sub_batches: expected finite gradients, got NaN or infinite ones; "
            "run diagnose to find the layer where they begin"
        )
    gram = gram_of_rows(stored / largest, largest) if largest > 0 else gram_of_rows(stored)
    routes: dict[str, Route] = dict.fromkeys(parameters, "per-sample")
    size = cut[0].size
    return GradientGram(_symmetric(gram), routes, size, parts * size * len(batches) / batch.size)


def _joined(batches: list[Batch]) -> Batch:
    """All batches as one."""
    if len(batches) == 1:
        return batches[0]
    flat = [tree_flatten((b.inputs, b.targets)) for b in batches]
    try:
        leaves = [
            torch.cat(column) if all(isinstance(leaf, Tensor) and leaf.dim() > 0 for leaf in column) else column[0]
            for column in zip(*(leaves for leaves, _ in flat), strict=True)
        ]
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            "sub_batches: expected batches that can be joined (equal shapes but for the first axis), "
            f"got {error}; pass a single batch"
        ) from error
    inputs, targets = tree_unflatten(leaves, flat[0][1])
    return replace(batches[0], inputs=inputs, targets=targets, size=sum(b.size for b in batches))
