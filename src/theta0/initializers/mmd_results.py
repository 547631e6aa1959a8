"""What a label-free initialization reports."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MmdTerms:
    """The loss and its terms.

    Attributes:
        loss: lee2023mmd, equation 23.
        uniformity: L_uni, the unbiased MMD² to uniform outputs.
        degenerate: L_sd.
        detachment: L_iod; zero where its weight is.
    """

    loss: float
    uniformity: float
    degenerate: float
    detachment: float


@dataclass(frozen=True)
class MmdStep:
    """One step, for a progress display.

    Attributes:
        step: its number, from 1.
        steps: how many there will be.
        terms: on this step's batch, before its update.
    """

    step: int
    steps: int
    terms: MmdTerms


@dataclass(frozen=True)
class Mmd:
    """What `mmd_` did.

    Attributes:
        before: the terms at the start, a mean over at most four batches.
        after: the same batches and perturbations at the parameters kept.
        steps: how many were made, a resumed run's earlier ones too.
        kept: the step whose parameters were kept; 0 for the start.
        losses: the mean loss of each window of steps.
        interrupted: whether the run was stopped early.
        routes: by parameter, how its noise entered (see `PerturbedOutputs`).
        obstacle: why perturbations did not share a pass; None where they did.
        chunks: into how many parts memory split the perturbations.
        cost: in gradients of the unperturbed model on a batch, counted as forward and backward passes over rows.
    """

    before: MmdTerms
    after: MmdTerms
    steps: int
    kept: int
    losses: tuple[float, ...]
    interrupted: bool
    routes: dict[str, str]
    obstacle: str | None
    chunks: int
    cost: float
