"""What a search for scales is for, how it is made, and what it did."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from theta0._batches import Batch
from theta0.initializers.scaled_network import ScaledNetwork


class NothingBetterError(ValueError):
    """A search found no start that is better; the model is as it was."""


@dataclass(frozen=True)
class Quality:
    """How good a start is.

    Attributes:
        objective: what was searched for, as the result's `objective` names it.
        gradient_norm: what the cap bounds.
    """

    objective: float
    gradient_norm: float


@dataclass(frozen=True)
class ScaleSearch:
    """What a search for scales did.

    Attributes:
        method: "nio", "gradinit" or "metainit".
        objective: what `before` and `after` hold.
        scales: one factor for each trained tensor that is not zero, by name; tied tensors share one. All one where
            the start was not changed.
        before: the start on held-out batches.
        after: the scaled start on the same; the best found, even where it was not kept.
        cap: the largest gradient norm allowed there.
        kept: whether the model now has the scaled start; otherwise it is bit for bit as given.
        reason: one sentence saying why.
        steps: how many were made.
        constrained_share: the share of them that descended the gradient norm.
        stalls: how often the rate was halved because steps of the two kinds cancelled.
        travel: the share of the way, in the scales' logarithms, that was best.
        objectives: on the search's batches, at each step.
        gradient_norms: likewise.
        spreads: the deviation between samples of the network's main output on held-out batches, before and after:
            samples that come out alike pull the same way, so that a high GradCosine is then no good sign.
        seed: of the order of samples.
        cost: in gradients of the mean batch.
    """

    method: str
    objective: str
    scales: dict[str, float]
    before: Quality
    after: Quality
    cap: float
    kept: bool
    reason: str
    steps: int
    constrained_share: float
    stalls: int
    travel: float
    objectives: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    spreads: tuple[float, float]
    seed: int
    cost: float


@dataclass(frozen=True, eq=False)
class Slope:
    """What an objective says of one batch at the present scales.

    Attributes:
        quality: objective and norm.
        constrained: whether `derivative` is the norm's, because it exceeds the cap.
        derivative: over the tensors that have a scale, of what is to be descended.
        cost: in gradients of the batch.
    """

    quality: Quality
    constrained: bool
    derivative: list[Tensor]
    cost: float


@dataclass(frozen=True, eq=False)
class Objective:
    """What a search is for.

    Attributes:
        method: its name.
        quantity: what `Quality.objective` is, in words.
        higher: whether more of it is better.
        slope: `(network, batch, cap)` to the slope.
        quality: `(network, batch)` to the quality.
        quality_cost: in gradients of the batch.
    """

    method: str
    quantity: str
    higher: bool
    slope: Callable[[ScaledNetwork, Batch, float], Slope]
    quality: Callable[[ScaledNetwork, Batch], Quality]
    quality_cost: float


@dataclass(frozen=True)
class Settings:
    """How a search is made.

    Attributes:
        gradient_norm_cap: the largest gradient norm, as a multiple of the starting one or absolute; infinite for none.
        cap_unit: which.
        learning_rate: the largest relative change of a scale in one step.
        steps: how many, batches in turn.
        lower_bound: the least scale.
        raw: Adam's steps on the scales themselves, as in the research code.
    """

    gradient_norm_cap: float
    cap_unit: Literal["start", "absolute"]
    learning_rate: float
    steps: int
    lower_bound: float
    raw: bool = False


Report = Callable[[ScaleSearch], None]
