"""One step's loss: uniformity of the perturbed models' outputs, degenerate softmax, input-output detachment."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from theta0._randomness import streams
from theta0._ranks import from_first, gathered, ranks, share, summed
from theta0.measurements.degeneracy import degenerate_loss
from theta0.measurements.output_jacobian import detachment_loss
from theta0.measurements.perturbation_noise import perturbation_seeds
from theta0.measurements.perturbed_outputs import Neighbourhood, PerturbedOutputs, sampled
from theta0.measurements.simplex_discrepancy import discrepancy, uniform_simplex


@dataclass(frozen=True)
class Weights:
    """How the terms add up (lee2023mmd, equation 23).

    Attributes:
        uniformity: of L_uni.
        degenerate: λ, of L_sd.
        detachment: ξ, of L_iod.
    """

    uniformity: float
    degenerate: float
    detachment: float


@dataclass(frozen=True, eq=False)
class Terms:
    """The loss on one batch.

    Attributes:
        loss: the weighted sum; on several ranks the derivatives of all of them sum to the whole one.
        uniformity: L_uni (equations 9 and 10).
        degenerate: L_sd (equation 14).
        detachment: L_iod (equation 22).
        outputs: the perturbed outputs of this rank's share.
    """

    loss: Tensor
    uniformity: Tensor
    degenerate: Tensor
    detachment: Tensor
    outputs: PerturbedOutputs


def mmd_terms(
    around: Neighbourhood, inputs: Any, weights: Weights, seed: int, *, perturbations: int, memory: int
) -> Terms:
    """The loss of lee2023mmd, equation 23, on one batch.

    Perturbations are split over the ranks of a process group, which must be given the same inputs.

    Args:
        around: the perturbed model.
        inputs: a batch, at least two samples.
        weights: of the terms.
        seed: of the perturbations, the uniform points and, beyond ten, the classes; equal on all ranks.
        perturbations: how many, and how many uniform points a sample.
        memory: as in `perturbed_outputs`.

    Returns:
        The terms.
    """
    stream = streams(seed)
    seeds = share(perturbation_seeds(perturbations, stream("perturbations")))
    outputs = sampled(around, inputs, seeds, memory=memory)
    logits = gathered(outputs.logits, perturbations)
    probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    samples, classes = probabilities.shape[1:]
    uniform = uniform_simplex(samples, perturbations, classes, stream("simplex"), probabilities.dtype)
    uniformity = discrepancy(probabilities.transpose(0, 1), uniform).mean()
    degenerate = degenerate_loss(probabilities)
    if weights.detachment:
        detachment = detachment_loss(around.model, inputs, generator=stream("classes"))
    else:
        detachment = torch.zeros_like(uniformity)
    once = detachment / ranks()  # every rank computes it, and derivatives are summed
    once = once + (detachment - once).detach()
    loss = weights.uniformity * uniformity + weights.degenerate * degenerate + weights.detachment * once
    return Terms(loss, uniformity.detach(), degenerate.detach(), detachment.detach(), outputs)


def same_everywhere(inputs: Any, number: int) -> None:
    """Check that all ranks were given the same batch.

    Args:
        inputs: the batch.
        number: of the batch, for the message.

    Raises:
        ValueError: if they were not.
    """
    if ranks() == 1:
        return
    leaves = [leaf.detach().double().flatten() for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    total = float(sum((leaf * torch.linspace(1, 2, len(leaf)).to(leaf)).sum() for leaf in leaves))
    if float(summed(torch.tensor(float(total != from_first(total))))) > 0:  # so that no rank goes on alone
        raise ValueError(
            f"batch {number}: expected the same batch on every rank, since perturbations are split and not samples, "
            "got different ones; pass the same data everywhere (no DistributedSampler)"
        )
