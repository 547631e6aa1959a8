"""From the factors of one parameter's per-sample gradients to their Gram matrix, by the cheapest exact route."""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from theta0.measurements.gram_factors import Explicit, Factors, Outer, flattened_shape

Route = Literal["pairs", "slices", "look-ups", "entries", "per-sample", "unused"]


def gram_of(
    factors: Sequence[Factors], parameter: Tensor, samples: int, workspace: int
) -> tuple[Float64[Tensor, "n n"], Route, float]:
    r"""The Gram matrix of one parameter's per-sample gradients, $G_{ij} = \sum_f \sum_{f'} ⟨g_i^f, g_j^{f'}⟩$.

    Where the gradients are sums of outer products, $g_i = \sum_t l_{it} r_{it}^⊤$, either

    * "pairs": $\sum_{t,t'} (l_{it}·l_{jt'}) (r_{it}·r_{jt'})$, which forms no gradient, or
    * "slices": the gradients themselves, some rows at a time, for all samples, or
    * "look-ups": for embeddings, the sums over equal indices, index by index,

    whichever takes fewer multiplications. "entries": small gradients that are written out. `workspace` is how many
    numbers may be stored at a time, beside one sample's share.
    """
    outer = [f for f in factors if isinstance(f, Outer)]
    if not outer:
        explicit = [f for f in factors if isinstance(f, Explicit)]
        return _entries_gram(explicit, parameter, samples), "entries", float(samples) ** 2 * parameter.numel()
    if all(f.looked_up for f in outer):
        gram, cost = _lookup_gram(outer, samples)
        return gram, "look-ups", cost
    shape = flattened_shape(parameter, list(factors))
    pairs, slices = _pairs_cost(outer), _slices_cost(outer, shape, samples)
    if pairs <= slices:
        return _pairs_gram(outer, parameter, samples, workspace), "pairs", pairs
    return _slices_gram(outer, shape, parameter, samples, workspace), "slices", slices


def gram_of_rows(rows: Float[Tensor, "n entries"], scale: float = 1.0) -> Float64[Tensor, "n n"]:
    """scale² · rows rowsᵀ, summed block by block in double precision."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in torch.split(rows, 1 << 16, 1):
        total += (block @ block.T).double()
    return total * scale**2


def multiplications(factors: Sequence[Factors]) -> float:
    """What forming the parameter's gradient once for all samples takes."""
    return float(sum(f.samples * f.positions * f.groups * f.rows * f.columns for f in factors if isinstance(f, Outer)))


def _entries_gram(factors: Sequence[Explicit], parameter: Tensor, samples: int) -> Float64[Tensor, "n n"]:
    largest = max(abs(f.scale) for f in factors)
    first = factors[0].values
    rows = torch.zeros(samples, parameter.numel(), dtype=first.dtype, device=first.device)
    for f in factors:
        part = rows[f.start : f.start + len(f.values)]
        values = f.values * (f.scale / largest)
        if f.entries is None:
            part += values
        else:
            part.index_add_(1, f.entries, values)
    return gram_of_rows(rows, largest)


def _keys(factor: Outer, samples: int) -> Tensor:
    """One number per looked-up (index, sample); negative where nothing is looked up."""
    numbers = torch.arange(factor.start, factor.start + factor.samples, device=factor.left.device)
    return torch.where(factor.left >= 0, factor.left * samples + numbers[:, None], -1).reshape(-1)


