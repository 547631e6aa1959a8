"""Per-sample gradients seen through their Gram matrix G_ij = g_i · g_j: alignment, noise, norms, Fisher eigenvalues."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from theta0._batches import Batch, materialised, outputs_or_told, ready
from theta0._losses import Loss, checked
from theta0._models import unwrapped
from theta0._records import Record
from theta0._state import functorch_safe
from theta0.measurements.gradient_alignment import (
    GradientGram,
    fisher_eigenvalues,
    gradcosine,
    gradient_noise,
    gradient_norms,
    path_bound,
    symmetric,
)
from theta0.measurements.gram_passes import BatchPass, batch_pass, fallback_gram, parameter_gram, passes_cost
from theta0.measurements.gram_products import Route
from theta0.measurements.outputs import Pass, output_records
from theta0.measurements.sub_batches import sub_batch_gram

_SHARE = 16  # the workspace holds this fraction of all per-sample gradients
_LEAST = 1 << 18  # numbers, below which splitting the work only costs time


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
    model = unwrapped(model)
    found = materialised(batches, model, max_batches=max_batches)
    model = ready(model, found[0])
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("model: expected a trainable parameter, got none; unfreeze some with requires_grad_(True)")
    samples = sum(batch.size for batch in found)
    if samples < 2:
        raise ValueError(f"batches: expected at least two samples to compare, got {samples}; pass a larger batch")
    with functorch_safe(model):
        if sub_batches is not None:
            return sub_batch_gram(model, found, loss, sub_batches, overlap, parameters)
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
    """
    model = unwrapped(model)
    found = materialised(batches, model, max_batches=max_batches)
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
    return records + _outputs(ready(model, found[0]), found)


def _outputs(model: nn.Module, batches: list[Batch]) -> list[Record]:
    with functorch_safe(model), torch.no_grad():
        passes = [Pass(batch, outputs_or_told(model, batch), None) for batch in batches]
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
    return GradientGram(symmetric(total), routes, 1, cost)
