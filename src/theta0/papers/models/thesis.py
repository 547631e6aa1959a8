"""The residual networks of furusho2020thesis §2.4 (eqs. 12-14) and their start (eq. 26)."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional as F

Statistics = list[tuple[Float[Tensor, " width"], Float[Tensor, " width"]]]


class ThesisResNet(nn.Module):
    """h⁰ = W⁰x, hˡ = hˡ⁻¹ + βˡ Wˡ φ(BN(hˡ⁻¹)), ŷ = 1ᵀhᴸ, with ReLU and without biases (furusho2020thesis, eqs. 12-14).

    Attributes:
        first: W⁰.
        blocks: W¹ … Wᴸ.
        norms: the normalisations, without learned scale or shift and always with the batch's own statistics; empty
            for the plain network.
    """

    def __init__(self, width: int, depth: int, *, batch_norm: bool = False) -> None:
        super().__init__()
        if width < 1 or depth < 1:
            raise ValueError(f"ThesisResNet needs width and depth of at least 1, got width {width}, depth {depth}")
        self.first = nn.Linear(width, width, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        normalisations = depth if batch_norm else 0
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width, affine=False, track_running_stats=False) for _ in range(normalisations)
        )

    def forward(
        self,
        x: Float[Tensor, "n width"],
        kept: Float[Tensor, " depth"] | None = None,
        statistics: Statistics | None = None,
    ) -> Float[Tensor, "n 1"]:
        """The output for each input.

        Args:
            x: inputs, as wide as the network.
            kept: β of each block: 1 keeps it, 0 drops it (eq. 14), the survival probability in evaluation;
                every block is kept when None.
            statistics: means and variances that replace the batch's own, from `batch_statistics`.

        Returns:
            One output per input.
        """
        return self.hidden(x, kept, statistics)[-1].sum(1, keepdim=True)

    def batch_statistics(
        self, x: Float[Tensor, "n width"], kept: Float[Tensor, " depth"] | None = None
    ) -> Statistics | None:
        """Mean and variance of every normalised state over a batch, to evaluate other inputs with.

        Args:
            x: the batch, usually the training set.
            kept: as in `forward`.

        Returns:
            One pair per normalisation, constant for differentiation; None for a network without.
        """
        if not self.norms:
            return None
        states = self.hidden(x, kept)[:-1]
        return [(state.mean(0).detach(), state.var(0, correction=0).detach()) for state in states]

    def hidden(
        self,
        x: Float[Tensor, "n width"],
        kept: Float[Tensor, " depth"] | None = None,
        statistics: Statistics | None = None,
    ) -> list[Float[Tensor, "n width"]]:
        """The hidden states h⁰ … hᴸ.

        Args:
            x: inputs.
            kept: as in `forward`.
            statistics: as in `forward`.

        Returns:
            One tensor per layer.
        """
        states: list[Tensor] = [self.first(x)]
        for layer, block in enumerate(self.blocks):
            signal = states[-1]
            if self.norms and statistics is None:
                signal = self.norms[layer](signal)
            elif self.norms and statistics is not None:
                signal = F.batch_norm(signal, *statistics[layer], training=False)
            change = block(F.relu(signal))
            states.append(states[-1] + (change if kept is None else kept[layer] * change))
        return states


def thesis_start_(model: ThesisResNet, *, generator: Generator | None = None) -> ThesisResNet:
    """W⁰ ~ N(0, 1/D) as LeCun, Wˡ ~ N(0, 2/D) as He (furusho2020thesis, eq. 26).

    Args:
        model: the network, changed in place.
        generator: source of the draws.

    Returns:
        The same network.
    """
    with torch.no_grad():
        for layer, weight in enumerate(model.parameters()):
            variance = (1.0 if layer == 0 else 2.0) / weight.shape[1]
            weight.normal_(0.0, variance**0.5, generator=generator)
    return model


def draw_kept_layers(
    depth: int, survival: float, *, exactly: bool = False, generator: Generator | None = None
) -> Float[Tensor, " depth"]:
    """Which blocks stochastic depth keeps in one iteration.

    Args:
        depth: number of blocks L.
        survival: probability p that a block is kept.
        exactly: keep p·L blocks, chosen at random, as Theorem 8 supposes, instead of each with probability p
            (furusho2020thesis, eq. 14).
        generator: source of the draws.

    Returns:
        1 for a kept block, 0 for a dropped one.

    Raises:
        ValueError: `survival` is no probability, or `exactly` is asked and p·L is not whole.
    """
    if not 0.0 <= survival <= 1.0:
        raise ValueError(f"survival is a probability, got {survival}")
    if not exactly:
        return (torch.rand(depth, generator=generator) < survival).float()
    count = round(survival * depth)
    if abs(count - survival * depth) > 1e-9:
        raise ValueError(
            f"exactly p·L = {survival} · {depth} blocks cannot be kept: choose p and L with a whole product"
        )
    kept = torch.zeros(depth)
    kept[torch.randperm(depth, generator=generator)[:count]] = 1.0
    return kept
