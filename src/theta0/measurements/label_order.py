"""Whether batches come sorted by class: what the number of a batch says of its labels."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Integer
from torch import Tensor


def label_order(labels: Sequence[Integer[Tensor, " samples"]]) -> tuple[float, float]:
    """How much the batch that a sample is in says of its class, and how many classes a batch has on average.

    The mutual information of batch and class over the most that it could be, which is 0 where samples are shuffled (its
    bias in finite samples, (B - 1)(C - 1)/2N, is subtracted; Miller, 1955) and 1 where every class is in one batch.

    Args:
        labels: class numbers of each batch.

    Returns:
        The share, from 0 to 1, and the mean number of different labels in a batch.

    Example:
        >>> label_order([torch.zeros(8).long(), torch.ones(8).long()])[1]
        1.0
        >>> label_order([torch.tensor([0, 1] * 8)] * 3)[0]
        0.0
    """
    classes = torch.unique(torch.cat(list(labels)))
    counts = torch.stack([(part[:, None] == classes).sum(0) for part in labels]).double()
    joint = counts / counts.sum()
    entropies = [float(torch.special.entr(p).sum()) for p in (joint.sum(0), joint.sum(1), joint)]
    bias = (counts.shape[0] - 1) * (counts.shape[1] - 1) / (2 * float(counts.sum()))
    most = min(entropies[0], math.log(len(labels)))
    shared = entropies[0] + entropies[1] - entropies[2] - bias
    return (max(0.0, min(1.0, shared / most)) if most > 0 else 0.0), float((counts > 0).sum(1).double().mean())
