"""What the parameters hold, and which of their units are copies of one another."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from theta0._moments import (
    Number,
    bad_entries,
    fetched,
    floats,
    largest_magnitude,
    mean_of,
    real_entries,
    square_sum,
    squares_of,
)
from theta0._records import Record

_SAME = 0.3  # relative: where only the biases differ, the gradients of equal units are nearly the same


def parameter_records(model: nn.Module, gradients: Mapping[str, Tensor], norms: Mapping[str, float]) -> list[Record]:
    """Numbers of every parameter that holds floating values; `norms` are those of the gradients.

    `gradient_norm` (where it has a gradient), `value_rms`, `value_mean`, `value_max` (largest magnitude),
    `nonfinite_share` and `identical_share` (only where they are not zero).
    """
    held = {name: real_entries(p.detach()) for name, p in model.named_parameters()}
    held = {name: values for name, values in held.items() if values.numel() and values.is_floating_point()}
    read = floats([number for values in held.values() for number in _numbers(values)])
    starts = dict(zip(held, fetched([_starts(values) for values in held.values()]), strict=True))
    records: list[Record] = []
    for place, (name, values) in enumerate(held.items()):
        square, mean, largest, bad = read[4 * place : 4 * place + 4]
        if name in norms:
            records.append(Record(name, "gradient_norm", norms[name]))
        records.append(Record(name, "value_rms", math.sqrt(square) / values.numel() ** 0.5))
        records.append(Record(name, "value_mean", mean))
        records.append(Record(name, "value_max", largest))
        suspicious = not bad and name in norms and _may_repeat(starts[name])
        share = identical_share(values, gradients[name]) if suspicious else 0.0
        records += [Record(name, "nonfinite_share", bad / values.numel())] if bad else []
        records += [Record(name, "identical_share", share)] if share else []
    return records


def _numbers(values: Tensor) -> tuple[Number, Number, Number, Number]:
    """Sum of squares, mean, largest magnitude, and how many entries are not finite: counted where the first is not."""
    squares = squares_of(values)
    finite = not isinstance(squares, Tensor) and math.isfinite(squares)
    return squares, mean_of(values), largest_magnitude(values), 0.0 if finite else bad_entries(values)


def gradient_agreement(squares: Sequence[float], mean_square: float) -> list[Record]:
    r"""`gradient_agreement` of whole batches: the mean cosine between their gradients, weighted by their norms.

    $\sum_{i≠j} g_i·g_j / ((n - 1) \sum_i ‖g_i‖^2)$, 1 where all n batches pull the same way, 0 where one says nothing
    of the other; from norms alone, so no gradient is kept. With equal norms GradCosine (yang2022nio, section 3) over
    the batches is $(1 + (n - 1) a) / n$; `gradients` measures that over samples or parts of a batch. `squares` are
    $‖g_i‖^2$ of each batch over all parameters, `mean_square` that of their mean. There is no record of a single batch
    or where no gradient is finite and nonzero.

    Example:
        >>> gradient_agreement([1.0, 1.0], 0.5)[0].value  # at right angles
        0.0
    """
    count, total = len(squares), math.fsum(squares)
    if count < 2 or not 0 < total < math.inf:
        return []
    return [Record("", "gradient_agreement", (count**2 * mean_square / total - 1) / (count - 1))]


def norm(gradient: Tensor) -> float:
    """The Euclidean norm, also of gradients that have vanished so far that their squares underflow in float32."""
    return math.sqrt(square_sum(gradient))


def identical_share(weight: Tensor, gradient: Tensor) -> float:
    """The share of units (rows) that have the weights, not all zero, and nearly the gradient, not zero, of another.

    With the same gradient such units stay copies of each other for ever: the network is narrower than it looks. Equal
    rows with different gradients part at the first step. It is 0 for vectors, whose entries are no units.
    """
    if not _may_repeat(fetched([_starts(weight)])[0]):
        return 0.0
    rows, slopes = weight.flatten(1), gradient.flatten(1)
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    alive = (rows != 0).any(1) & (slopes != 0).any(1)
    order = torch.argsort(group, stable=True)
    order = order[alive[order]]
    same_rows = group[order][:-1] == group[order][1:]
    same = same_rows & _alike(slopes[order][:-1], slopes[order][1:], exact=False)
    copies = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
    copies[order[:-1][same]] = True
    copies[order[1:][same]] = True
    return float(copies.double().mean())


def _starts(weight: Tensor) -> Tensor:
    """The first entries of each unit's row; none of scales and shifts, which have no units."""
    if weight.dim() < 2 or len(weight) < 2 or weight[0].numel() < 2:
        return weight.new_empty(0, 4)
    return weight.flatten(1)[:, :4]


def _may_repeat(starts: Tensor) -> bool:
    """Whether units may be equal: next to each other, or, as half of them are seldom by chance, anywhere."""
    if not len(starts):
        return False
    neighbours = _alike(starts[:-1], starts[1:], exact=True).any()
    return bool(neighbours) or len(torch.unique(starts.double().sum(1))) <= len(starts) // 2


def _alike(a: Tensor, b: Tensor, *, exact: bool) -> Tensor:
    if exact:
        return (a == b).all(1)
    distances: Tensor = (a - b).double().norm(dim=1)
    found: Tensor = distances <= _SAME * a.double().norm(dim=1)
    return found
