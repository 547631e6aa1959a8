"""Every kind of layer that can be constrained, and the same layer on a dense QR basis."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from lcw_cases import random
from torch import Tensor, nn

Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Kind:
    """A layer, its constrained weights as paths, its inputs, and the fan-in of each weight."""

    make: Make
    weights: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]


def _gates(count: int, suffixes: tuple[str, ...] = ("l0",)) -> tuple[str, ...]:
    return tuple(f"weight_{side}_{suffix}" for suffix in suffixes for side in ("ih", "hh"))[:count]


BOTH_WAYS = ("l0", "l0_reverse", "l1", "l1_reverse")
KINDS: dict[str, Kind] = {
    "linear, more units": Kind(lambda: nn.Linear(7, 5), ("weight",), ((3, 7),)),
    "linear, more rows": Kind(lambda: nn.Linear(4, 3, bias=False), ("weight",), ((5, 2, 4),)),
    "conv1d": Kind(lambda: nn.Conv1d(4, 6, 3, padding=1), ("weight",), ((2, 4, 6),)),
    "conv2d groups": Kind(lambda: nn.Conv2d(4, 6, 3, groups=2, stride=2), ("weight",), ((2, 4, 6, 6),)),
    "conv3d": Kind(lambda: nn.Conv3d(2, 3, (2, 1, 3)), ("weight",), ((2, 2, 4, 4, 4),)),
    "transposed1d": Kind(lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), ("weight",), ((2, 4, 5),)),
    "transposed2d groups": Kind(lambda: nn.ConvTranspose2d(6, 4, (2, 3), groups=2), ("weight",), ((2, 6, 4, 4),)),
    "transposed3d": Kind(lambda: nn.ConvTranspose3d(3, 2, (1, 2, 2)), ("weight",), ((2, 3, 3, 3, 3),)),
    "attention": Kind(
        lambda: nn.MultiheadAttention(4, 2, batch_first=True), ("in_proj_weight", "out_proj.weight"), ((2, 3, 4),) * 3
    ),
    "attention, other widths": Kind(
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
        ("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"),
        ((3, 2, 4), (3, 2, 3), (3, 2, 5)),
    ),
    "lstm both ways, projected": Kind(
        lambda: nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2), _gates(8, BOTH_WAYS), ((5, 2, 3),)
    ),
    "lstm": Kind(lambda: nn.LSTM(3, 4, batch_first=True), _gates(2), ((2, 5, 3),)),
    "gru, two layers": Kind(lambda: nn.GRU(3, 4, 2), _gates(4, ("l0", "l1")), ((5, 2, 3),)),
    "rnn, relu, no bias": Kind(lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False), _gates(2), ((5, 2, 3),)),
    "gru cell": Kind(lambda: nn.GRUCell(3, 4), ("weight_ih", "weight_hh"), ((2, 3),)),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def inputs_of(kind: Kind, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [random(*shape, seed=10 + at).to(dtype) for at, shape in enumerate(kind.inputs)]


def call(layer: nn.Module, inputs: list[Tensor]) -> Tensor:
    outputs = layer(*inputs)
    return outputs[0] if isinstance(outputs, tuple) else outputs


def place(layer: nn.Module, path: str) -> tuple[nn.Module, str]:
    owner, _, name = path.rpartition(".")
    return layer.get_submodule(owner), name


def by_unit(layer: nn.Module, weight: Tensor) -> Tensor:
    """One row for each unit, gathered unit by unit."""
    if "ConvTranspose" not in type(layer).__name__:
        return weight.reshape(len(weight), -1)
    groups = layer.groups
    blocks = weight.chunk(groups, 0)
    return torch.stack([block[:, unit].flatten() for block in blocks for unit in range(weight.shape[1])])


def from_units(layer: nn.Module, units: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `by_unit`."""
    if "ConvTranspose" not in type(layer).__name__:
        return units.reshape(shape)
    inside = (shape[0] // layer.groups, *shape[2:])
    blocks = [torch.stack([u.reshape(inside) for u in rows], 1) for rows in units.chunk(layer.groups)]
    return torch.cat(blocks)


def qr_basis(m: int) -> Tensor:
    """An orthonormal basis of 1^⊥, m × (m - 1), as the source builds it."""
    return torch.linalg.qr(torch.cat([torch.eye(m - 1), -torch.ones(1, m - 1)]).double()).Q


def householder(m: int) -> Tensor:
    """Columns 2..m of the reflection that sends 1/√m to -e₁."""
    mirror = torch.full((m,), m**-0.5, dtype=torch.float64)
    mirror[0] += 1
    return (torch.eye(m).double() - 2 * torch.outer(mirror, mirror) / mirror.square().sum())[:, 1:]
