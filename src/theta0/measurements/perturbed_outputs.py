"""What a network puts out when its parameters are perturbed: f_{θ+ε}(x) for many ε, each shared by the whole batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from theta0._models import called, main_output, outputs_of, outputs_with
from theta0._randomness import Randomness, streams
from theta0._state import steady, twice_differentiable
from theta0.measurements.perturbation_noise import Noise, deviations_of, draw, noise_from, perturbation_seeds
from theta0.measurements.perturbed_calls import PerturbedCalls, Preference
from theta0.measurements.perturbed_layers import Rows, UnsupportedCall, rows_of, split_axis

MEMORY = 2**30
_PROBES = 3  # perturbations on which the one-pass route is compared with a pass for each
_REPETITIONS = (2, 3)  # of the batch: what grows from one to the other is an axis over samples


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """How the parameters around a model's are sampled.

    Attributes:
        model: the model.
        deviations: σ by the identity of the parameter.
        names: names of these.
        reused: parameters that enter several calls, which need one explicit draw.
        obstacle: why the perturbations cannot share one pass; None where they can.
        layouts: where each call's tensors hold the samples.
        bytes: what one perturbation of one sample keeps for the backward pass, about.
        weight_bytes: what one perturbation's explicit draws take, about.
    """

    model: nn.Module
    deviations: Mapping[int, float]
    names: Mapping[int, str]
    reused: frozenset[int]
    obstacle: str | None
    layouts: Sequence[Sequence[Rows]]
    bytes: float
    weight_bytes: float


@dataclass(frozen=True, eq=False)
class PerturbedOutputs:
    """The logits of perturbed models.

    Attributes:
        logits: perturbations × samples × classes, differentiable in the trained parameters.
        routes: by parameter: "gram" (its noise enters through the outputs' covariance), "explicit" (drawn, inside one
            pass over all perturbations), "pass" (drawn, one pass for each perturbation).
        chunks: into how many parts the perturbations were split to bound memory; with more than one, each is computed
            a second time in the backward pass.
    """

    logits: Float[Tensor, "perturbations samples classes"]
    routes: Mapping[str, str]
    chunks: int


def perturbed_outputs(
    model: nn.Module,
    inputs: Any,
    *,
    perturbations: int = 256,
    scale: float = math.sqrt(0.5),
    generator: Randomness = None,
    memory: int = MEMORY,
    prefer: Preference = "counted",
) -> PerturbedOutputs:
    r"""The logits of θ + ε_1 … θ + ε_P on one batch, ε Gaussian around the model's parameters θ.

    σ = scale / √fan-in for weights and scale / √fan-out for biases (lee2023mmd, section 3.3; other parameters:
    `deviations_of`). Every sample of the batch sees the same ε. The model is left bit-identical; dropout is off; batch
    normalisation in training mode takes each perturbation's own batch statistics.

    Args:
        model: any module; its samples lie along the first axis of the inputs.
        inputs: as the model takes them (a tensor, a mapping, a sequence), without targets.
        perturbations: P.
        scale: s; zero gives the model's own outputs.
        generator: a seed, a generator or None; ε_p depends on it and p alone.
        memory: bytes that may be kept for the backward pass, about; what exceeds them is recomputed there.
        prefer: "counted" takes the cheaper route for each call, "gram" or "explicit" forces one where it is open.

    Returns:
        The logits and how they were found.

    Raises:
        ValueError: if the output is not one row of at least two logits a sample, or not finite.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> found = perturbed_outputs(model, batches[0][0], perturbations=5, scale=0.0)
        >>> found.logits.shape
        torch.Size([5, 32, 3])
    """
    seeds = perturbation_seeds(perturbations, streams(generator)("perturbations"))
    with twice_differentiable(model):
        found = neighbourhood(model, inputs, scale)
        return sampled(found, inputs, seeds, memory=memory, prefer=prefer)


def neighbourhood(model: nn.Module, inputs: Any, scale: float) -> Neighbourhood:
    """Find each parameter's deviation, and whether perturbations can share one pass.

    They can if the outputs of three perturbations in one pass are those of three passes of the perturbed model. The
    caller has prepared the model (dropout off); what a pass keeps is measured on this batch.
    """
    samples = samples_of(inputs)
    with steady(model):
        deviations = deviations_of(model, inputs, scale)
    names = {id(p): name for name, p in reversed(list(model.named_parameters())) if id(p) in deviations}
    noise = noise_from(deviations, perturbation_seeds(_PROBES, torch.Generator().manual_seed(0)))
    calls = PerturbedCalls(noise, names, samples, prefer="explicit", reused=frozenset())
    obstacle = _obstacle(model, inputs, calls)
    reused = frozenset(key for key, count in calls.uses.items() if count > 1)
    weights = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) in deviations)
    kept = calls.bytes / (_PROBES * samples)
    return Neighbourhood(model, deviations, names, reused, obstacle, calls.layouts or (), kept, 2.0 * weights)


def sampled(
    around: Neighbourhood,
    inputs: Any,
    seeds: Int64[Tensor, " perturbations"],
    *,
    memory: int = MEMORY,
    prefer: Preference = "counted",
) -> PerturbedOutputs:
    """The logits of the perturbations that the seeds stand for."""
    samples = samples_of(inputs)
    each = around.bytes * samples + around.weight_bytes * (around.obstacle is not None or prefer == "explicit")
    size = max(1, min(len(seeds), int(memory / max(each, 1.0))))
    parts = torch.split(seeds, size)
    try:
        logits, routes = _by_parts(around, inputs, parts, prefer)
    except UnsupportedCall as error:  # this batch is laid out in another way than the one that was looked at
        around = replace(around, obstacle=str(error))
        logits, routes = _by_parts(around, inputs, parts, prefer)
    return PerturbedOutputs(logits_of(logits), routes, len(parts))


def _by_parts(
    around: Neighbourhood, inputs: Any, parts: Sequence[Tensor], prefer: Preference
) -> tuple[Tensor, dict[str, str]]:
    """The outputs, and the routes taken; all parts take the same ones, since draws depend on them."""
    routes: dict[str, str] = {}

    def part(chosen: Tensor) -> Tensor:
        noise = noise_from(around.deviations, chosen)
        with steady(around.model):
            if around.obstacle is not None:
                routes.update(dict.fromkeys(around.names.values(), "pass"))
                return _passes(around.model, inputs, noise, around.names)
            samples, layouts = samples_of(inputs), around.layouts
            calls = PerturbedCalls(noise, around.names, samples, prefer=prefer, reused=around.reused, layouts=layouts)
            result = _one_pass(around.model, inputs, calls)
            routes.update(calls.routes)
            return result

    if len(parts) == 1 or not torch.is_grad_enabled():
        outputs = [part(chosen) for chosen in parts]
    else:
        outputs = [checkpoint(part, chosen, use_reentrant=False, preserve_rng_state=False) for chosen in parts]
    return torch.cat(outputs), dict(routes)


def samples_of(inputs: Any) -> int:
    """How many samples a batch has."""
    leaves = torch.utils._pytree.tree_leaves(inputs)
    return next(leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0)


def logits_of(outputs: Tensor) -> Float[Tensor, "perturbations samples classes"]:
    """The outputs of perturbed models, if they are rows of at least two finite logits."""
    if outputs.dim() != 3 or outputs.shape[-1] < 2 or not outputs.is_floating_point():
        raise ValueError(
            f"model: expected outputs of samples × classes, at least two logits a sample, got {outputs.dtype} of "
            f"shape {tuple(outputs.shape[1:])}; for a single logit let the model return (0, logit)"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise ValueError(
            "model: expected finite logits of the perturbed models, got NaN or infinite ones; look for exploding "
            "activations with theta0.diagnose, or lower the scale of the perturbation"
        )
    return outputs


def _obstacle(model: nn.Module, inputs: Any, calls: PerturbedCalls) -> str | None:
    """Why one pass does not do what separate passes do, outputs and derivatives; None where it does."""
    trained = [p for p in model.parameters() if id(p) in calls.names]
    _require_no_checkpoints(model, inputs)
    with torch.enable_grad(), steady(model):
        apart = _with_derivatives(_passes(model, inputs, calls.noise, calls.names), trained)
    logits_of(apart[0])
    try:
        calls.layouts = _layouts(model, inputs, calls)
        with torch.enable_grad(), steady(model):
            together = _with_derivatives(_one_pass(model, inputs, calls), trained)
    except (UnsupportedCall, RuntimeError, ValueError, IndexError) as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    if all(_alike(one, other) for one, other in zip(together, apart, strict=True)):
        return None
    return "one pass over a repeated batch does not give what separate passes give: its samples meet"


def _layouts(model: nn.Module, inputs: Any, calls: PerturbedCalls) -> list[list[Rows]]:
    shapes = []
    for count in _REPETITIONS:
        noise = noise_from(calls.noise.deviations, torch.arange(count))
        dry = PerturbedCalls(noise, calls.names, calls.samples, prefer=calls.prefer, reused=calls.reused)
        with torch.enable_grad(), steady(model), dry.perturbed():  # as later: some layers call others without gradients
            called(model, dry.inputs(inputs))
        shapes.append(dry.shapes)
    return rows_of(shapes, _REPETITIONS, calls.samples)


def _with_derivatives(outputs: Tensor, trained: list[nn.Parameter]) -> list[Tensor]:
    weights = torch.linspace(0.5, 1.5, outputs.numel(), dtype=outputs.dtype, device=outputs.device)
    found = torch.autograd.grad(outputs.flatten() @ weights, trained, allow_unused=True, materialize_grads=True)
    # All derivatives as one: those of a bias before a batch normalisation are rounding errors alone.
    return [outputs.detach(), torch.cat([gradient.flatten() for gradient in found])]


def _require_no_checkpoints(model: nn.Module, inputs: Any) -> None:
    """A block that is checkpointed otherwise than by torch is recomputed with the unperturbed parameters."""
    said = "activation checkpointing"
    try:
        with torch.enable_grad(), steady(model), torch.autograd.graph.disable_saved_tensors_hooks(said):
            outputs_of(model, inputs)
    except RuntimeError as error:
        if said in str(error):
            raise ValueError(
                "model: expected one whose backward pass uses what its forward pass kept, got activation "
                "checkpointing, which recomputes without the perturbation; switch it off for this"
            ) from error
        raise


def _one_pass(model: nn.Module, inputs: Any, calls: PerturbedCalls) -> Tensor:
    with calls.perturbed():
        outputs = main_output(called(model, calls.inputs(inputs)))
    return split_axis(_rows(outputs), 0, calls.count)


def _passes(model: nn.Module, inputs: Any, noise: Noise, names: Mapping[int, str]) -> Tensor:
    parameters = {name: p for name, p in model.named_parameters() if id(p) in names}
    draws = {name: draw(noise, p) for name, p in parameters.items()}
    found = []
    for number in range(len(noise.generators)):
        moved = {name: p + draws[name][number] for name, p in parameters.items()}
        with steady(model):  # some buffers move at every pass
            found.append(_rows(main_output(outputs_with(model, moved, inputs))))
    return torch.stack(found)


def _rows(outputs: Tensor | None) -> Tensor:
    if outputs is None or outputs.dim() == 0:
        got = "no floating tensor" if outputs is None else "a single number"
        raise ValueError(f"model: expected outputs of samples × classes, got {got}; pass a classifier")
    return outputs


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    tolerance = {torch.float64: 1e-8, torch.float32: 1e-3}.get(one.dtype, 0.05)
    largest = float(other.abs().max())
    return float((one - other).abs().max()) <= tolerance * largest or not math.isfinite(largest)
