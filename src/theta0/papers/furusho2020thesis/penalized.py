"""What Figures 8-13 share: several networks of one shape, stacked, trained on a loss plus a penalty (eq. 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from theta0.papers.sweeps import Loss, Weights
from theta0.regularizers import REGULARIZERS

PENALTIES = ("none", "l2", "l1", "path")
TITLES = {"none": "no penalty", "l2": "L2", "l1": "L1", "path": "path"}
COLOURS = {"none": "#5b6472", "l2": "#1f5a94", "l1": "#c1521c", "path": "#3c7d3c"}


@dataclass(frozen=True)
class Stack:
    """Networks of one shape whose weights lie side by side.

    Attributes:
        skeleton: one of them, for its forward pass.
        weights: by name, stacked along the first axis; they require gradients.
    """

    skeleton: nn.Module
    weights: Weights

    def outputs(self, x: Float[Tensor, "members n ..."]) -> Float[Tensor, "members n 1"]:
        """What each network puts out for its own inputs, without gradients.

        Args:
            x: inputs of each.

        Returns:
            Outputs of each.
        """
        with torch.no_grad():
            found: Tensor = vmap(lambda w, inputs: functional_call(self.skeleton, w, (inputs,)))(self.weights, x)
        return found

    def norms(self) -> dict[str, list[float]]:
        """The three penalties of each network, without coefficients.

        Returns:
            By name of the penalty, one number per network.
        """
        with torch.no_grad():
            return {kind: _penalties(self, kind).tolist() for kind in REGULARIZERS}


def stacked(models: Sequence[nn.Module]) -> Stack:
    """Stack networks of one shape.

    Args:
        models: at least one.

    Returns:
        Their stack.
    """
    weights, _ = stack_module_state(list(models))
    return Stack(models[0], {name: w.detach().requires_grad_() for name, w in weights.items()})


def train(
    stack: Stack,
    x: Float[Tensor, "members n ..."],
    y: Float[Tensor, "members n 1"],
    loss: Loss,
    *,
    penalties: Sequence[tuple[str, float]],
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    steps: int,
    rows: Callable[[int], Tensor] | None = None,
    every: int = 1,
    observe: Callable[[int], None] | None = None,
) -> None:
    """Minimise R_S(θ) + C·ψ(θ) for every network of a stack (furusho2020thesis, eq. 5).

    The optimizer sees one sum over networks; elementwise ones (SGD, Adam) then treat each as if it were alone.

    Args:
        stack: changed in place.
        x: inputs of each network.
        y: targets of each.
        loss: `(outputs, targets) -> 0-d tensor`.
        penalties: one per network, a key of `theta0.regularizers.REGULARIZERS` or "none", and C; networks with the same
            penalty lie side by side, whatever their C.
        optimizer: makes one from the stacked weights.
        steps: number of updates.
        rows: the samples of an update, `step -> indices [members, batch]`; all samples by default.
        every: how many updates between two observations.
        observe: called with the number of updates made so far.
    """
    stepper = optimizer(list(stack.weights.values()))
    fitted = vmap(lambda w, inputs, targets: loss(functional_call(stack.skeleton, w, (inputs,)), targets))
    members = torch.arange(len(x)).unsqueeze(1)
    groups = _groups(penalties)
    coefficients = torch.tensor([c for _, c in penalties], dtype=x.dtype)
    for step in range(steps + 1):
        if observe is not None and step % every == 0:
            observe(step)
        if step == steps:
            break
        chosen = rows(step) if rows else None
        inputs, targets = (x, y) if chosen is None else (x[members, chosen], y[members, chosen])
        total = fitted(stack.weights, inputs, targets).sum()
        for kind, where in groups.items():
            total = total + (coefficients[where] * _penalties(stack, kind, where)).sum()
        stepper.zero_grad()
        torch.autograd.backward(total)
        stepper.step()


class _Penalty(nn.Module):  # a module so that `functional_call` can put a member's weights into the network
    def __init__(self, network: nn.Module, kind: str) -> None:
        super().__init__()
        self.network = network
        self._kind = kind

    def forward(self) -> Tensor:
        return REGULARIZERS[self._kind](self.network)


def _groups(penalties: Sequence[tuple[str, float]]) -> dict[str, slice]:
    groups: dict[str, slice] = {}
    for place, (kind, _) in enumerate(penalties):
        start = groups[kind].start if kind in groups else place
        if kind in groups and groups[kind].stop != place:
            raise ValueError(f"penalties: expected equal ones side by side, got {list(penalties)}")
        groups[kind] = slice(start, place + 1)
    return {kind: where for kind, where in groups.items() if kind != "none"}


def _penalties(stack: Stack, kind: str, where: slice = slice(None)) -> Float[Tensor, " members"]:
    penalty = _Penalty(stack.skeleton, kind)
    named = {f"network.{name}": weight[where] for name, weight in stack.weights.items()}
    found: Tensor = vmap(lambda w: functional_call(penalty, w, ()))(named)
    return found
