"""Layers applied to several perturbations' rows at once, given the perturbed parameters."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from theta0._trace.layouts import growing_axis


class UnsupportedCall(Exception):
    """A parameter is used in a way that cannot be perturbed inside one pass."""


@dataclass(frozen=True)
class Rows:
    """The axis of a tensor of some rank that holds perturbations × samples, and whether nothing else."""

    axis: int
    rank: int
    alone: bool


def rows_of(
    shapes: Sequence[Sequence[Sequence[tuple[int, ...]]]], counts: tuple[int, int], samples: int
) -> list[list[Rows]]:
    """Where each call's tensors hold the rows, from all their shapes with the batch repeated so often as `counts` says.

    Raises:
        UnsupportedCall: if not exactly one axis of each grows in proportion.
    """
    one, other = shapes
    if [len(call) for call in one] != [len(call) for call in other]:
        raise UnsupportedCall("what the model calls depends on the number of samples")
    return [[_rows(a, b, counts, samples) for a, b in zip(*pair, strict=True)] for pair in zip(one, other, strict=True)]


def _rows(one: tuple[int, ...], other: tuple[int, ...], counts: tuple[int, int], samples: int) -> Rows:
    axis, rows = growing_axis(one, other, counts), counts[0] * samples
    if axis is None or one[axis] % rows:
        raise UnsupportedCall(f"no axis of a tensor {one} runs over the samples")
    return Rows(axis, len(one), one[axis] == rows)


def axes_of(shapes: Sequence[tuple[int, ...]], layouts: Sequence[Rows], rows: int) -> list[int]:
    """The axes that hold perturbations × samples in what a call takes from the inputs, if it is laid out so."""
    if len(layouts) != len(shapes):
        raise UnsupportedCall("what the model calls depends on the number of samples")
    for shape, at in zip(shapes, layouts, strict=True):
        length = shape[at.axis] if len(shape) == at.rank else 0
        if length == 0 or length % rows or (at.alone and length != rows):
            raise UnsupportedCall(f"axis {at.axis} of a tensor {shape} does not run over the samples")
    return [at.axis for at in layouts]


def split_axis(tensor: Tensor, axis: int, count: int) -> Tensor:
    """An axis of count · n entries as two, count × n."""
    return tensor.reshape(*tensor.shape[:axis], count, -1, *tensor.shape[axis + 1 :])


def over_perturbations(
    func: Any, args: tuple[Any, ...], options: dict[str, Any], values: Mapping[int, tuple[Tensor, int]]
) -> Any:
    """A function with other values of some arguments for each perturbation.

    `values` are by the identity of an argument, with the axis along which perturbations lie.

    Raises:
        UnsupportedCall: if torch cannot map the function.
    """
    flat, spec = tree_flatten((args, options))
    places = [place for place, leaf in enumerate(flat) if id(leaf) in values]

    def one(*given: Tensor) -> Any:
        filled = list(flat)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        inner_args, inner_options = tree_unflatten(filled, spec)
        return func(*inner_args, **inner_options)

    tensors, axes = zip(*(values[id(flat[place])] for place in places), strict=True)
    try:
        with warnings.catch_warnings():  # torch says so where it maps in a loop
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return torch.vmap(one, in_dims=axes)(*tensors)
    except (RuntimeError, ValueError, IndexError) as error:
        name = getattr(func, "__name__", str(func))
        raise UnsupportedCall(f"{name} cannot be mapped over perturbations: {error}") from error


def extent_of(size: Sequence[int], kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> tuple[int, int]:
    """Height and width of a two-dimensional convolution's output."""

    def pair(value: Any) -> tuple[int, ...]:
        return (value, value) if isinstance(value, int) else tuple(value)

    height, width = (
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, pair(stride), pair(padding), pair(dilation), strict=True)
    )
    return height, width


def patches(images: Tensor, kernel: Sequence[int], stride: Any, padding: Any, dilation: Any) -> Tensor:
    """What a two-dimensional convolution multiplies with its kernel, a row for each image and position."""
    columns = F.unfold(images, tuple(kernel), dilation, padding, stride)
    return columns.mT.reshape(-1, columns.shape[1])


def each_convolution(
    func: Callable[..., Tensor],
    input: Tensor,
    weights: Sequence[Tensor | None],
    biases: Sequence[Tensor | None],
    options: tuple[Any, ...],
) -> Tensor:
    """A convolution for each perturbation; a loop, since one grouped convolution took twice as long on a CPU."""
    parts = zip(input.chunk(len(weights)), weights, biases, strict=True)
    return torch.cat([func(x, w, b, *options) for x, w, b in parts])


def batch_norm_beside(
    input: Tensor, count: int, vectors: Sequence[Tensor | None], training: bool, momentum: float, eps: float
) -> Tensor:
    """Batch normalisation of each perturbation's rows: their channels stand side by side in one call.

    `vectors` are mean, variance, gain and shift, each of count · channels entries or None.
    """
    beside = split_axis(input, 0, count).transpose(0, 1).flatten(1, 2)
    mean, variance, gain, shift = vectors
    result = F.batch_norm(beside, mean, variance, gain, shift, training, momentum, eps)
    return split_axis(result, 1, count).transpose(0, 1).flatten(0, 1)
