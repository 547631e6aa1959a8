"""Whether perturbed models use all classes, and whether their outputs depend on the input."""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def degenerate_loss(probabilities: Float[Tensor, "perturbations samples classes"]) -> Float[Tensor, ""]:
    r"""L_sd: how far perturbed models' outputs stay from the vertex that they avoid most (lee2023mmd, equation 14).

    The mean over perturbations of $\max(\max_i \overline{\|v^{(i)} - f(x)\|}, 1/\sqrt{d}) - 1/\sqrt{d}$, the bar a mean
    over the samples; at zero every perturbed model assigns some sample to every class (its theorem 2).

    With more than two classes it is no measure of balance: a network that answers 1/d for everything has
    √(1 - 1/d) - 1/√d, one that gives every class its share of samples, each with certainty, √2 (1 - 1/d) - 1/√d, which
    is more for d > 2 (0.63 and 0.96 for d = 10).

    Example:
        >>> degenerate_loss(torch.eye(2)[None]).item() == 0.0  # a mean distance of 1/√2 from each vertex
        True
    """
    count = probabilities.shape[-1]
    with torch.no_grad():
        squares = probabilities.square().sum(-1, keepdim=True) + 1 - 2 * probabilities
        furthest = squares.clamp_min_(0).sqrt_().mean(1).argmax(-1)
    vertices = F.one_hot(furthest, count).to(probabilities.dtype)[:, None, :]
    distance = torch.linalg.vector_norm(vertices - probabilities, dim=-1).mean(1)
    hinged: Tensor = (distance - 1 / math.sqrt(count)).clamp_min(0).mean()
    return hinged


def degenerate_share(probabilities: Float[Tensor, "perturbations samples classes"]) -> float:
    """The share of perturbed models that give some class no sample of the batch (lee2023mmd, table 3).

    It is 1 whenever the batch has fewer samples than there are classes.
    """
    count = probabilities.shape[-1]
    used = F.one_hot(probabilities.argmax(-1), count).amax(1).sum(-1)
    return float((used < count).double().mean())


def constant_share(probabilities: Float[Tensor, "perturbations samples classes"], tolerance: float = 0.01) -> float:
    """The share of perturbed models whose outputs do not depend on the input (lee2023mmd, equation 11).

    No class's probability differs by more than the tolerance between samples.
    """
    spread = (probabilities.amax(1) - probabilities.amin(1)).amax(-1)
    return float((spread <= tolerance).double().mean())


def starved_share(logits: Float[Tensor, "samples classes"], least: float = 1e-3) -> float:
    """The share of classes that one model's softmax gives to no sample: its support does not cover them.

    lee2023mmd, section 3.2 calls such a model degenerate. A class counts as not given below `least` of a fair share, 1
    over the number of classes.

    Example:
        >>> starved_share(torch.tensor([[0.0, 1.0, 20.0], [0.0, 3.0, 19.0]]))
        0.6666666666666666
    """
    return float(starved(logits, least))


def starved(logits: Float[Tensor, "samples classes"], least: float = 1e-3) -> Float[Tensor, ""]:
    """As `starved_share`, left on its device."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    likeliest = (logits - logits.logsumexp(-1, keepdim=True)).amax(0)
    return (likeliest < math.log(least / logits.shape[-1])).double().mean()
