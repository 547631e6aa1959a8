"""How remedies write: all or nothing, through parametrizations, each tensor once, half precision drawn in float32."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Report = Callable[[Mapping[str, str]], None]


class InapplicableError(ValueError):
    """A model has nothing of the kind that a remedy mends."""


def written(module: nn.Module, attribute: str, value: Tensor) -> None:
    """Give a weight a value: in place, or through its parametrization, and see that it has it.

    Args:
        module: the weight's owner.
        attribute: its name there.
        value: of the weight's shape, of any floating type.

    Raises:
        ValueError: if the weight is computed by something that does not follow an assignment.
    """
    with torch.no_grad():
        if attribute in module._parameters:
            getattr(module, attribute).data.copy_(value)
            return
        if not parametrize.is_parametrized(module, attribute):
            raise ValueError("computed by a hook before each forward pass")
        try:
            setattr(module, attribute, value.to(getattr(module, attribute)))
        except RuntimeError as error:  # torch's answer where a parametrization, as most adapters, has no right inverse
            raise ValueError(f"its parametrization cannot be assigned to: {error}") from error
        reached = getattr(module, attribute)
        tolerance = 1e-4 * float(value.abs().max())
        if not torch.allclose(reached, value.to(reached), rtol=0.01, atol=tolerance):
            raise ValueError("its parametrization does not follow an assignment")


def scaled_in_place(module: nn.Module, attribute: str, factor: float) -> None:
    """Multiply a weight, wherever its values are kept."""
    written(module, attribute, getattr(module, attribute).detach() * factor)


def uniform(shape: torch.Size, bound: float, generator: torch.Generator) -> Tensor:
    """Draw in float32 from U(-bound, bound), on the CPU.

    Returns:
        The values.
    """
    return torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)


def normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    """Draw in float32 from N(0, std²), on the CPU.

    Returns:
        The values.
    """
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)


def owned(model: nn.Module) -> dict[str, tuple[nn.Module, str, nn.Parameter]]:
    """Each tensor once, under its first name: owner, name there, parameter.

    Returns:
        By full name, trained parameters only.
    """
    found: dict[str, tuple[nn.Module, str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        path, _, attribute = name.rpartition(".")
        if parameter.requires_grad:
            found[name] = (model.get_submodule(path), attribute, parameter)
    return found
