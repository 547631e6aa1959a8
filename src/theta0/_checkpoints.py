"""A starting point in a file: safetensors with metadata, plain keys, nothing unpickled."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from theta0._state import preserve_state
from theta0._version import __version__

_FORMAT = "theta0 start"


def write_start(path: str | Path, model: nn.Module, metadata: Mapping[str, str]) -> Path:
    """Write every parameter and buffer of a model, parametrized ones as the plain weight that they compute.

    A tensor that stands under several names is written once; the metadata key `aliases` names the others. The file's
    folder is made; metadata is text by name (method, seed …).
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, tensor in plain_tensors(model).items():
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
            continue
        first[id(tensor)] = name
        tensors[name] = tensor
    return write_tensors(path, tensors, {"aliases": json.dumps(aliases), **metadata})


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Path:
    """Write tensors, none of them under two names, and metadata, text by name; the file's folder is made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(plain, path, metadata={"format": _FORMAT, "version": __version__, **metadata})
    return path


def read_start(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file that `write_start` wrote."""
    tensors, metadata = read_tensors(path)
    for name, source in json.loads(metadata.get("aliases", "{}")).items():
        tensors[name] = tensors[source]
    return tensors, metadata


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a file that `write_tensors` wrote; others are refused."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: expected a safetensors file written by theta0, got {error}") from error
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"{path}: expected a starting point written by theta0, got safetensors without its metadata")
    return tensors, metadata


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers under the keys that the model has without its parametrizations, as computed."""
    found: dict[str, Tensor] = {}
    computed: dict[str, Tensor] = {}
    with preserve_state(model), torch.no_grad():
        for path, module in model.named_modules():
            if parametrize.is_parametrized(module):
                for part in module.parametrizations.modules():
                    part.training = False  # spectral norm moves with every reading while it trains
                for name in module.parametrizations:
                    computed[f"{path}.{name}".lstrip(".")] = getattr(module, str(name)).detach()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and "parametrizations." not in name:
            found[name] = tensor
    return found | computed
