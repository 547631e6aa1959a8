"""Gaussian noise on the parameters of a network: its deviations, and draws that do not depend on how work is split."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from theta0._models import outputs_of
from theta0._trace.calls import LinearCall, trace_calls

_MASK = 2**62


@dataclass(frozen=True, eq=False)
class Noise:
    """The perturbations ε₁ … ε_P of one pass.

    Attributes:
        deviations: σ by the identity of the parameter; parameters without one are not perturbed.
        generators: one a perturbation, so that a draw depends neither on the others nor on who draws them.
        drawn: whole draws made so far, by the identity of the parameter: every use of it sees the same one.
    """

    deviations: Mapping[int, float]
    generators: Sequence[torch.Generator]
    drawn: dict[int, Tensor] = field(default_factory=dict)


def noise_from(deviations: Mapping[int, float], seeds: Tensor) -> Noise:
    """Noise whose i-th perturbation is drawn from the i-th seed.

    Returns:
        The noise, nothing drawn yet.
    """
    return Noise(deviations, [torch.Generator().manual_seed(seed) for seed in seeds.tolist()])


def perturbation_seeds(count: int, generator: torch.Generator) -> Tensor:
    """A seed for each perturbation.

    Returns:
        int64 numbers.
    """
    return torch.randint(_MASK, (count,), generator=generator)


def normal(noise: Noise, shape: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers of a shape for each perturbation, drawn on the CPU in float32 at least.

    Returns:
        A tensor perturbations × shape on the device and in the dtype of `like`.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    numbers = torch.empty(len(noise.generators), *shape, dtype=dtype)
    for part, generator in zip(numbers, noise.generators, strict=True):
        part.normal_(generator=generator)
    return numbers.to(like)


def draw(noise: Noise, parameter: Tensor) -> Tensor:
    """ε of a parameter, one draw for all its uses.

    Returns:
        A tensor perturbations × shape.
    """
    key = id(parameter)
    if key not in noise.drawn:
        noise.drawn[key] = normal(noise, parameter.shape, parameter.detach()) * noise.deviations[key]
    return noise.drawn[key]


def deviations_of(model: nn.Module, inputs: object, scale: float) -> dict[int, float]:
    r"""σ of every trained parameter: scale / √fan-in for weights, scale / √fan-out for biases (lee2023mmd, §3.3).

    The source defines both for fully connected layers. Here a convolution's fan-in is that of its kernel; an embedding,
    which looks one row up, has its width instead; a vector (bias, gain and shift of a normalisation) has its length;
    of any other parameter the last axis counts. Frozen parameters are not perturbed.

    Args:
        model: run once, as the caller has prepared it, to see which function applies which weight.
        inputs: what it is run on.
        scale: s.

    Returns:
        σ by the identity of the parameter, for those that require a gradient.
    """
    fans: dict[str, int] = {}

    def observe(call: LinearCall) -> None:
        for name in call.owner.parameters:
            fans.setdefault(name, _fan(call, parameters[name]))

    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad(), trace_calls(model, observe):
        outputs_of(model, inputs)
    found: dict[int, float] = {}
    for name, parameter in parameters.items():
        if parameter.requires_grad and (id(parameter) not in found or name in fans):
            fan = fans.get(name, parameter.shape[-1] if parameter.dim() else 1)
            found[id(parameter)] = scale / math.sqrt(max(fan, 1))
    return found


def _fan(call: LinearCall, parameter: Tensor) -> int:
    if parameter.dim() < 2:
        return parameter.numel()
    if call.kind == "embedding":
        return parameter.shape[-1]
    if call.kind == "matmul":
        return parameter.shape[0]
    if call.kind == "conv_transpose":  # its weight is in × (out / groups) × kernel
        groups = int(getattr(call.owner.module, "groups", 1))
        return parameter.shape[0] // groups * math.prod(parameter.shape[2:])
    return parameter.numel() // parameter.shape[0]
