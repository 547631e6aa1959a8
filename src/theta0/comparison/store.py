"""Runs that were made already, one JSON object a line, so that a race that was broken off goes on."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from theta0._batches import Batch
from theta0._losses import Loss
from theta0._training import Run


class Store:  # a class because the file and what was read of it belong together
    """Results by key; of a file where there is one. What was cut off at its end is made again."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)
        self.found: dict[str, dict[str, Any]] = {}
        if self.path is not None and self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    self.found[entry["key"]] = entry
                except (ValueError, KeyError, TypeError):
                    continue

    def get(self, key: str) -> dict[str, Any] | None:
        """What stands under a key, or None."""
        return self.found.get(key)

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Keep a result, at once."""
        self.found[key] = result | {"key": key}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self.path.exists() and self.path.stat().st_size and not self.path.read_bytes().endswith(b"\n")
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("\n" if torn else "") + json.dumps(self.found[key], allow_nan=False) + "\n")


def run_to_dict(run: Run) -> dict[str, Any]:
    """A run as JSON knows it: losses that are not finite are null."""
    found = asdict(run)
    numbers = {name: _to_json(found[name]) for name in ("held_out", "held_out_start")}
    return found | numbers | {"losses": [_to_json(value) for value in run.losses]}


def run_from_dict(found: dict[str, Any]) -> Run:
    """The run again; null becomes infinity."""
    numbers = {name: _from_json(found[name]) for name in ("held_out", "held_out_start")}
    return Run(**{**found, **numbers, "losses": tuple(_from_json(value) for value in found["losses"])})


def digest(*parts: Any) -> str:
    """A name for models, batches, losses and plain values: equal contents, equal names."""
    total = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part):
            total.update(piece)
            total.update(b"\0")
    return total.hexdigest()


def loss_name(loss: Loss) -> str:
    """A loss's name: its own, or where it is defined."""
    if loss is None or isinstance(loss, str):
        return str(loss)
    return f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__qualname__)}"


def _pieces(part: Any) -> list[bytes]:
    if isinstance(part, nn.Module):
        return [piece for name, tensor in part.state_dict().items() for piece in (name.encode(), *_pieces(tensor))]
    if isinstance(part, Tensor) and part.layout is not torch.strided:
        entries = part.detach().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        return [b"sparse", str(tuple(part.shape)).encode(), *_pieces([entries.indices(), entries.values()])]
    if isinstance(part, Tensor):
        flat = part.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8) if flat.numel() else flat
        return [str((part.dtype, tuple(part.shape))).encode(), data.numpy().tobytes()]
    if isinstance(part, Batch):
        return _pieces(tree_flatten((part.inputs, part.targets))[0])
    if isinstance(part, Sequence) and not isinstance(part, (str, bytes)):
        return [piece for item in part for piece in _pieces(item)]
    return [repr(part).encode()]


def _to_json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _from_json(value: float | None) -> float:
    return math.inf if value is None else value