def _lookup_gram(factors: Sequence[Outer], samples: int) -> tuple[Float64[Tensor, "n n"], float]:
    largest = max(f.scale for f in factors)
    keys = torch.cat([_keys(f, samples) for f in factors])
    values = torch.cat([f.right(0, f.samples).flatten(0, 2) * (f.scale / largest) for f in factors])
    keys, values = keys[keys >= 0], values[keys >= 0]
    keys, place = torch.unique(keys, return_inverse=True)
    sums = torch.zeros(len(keys), values.shape[1], dtype=values.dtype, device=values.device)
    sums.index_add_(0, place, values)
    counts = torch.unique_consecutive(keys // samples, return_counts=True)[1].tolist()
    total = torch.zeros(samples, samples, dtype=torch.float64, device=values.device)
    for who, rows in zip(torch.split(keys % samples, counts), torch.split(sums, counts), strict=True):
        total[who[:, None], who] += (rows @ rows.T).double()
    return total * largest**2, float(sum(count**2 for count in counts) * values.shape[1])


def _pairs_cost(factors: Sequence[Outer]) -> float:
    return float(
        sum(
            a.groups * a.samples * a.positions * b.samples * b.positions * (min(a.rows, b.rows) + a.columns + 1)
            for a, b in combinations_with_replacement(factors, 2)
        )
    )


def _pairs_gram(factors: Sequence[Outer], parameter: Tensor, samples: int, workspace: int) -> Float64[Tensor, "n n"]:
    total = torch.zeros(samples, samples, dtype=torch.float64, device=parameter.device)
    for a, b in combinations_with_replacement(factors, 2):
        for (i, k), rights in _blocks(a, workspace):
            for (j, m), others in _blocks(b, workspace):
                if a is b and j > i:
                    break
                block = _pair_block(a, b, (i, k), (j, m), rights, others) * (a.scale * b.scale)
                here, there = slice(a.start + i, a.start + k), slice(b.start + j, b.start + m)
                total[here, there] += block
                if a is not b or i != j:
                    total[there, here] += block.T
    return total


def _blocks(factor: Outer, workspace: int) -> Iterator[tuple[tuple[int, int], Float[Tensor, "g rows columns"]]]:
    """Right factors of some samples at a time, as (group, sample × position, column)."""
    numbers = factor.positions * factor.groups * factor.columns
    pairs = max(1, int((workspace / factor.groups) ** 0.5) // factor.positions)
    step = max(1, min(pairs, workspace // max(1, numbers)))
    for i in range(0, factor.samples, step):
        k = min(i + step, factor.samples)
        yield (i, k), factor.right(i, k).flatten(0, 1).transpose(0, 1)


def _pair_block(
    a: Outer, b: Outer, here: tuple[int, int], there: tuple[int, int], rights: Tensor, others: Tensor
) -> Float64[Tensor, "i j"]:
    left = _left_products(a, b, slice(*here), slice(*there))
    products = left * (rights @ others.transpose(1, 2))
    shape = (here[1] - here[0], a.positions, there[1] - there[0], b.positions)
    return products.sum(0).view(shape).sum((1, 3)).double()


def _left_products(a: Outer, b: Outer, here: slice, there: slice) -> Float[Tensor, "g i j"]:
    """(l_it · l_jt') for dense rows, row numbers, and one of each."""
    if b.looked_up and not a.looked_up:
        return _left_products(b, a, there, here).transpose(1, 2)
    if a.looked_up:
        index = a.left[here].reshape(-1)
        if b.looked_up:
            equal = (index[:, None] == b.left[there].reshape(-1)) & (index >= 0)[:, None]
            return equal.to(a.right(0, 1).dtype)[None]
        rows = b.left[there].flatten(0, 2)
        inside = (index >= b.offset) & (index < b.offset + b.rows)
        picked = rows[:, (index - b.offset).clamp(0, b.rows - 1)].T
        return (picked * inside[:, None])[None]
    start, stop = max(a.offset, b.offset), min(a.offset + a.rows, b.offset + b.rows)
    if start >= stop:
        return a.left.new_zeros(1, 1, 1)
    rows_a = a.left[here, :, :, start - a.offset : stop - a.offset].flatten(0, 1).transpose(0, 1)
    rows_b = b.left[there, :, :, start - b.offset : stop - b.offset].flatten(0, 1).transpose(0, 1)
    return rows_a @ rows_b.transpose(1, 2)


def _slices_cost(factors: Sequence[Outer], shape: tuple[int, int, int], samples: int) -> float:
    groups, rows, columns = shape
    return multiplications(factors) + float(samples) ** 2 * groups * rows * columns


def _slices_gram(
    factors: Sequence[Outer], shape: tuple[int, int, int], parameter: Tensor, samples: int, workspace: int
) -> Float64[Tensor, "n n"]:
    groups, rows, columns = shape
    largest = max(f.scale for f in factors)
    step = max(1, workspace // (samples * groups * columns))
    total = torch.zeros(samples, samples, dtype=torch.float64, device=parameter.device)
    dtype = factors[0].right(0, 1).dtype
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        gradients = torch.zeros(samples, groups, stop - start, columns, dtype=dtype, device=parameter.device)
        for factor in factors:
            _add_slice(gradients, factor, start, stop, factor.scale / largest, workspace)
        total += gram_of_rows(gradients.flatten(1))
    return total * largest**2


def _add_slice(gradients: Tensor, factor: Outer, start: int, stop: int, weight: float, workspace: int) -> None:
    """Add a factor's gradients of the rows from start to stop."""
    first, last = max(start, factor.offset), min(stop, factor.offset + factor.rows)
    if not factor.looked_up and first >= last:
        return
    step = max(1, workspace // (factor.positions * factor.groups * factor.columns))
    for i in range(0, factor.samples, step):
        k = min(i + step, factor.samples)
        into, right = gradients[factor.start + i : factor.start + k], factor.right(i, k) * weight
        if factor.looked_up:
            index = factor.left[i:k]
            sample, position = torch.nonzero((index >= start) & (index < stop), as_tuple=True)
            rows = index[sample, position] - start
            into[:, 0].index_put_((sample, rows), right[sample, position, 0], accumulate=True)
        else:
            left = factor.left[i:k, :, :, first - factor.offset : last - factor.offset]
            into[:, :, first - start : last - start] += torch.einsum("ntgr,ntgc->ngrc", left, right)
