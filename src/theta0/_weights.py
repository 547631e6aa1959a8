"""The weights that a model applies: matrices and kernels, without biases and the scales of normalisations."""

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrize import ParametrizationList

from theta0._models import unwrapped


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of at least two axes that a module holds as a parameter or makes by a parametrization, each once.

    A parametrized weight is the one that is applied, not the parameters behind it. Vectors (biases, the scales of
    normalisations) are no weights.

    Args:
        model: any module.

    Returns:
        The tensors by name, differentiable with respect to the parameters.

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


def assignable(module: nn.Module, attribute: str) -> bool:
    """Whether a weight can be given values: a parametrization without a right inverse, as an adapter's, refuses them.

    Returns:
        True for a plain weight.
    """
    if not parametrize.is_parametrized(module, attribute):
        return True
    entries: nn.ModuleDict = module.parametrizations  # type: ignore[assignment]
    chain: nn.ModuleList = entries[attribute]  # type: ignore[assignment]
    return all(hasattr(step, "right_inverse") for step in chain)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters over which curvature is taken: those that require a gradient, each once.

    Returns:
        At least one.

    Raises:
        ValueError: if there is none, or they are sharded.
    """
    for name, parameter in model.named_parameters():
        # By name: the class lives in a sub-package that not every build of torch has.
        kinds = {kind.__name__ for kind in type(parameter).__mro__} | {type(parameter.data).__name__}
        if kinds & {"DTensor", "FlatParameter"} or hasattr(parameter, "_sharded_size"):
            raise ValueError(
                f"{name}: expected a whole parameter, got one sharded over processes (FSDP); second derivatives need "
                "whole tensors: measure the module before it is wrapped, or gather its state into a plain copy"
            )
    found = [p for p in model.parameters() if p.requires_grad]
    if not found:
        raise ValueError(
            "model: expected a parameter that requires a gradient, got none; curvature is taken over the parameters "
            "that are trained, so unfreeze some with requires_grad_(True)"
        )
    return found
