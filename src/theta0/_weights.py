"""A model's weights: found, asked about (trained, tied, assignable), and given values through parametrizations too."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from theta0._models import require_whole, unwrapped


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of at least two axes that a module holds as a parameter or makes by a parametrization, each once.

    A parametrized weight is the one that is applied, not the parameters behind it. Vectors (biases, the scales of
    normalisations) are no weights. They are differentiable with respect to the parameters.

    Raises:
        ValueError: there is none, one is lazy, or one is made by torch's old hooks.
    """
    found: dict[str, Tensor] = {}
    for path, module in unwrapped(model).named_modules():
        if isinstance(module, ParametrizationList):
            continue
        held = [name for name, _ in module.named_parameters(recurse=False)]
        made = list(module.parametrizations) if parametrize.is_parametrized(module) else []
        for name in [*held, *made]:
            value: Tensor = getattr(module, str(name))
            full = f"{path}.{name}" if path else str(name)
            if is_lazy(value):
                raise ValueError(f"{full}: expected a weight with values, got a lazy one; run one forward pass first")
            if name.endswith(("_g", "_v", "_orig")) and hasattr(module, name.rsplit("_", 1)[0]):
                raise ValueError(
                    f"{full}: expected a plain or parametrized weight, got one made by an old hook; use "
                    "torch.nn.utils.parametrizations.weight_norm or .spectral_norm"
                )
            if value.dim() > 1 and not any(value is other for other in found.values()):
                found[full] = value
    if not found:
        raise ValueError("model: expected a weight (a parameter of at least two axes), got none")
    return found


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require a gradient, each once; refused if there is none, or they are sharded or complex."""
    require_whole(model)
    found = [p for p in model.parameters() if p.requires_grad]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise ValueError(
                f"{name}: expected real parameters, got {str(parameter.dtype).removeprefix('torch.')} ones, for which "
                "this is not defined; hold their real and imaginary parts in a real parameter (torch.view_as_real)"
            )
    if not found:
        raise ValueError(
            "model: expected a parameter that requires a gradient, got none; curvature is taken over the parameters "
            "that are trained, so unfreeze some with requires_grad_(True)"
        )
    return found


def trained_tensors(model: nn.Module) -> dict[str, tuple[nn.Module, str, nn.Parameter]]:
    """Every trained parameter once, under its first name: the module that holds it, its name there, the parameter."""
    found: dict[str, tuple[nn.Module, str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        path, _, attribute = name.rpartition(".")
        if parameter.requires_grad:
            found[name] = (model.get_submodule(path), attribute, parameter)
    return found


def tied_parameters(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Parameters that stand under several names: for each such name, all the names of its tensor."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}


def assignable(module: nn.Module, attribute: str) -> bool:
    """Whether a weight can be given values: a parametrization without a right inverse, as an adapter's, refuses them.

    A weight that a hook computes cannot either.
    """
    if not parametrize.is_parametrized(module, attribute):
        return attribute in module._parameters
    entries: nn.ModuleDict = module.parametrizations  # type: ignore[assignment]
    chain: nn.ModuleList = entries[attribute]  # type: ignore[assignment]
    return all(hasattr(step, "right_inverse") for step in chain)


def assign_weight(module: nn.Module, attribute: str, value: Tensor, *, exact: bool = True) -> None:
    """Give a weight a value: in place, or through its parametrization, and see that it has it.

    Where not `exact`, a constraint may take what is near to the value.

    Raises:
        ValueError: if the weight is computed by something that does not follow an assignment.
    """
    with torch.no_grad():
        if attribute in module._parameters:
            getattr(module, attribute).data.copy_(value)
            return
        if not parametrize.is_parametrized(module, attribute):
            raise ValueError("computed by a hook before each forward pass")
        made: Any = module.parametrizations[attribute]  # type: ignore[index]
        try:
            with original_kept(made):
                setattr(module, attribute, value.to(getattr(module, attribute)))
        except RuntimeError as error:  # torch's answer where a parametrization, as most adapters, has no right inverse
            raise ValueError(f"its parametrization cannot be assigned to: {error}") from error
        if exact and not has_value(getattr(module, attribute), value):
            raise ValueError("its parametrization does not follow an assignment")


@contextmanager
def original_kept(made: Any) -> Iterator[None]:
    """Within the block torch points a parametrization's `Parameter` elsewhere (`Tensor.set_`); here at a stand-in.

    It would drop the gradient accumulator, and what listens there, as `DistributedDataParallel` does. The value is
    written into the `Parameter` afterwards; one of another shape is left to torch.
    """
    own = made._parameters.get("original")
    if own is None:
        yield
        return
    stand_in = made._parameters["original"] = nn.Parameter(own.detach().clone(), own.requires_grad)
    try:
        yield
    finally:
        if stand_in.shape == own.shape:
            own.data.copy_(stand_in.data)
        else:
            own.set_(stand_in.data)
        made._parameters["original"] = own


def scale_weight(module: nn.Module, attribute: str, factor: float | Tensor, *, part: Tensor | None = None) -> None:
    """Multiply a weight, or a part (a view) of it, where it is kept: in place, or through its parametrization."""
    with torch.no_grad():
        if part is not None and not parametrize.is_parametrized(module, attribute):
            part.data.mul_(factor)
            return
        scaled = getattr(module, attribute).detach().clone()
        place = scaled if part is None else part
        scaled.as_strided(place.size(), place.stride(), place.storage_offset()).mul_(factor)
        assign_weight(module, attribute, scaled)


def has_value(weight: Tensor, value: Tensor) -> bool:
    """Whether a weight has the value that it was given, but for rounding; assignments can be lost without an error.

    Equal is: within 1 % of each entry and 1e-4 of the largest, or two roundings of the number format.
    """
    rounding = 2 * torch.finfo(weight.dtype).eps
    given, largest = value.to(weight), float(value.abs().max())
    return torch.allclose(weight.detach(), given, rtol=max(0.01, rounding), atol=max(1e-4, rounding) * largest)


def put_values(tensors: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Write values into tensors, in place and unseen by autograd."""
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data.copy_(value)
