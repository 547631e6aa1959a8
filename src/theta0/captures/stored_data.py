"""Where a script's data sets keep their values, and which line changes these while it reads them."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

_MOST = 100_000  # tensors of a data set that holds one a sample
_DEPTH = 4  # of data sets in data sets, and of lists in them
# Functions that write what depends on what was there, and give another value when they are called again.
_CHANGES = frozenset(
    [
        "add_",
        "sub_",
        "subtract_",
        "mul_",
        "multiply_",
        "div_",
        "divide_",
        "true_divide_",
        "pow_",
        "exp_",
        "log_",
        "log1p_",
        "sqrt_",
        "rsqrt_",
        "neg_",
        "lerp_",
        "addcmul_",
        "addcdiv_",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__idiv__",
        "__itruediv__",
        "__ipow__",
    ]
)


def changes(name: str) -> bool:
    """Whether the function of a name changes its first argument by what that holds, each time anew."""
    return name in _CHANGES


@dataclass(eq=False)
class StoredData:  # grows while the script runs
    """The memory of the data sets.

    Attributes:
        begins: where each of their arrays begins, in order.
        ends: where these end.
        written: of each line that changed what lies there, how often it did.
    """

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in that memory."""
        if not self.begins or tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
            return False
        number = bisect_right(self.begins, tensor.data_ptr()) - 1
        return number >= 0 and tensor.data_ptr() < self.ends[number]

    @property
    def line(self) -> str:
        """The line that changed most, if it did so more than once."""
        line = max(self.written, key=lambda one: self.written[one], default="")
        return line if self.written.get(line, 0) > 1 else ""


def stored_data(sets: Iterable[Dataset[Any]]) -> StoredData:
    """The memory in which data sets keep floating numbers; what worker processes read is a copy of it."""
    ordered = sorted({span for one in sets for span in _spans(one, _DEPTH)})[:_MOST]
    return StoredData([begin for begin, _ in ordered], [end for _, end in ordered])


def _spans(value: Any, depth: int) -> Iterator[tuple[int, int]]:
    if isinstance(value, Tensor):
        if value.device.type == "cpu" and value.layout is torch.strided and value.is_floating_point():
            storage = value.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    elif isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and value.flags.c_contiguous:
            yield value.ctypes.data, value.ctypes.data + value.nbytes
    elif depth and isinstance(value, Dataset):
        for part in list(vars(value).values()):
            yield from _spans(part, depth - 1)
    elif depth and isinstance(value, (list, tuple, dict)):
        parts: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value
        for part in parts[:_MOST]:
            yield from _spans(part, depth - 1)
