"""Save a starting point and bring it back, with the constraint that it needs."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from theta0._batches import initialised
from theta0._checkpoints import plain_tensors, read_start, write_start
from theta0._state import transaction
from theta0._weights import assign_weight, has_value
from theta0.parametrizations.linearly_constrained import is_linearly_constrained, linearly_constrained


def save_start(model: nn.Module, path: str | Path, *, method: str = "") -> Path:
    """Write a starting point: plain keys and values, and which weights are linearly constrained.

    Args:
        model: the model, left as it is.
        path: a `.safetensors` file.
        method: the remedy that made it, for the metadata.

    Returns:
        The path.

    Example:
        >>> import pathlib, tempfile, torch
        >>> model = torch.nn.Linear(4, 2)
        >>> path = save_start(model, pathlib.Path(tempfile.mkdtemp()) / "start.safetensors")
        >>> path.name
        'start.safetensors'
    """
    inner = initialised(model)
    constrained = [
        path_ if name == "weight" else f"{path_}:{name}"
        for path_, module in inner.named_modules()
        for name in getattr(module, "parametrizations", ())
        if is_linearly_constrained(module, name)
    ]
    return write_start(path, inner, {"method": method, "lcw": json.dumps(constrained)})


def load_start_(model: nn.Module, path: str | Path) -> nn.Module:
    """Give a model the starting point in a file, and constrain the weights that were constrained in it.

    A zero-sum start trains worse without its constraint, so the constraint is part of the start.

    Args:
        model: of the architecture that was saved; changed in place.
        path: a file written by `save_start` or by `theta0 treat --out`.

    Returns:
        The model.

    Raises:
        ValueError: if the file is no starting point, or names and shapes differ; the model is then as it was.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from theta0 import save_start
        >>> first, second = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
        >>> path = save_start(first, pathlib.Path(tempfile.mkdtemp()) / "start.safetensors")
        >>> torch.equal(load_start_(second, path).weight, first.weight)
        True
    """
    inner = initialised(model)
    tensors, metadata = read_start(path)
    own = plain_tensors(inner)
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    wrong = sorted(name for name in own.keys() & tensors.keys() if own[name].shape != tensors[name].shape)
    if missing or extra or wrong:
        raise ValueError(
            f"{path}: expected the tensors of this model; missing {missing[:3]}, unknown {extra[:3]}, "
            f"of another shape {wrong[:3]}; build the model as it was when the start was saved"
        )
    with transaction(inner):
        _fill(inner, tensors, json.loads(metadata["lcw"]))
    return model


def _fill(model: nn.Module, tensors: Mapping[str, Tensor], constrained: Sequence[str]) -> None:
    for entry in constrained:
        path, _, other = entry.partition(":")
        module, weight = model.get_submodule(path), other or "weight"
        if not is_linearly_constrained(module, weight):
            linearly_constrained(module, weight)
    written: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, value in tensors.items():
            owner, _, attribute = name.rpartition(".")
            module = model.get_submodule(owner)
            if attribute in module._parameters or attribute in module._buffers:
                getattr(module, attribute).copy_(value)
            else:
                with suppress(ValueError):  # of a parametrization without a right inverse; reported below
                    assign_weight(module, attribute, value, exact=False)
                written[name] = value
    reached = plain_tensors(model) if written else {}
    for name, value in written.items():  # torch loses an assignment that a parametrization does not follow
        if not has_value(reached[name], value):
            raise ValueError(
                f"{name}: expected a weight that can be given values, but its parametrization does not follow an "
                "assignment; build the model without it, load the start, and parametrize the layer again"
            )
