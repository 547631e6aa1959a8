"""A start in a few kilobytes: the factors that turn what a seed draws into the start that a search found."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from theta0._batches import initialised
from theta0._version import __version__
from theta0.initializers.scale_search import ScaleSearch, scale_parameters

_FORMAT = "theta0 recipe"
_TOLERANCE = 1e-4  # of a tensor's norm: other versions of torch may draw and round a little differently


@dataclass(frozen=True)
class Recipe:
    """Factors of a start's tensors, and the marks by which the start that they belong to is known.

    Attributes:
        method: what found them.
        scales: factors by parameter name.
        marks: by name, two numbers that the tensor has before it is scaled: its norm, and its product with a fixed
            vector.
        notes: anything else worth keeping, for example the seed that drew the start.
    """

    method: str
    scales: dict[str, float]
    marks: dict[str, tuple[float, float]]
    notes: dict[str, str]


def recipe_of(model: nn.Module, search: ScaleSearch, *, notes: Mapping[str, str] | None = None) -> Recipe:
    """The recipe of a start that a search has just made.

    Args:
        model: the network, at the scaled start.
        search: what the search reported.
        notes: what to keep beside it.

    Returns:
        The recipe; its marks are those of the start before it was scaled.

    Raises:
        ValueError: if the search changed nothing.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> model[0].weight.data *= 8
        >>> start = {name: value.clone() for name, value in model.state_dict().items()}
        >>> from theta0.initializers import initialize
        >>> search = initialize("nio", model, batches, "cross_entropy", steps=20)
        >>> recipe = recipe_of(model, search, notes={"seed": "0"})
        >>> recipe.method, sorted(recipe.scales)
        ('nio', ['0.bias', '0.weight', '2.bias', '2.weight'])
    """
    if not search.kept:
        raise ValueError(f"search: expected one that changed the start, got one that did not: {search.reason}")
    parameters = dict(initialised(model).named_parameters())
    marks = {name: _mark(parameters[name].detach().double() / scale) for name, scale in search.scales.items()}
    return Recipe(search.method, dict(search.scales), marks, dict(notes or {}))


def save_recipe(recipe: Recipe, path: str | Path) -> Path:
    """Write a recipe as JSON.

    Args:
        recipe: the recipe.
        path: the file; its folder is made.

    Returns:
        The path.

    Example:
        >>> import pathlib, tempfile
        >>> recipe = Recipe("nio", {"weight": 2.0}, {"weight": (1.0, 0.5)}, {"seed": "0"})
        >>> path = save_recipe(recipe, pathlib.Path(tempfile.mkdtemp()) / "recipe.json")
        >>> load_recipe(path) == recipe
        True
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: {"scale": scale, "mark": recipe.marks[name]} for name, scale in recipe.scales.items()}
    header = {"format": _FORMAT, "version": __version__, "method": recipe.method, "notes": recipe.notes}
    path.write_text(json.dumps({**header, "tensors": tensors}, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe.

    Returns:
        The recipe.

    Raises:
        ValueError: if the file is missing, or no recipe.

    Example:
        >>> import pathlib, tempfile
        >>> recipe = Recipe("nio", {"weight": 2.0}, {"weight": (1.0, 0.5)}, {"seed": "0"})
        >>> path = save_recipe(recipe, pathlib.Path(tempfile.mkdtemp()) / "recipe.json")
        >>> load_recipe(path) == recipe
        True
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise ValueError(f"format {found['format']!r}")
        tensors = found["tensors"]
        scales = {name: float(entry["scale"]) for name, entry in tensors.items()}
        marks = {name: (float(entry["mark"][0]), float(entry["mark"][1])) for name, entry in tensors.items()}
        if not all(math.isfinite(scale) and scale > 0 for scale in scales.values()):
            raise ValueError("scales that are not positive and finite")
        return Recipe(str(found["method"]), scales, marks, dict(found["notes"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: expected a recipe written by theta0's save_recipe, got {error!r}") from error


def apply_recipe_(model: nn.Module, recipe: Recipe) -> nn.Module:
    """Turn the start that a recipe was made from into the one that it leads to.

    Args:
        model: at that start, drawn again from its seed; changed in place.
        recipe: the recipe.

    Returns:
        The model.

    Raises:
        ValueError: if the model has other tensors, or stands at another start; it is then as it was.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> model[0].weight.data *= 8
        >>> start = {name: value.clone() for name, value in model.state_dict().items()}
        >>> from theta0.initializers import initialize
        >>> search = initialize("nio", model, batches, "cross_entropy", steps=20)
        >>> recipe = recipe_of(model, search)
        >>> found = model[0].weight.clone()
        >>> _ = model.load_state_dict(start)
        >>> torch.allclose(apply_recipe_(model, recipe)[0].weight, found)
        True
    """
    inner = initialised(model)
    parameters = dict(inner.named_parameters())
    unknown = sorted(recipe.scales.keys() - parameters.keys())
    if unknown:
        raise ValueError(
            f"recipe: expected a model with the tensors {unknown[:3]}, got one without; build it as the recipe's was"
        )
    for name, (norm, product) in recipe.marks.items():
        found = _mark(parameters[name].detach().double())
        if max(abs(found[0] - norm), abs(found[1] - product)) > _TOLERANCE * norm:
            raise ValueError(
                f"recipe: expected {name} at the start that was scaled (norm {norm:.6g}, product {product:.6g}), got "
                f"another (norm {found[0]:.6g}, product {found[1]:.6g}); build the model from the same seed, and apply "
                "the recipe once, before training"
            )
    scale_parameters(inner, recipe.scales)
    return model


def _mark(values: Tensor) -> tuple[float, float]:
    """The norm, and the product with a fixed vector of like length."""
    flat = values.flatten()
    fixed = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device).add_(1).cos_()
    return float(flat.norm()), float((flat * fixed).sum() / math.sqrt(max(1, flat.numel()) / 2))
