"""Stochastic depth: whole residual layers left out at random in training (furusho2020thesis, eq. 14)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

Dropping = Literal["exactly", "bernoulli"]
Rescale = Literal["evaluation", "training"]
M = TypeVar("M", bound=nn.Module)


class StochasticDepth(nn.Module):
    """A residual layer x + β·branch(x) whose branch is left out at random in training, for the whole batch at once.

    In training β is 1 with probability p and 0 otherwise, decided once per call; a dropped branch is not computed and
    its parameters get no gradient. In evaluation β = p (furusho2020thesis, section 2.4). `rescale="training"` is
    torchvision's convention instead: β = 1/p when kept, 1 in evaluation. To decide once for all layers of a model, or
    to keep exactly the share p of them, see `drop_layers_`.

    Without a generator the decision is drawn from torch's default one, as `nn.Dropout` does; it is drawn on the
    generator's device, so a CPU generator avoids waiting for an accelerator. Activation checkpointing repeats the
    draw on recomputation: use `drop_layers_` there, which decides before the forward pass.

    Args:
        branch: the residual branch; further arguments of the call are passed to it. Its output has the shape of x.
        survival: probability p of keeping the branch, 0..1.
        rescale: where the survival probability enters: "evaluation" multiplies by p there, "training" divides by p.
        shortcut: what takes the place of the identity when the branch changes the shape.
        generator: source of the decisions.

    Raises:
        ValueError: if survival is not a probability, or 0 with `rescale="training"`, or rescale is unknown.

    >>> layer = StochasticDepth(nn.Identity(), survival=0.5).eval()
    >>> layer(torch.ones(2))
    tensor([1.5000, 1.5000])
    """

    kept: bool | None
    """The decision for the next calls in training; None lets the layer draw at every call."""

    def __init__(
        self,
        branch: nn.Module,
        survival: float,
        *,
        rescale: Rescale = "evaluation",
        shortcut: nn.Module | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check_survival(survival)
        if rescale not in {"evaluation", "training"}:
            raise ValueError(f'rescale must be "evaluation" or "training", got {rescale!r}')
        if rescale == "training" and survival == 0:
            raise ValueError('survival = 0 cannot be divided by in training; use rescale="evaluation"')
        self.branch = branch
        self.shortcut = shortcut
        self.survival = survival
        self.rescale = rescale
        self.generator = generator
        self.kept = None

    def forward(self, x: Float[Tensor, "..."], *args: Any, **kwargs: Any) -> Float[Tensor, "..."]:
        """shortcut(x) + β·branch(x), which must have one shape."""
        skip: Tensor = x if self.shortcut is None else self.shortcut(x)
        if self.training and not self._decide():
            return skip
        residual: Tensor = self.branch(x, *args, **kwargs)
        if residual.shape != skip.shape:
            raise ValueError(
                f"the branch of StochasticDepth must return the shape {tuple(skip.shape)} of its shortcut, "
                f"got {tuple(residual.shape)}; pass shortcut= to change the shape"
            )
        factor = self._factor()
        return skip + residual if factor == 1 else skip + factor * residual

    def extra_repr(self) -> str:
        """What `print` shows of the layer beside its parts."""
        return f"survival={self.survival}, rescale={self.rescale!r}"

    def _decide(self) -> bool:
        return draw_kept([self.survival], generator=self.generator)[0] if self.kept is None else self.kept

    def _factor(self) -> float:
        if self.rescale == "training":
            return 1 / self.survival if self.training else 1.0
        return 1.0 if self.training else self.survival


def draw_kept(
    survivals: Sequence[float], *, dropping: Dropping = "bernoulli", generator: torch.Generator | None = None
) -> tuple[bool, ...]:
    """Draws which layers stay.

    `"bernoulli"`: layer l with probability p_l, independently (furusho2020thesis, eq. 14). `"exactly"`: pL of L layers,
    every set alike (section 4.2, the case of Theorem 8); all p_l must be equal and pL whole.

    Args:
        survivals: p_l of every layer, 0..1.
        dropping: the law of the drops.
        generator: source of the numbers; torch's default one when None.

    Returns:
        One decision per layer, True for kept.

    Raises:
        ValueError: if a p_l is not a probability, dropping is unknown, or the layers do not allow an exact share.

    >>> sum(draw_kept([0.5] * 6, dropping="exactly", generator=torch.Generator().manual_seed(0)))
    3
    """
    for survival in survivals:
        _check_survival(survival)
    device = "cpu" if generator is None else generator.device
    layers = len(survivals)
    if dropping == "bernoulli":
        uniform = torch.rand(layers, generator=generator, device=device, dtype=torch.float64).tolist()
        return tuple(u < p for u, p in zip(uniform, survivals, strict=True))
    if dropping != "exactly":
        raise ValueError(f'dropping must be "exactly" or "bernoulli", got {dropping!r}')
    if len(set(survivals)) > 1:
        raise ValueError(
            f'dropping="exactly" needs one survival probability for all layers, got {list(survivals)}; '
            'make them equal or use dropping="bernoulli"'
        )
    share = survivals[0] * layers if layers else 0.0
    kept = round(share)
    if abs(share - kept) > 1e-9 * max(layers, 1):
        raise ValueError(
            f'dropping="exactly" needs a whole survival·layers, got {survivals[0]}·{layers}; '
            'change one of them or use dropping="bernoulli"'
        )
    chosen = set(torch.randperm(layers, generator=generator, device=device)[:kept].tolist())
    return tuple(layer in chosen for layer in range(layers))


def drop_layers_(model: M, dropping: Dropping, *, generator: torch.Generator | None = None) -> M:
    """From now on one draw for all `StochasticDepth` layers of a model at every training call of the model.

    The draw is made by a forward pre-hook of `model`, before its forward pass, and holds until the next one, also
    for a layer that is called twice. Decisions take the layers in the order of `model.modules()`; the layers' own
    generators are not used. A second call replaces the first; `pin_kept_` ends it. Copies of the model draw too.

    Args:
        model: contains `StochasticDepth` layers; call it itself, not an inner module, in training.
        dropping: "exactly" or "bernoulli", as in `draw_kept`.
        generator: source of the draws; torch's default one when None.

    Returns:
        The model.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from theta0.layers import StochasticDepth
        >>> model = nn.Sequential(*(StochasticDepth(nn.Linear(4, 4), 0.5) for _ in range(4)))
        >>> model = drop_layers_(model, "exactly", generator=torch.Generator().manual_seed(0))
        >>> model(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """
    draw_kept([layer.survival for layer in _layers(model)], dropping=dropping, generator=torch.Generator())  # check now
    _forget_draw(model)
    model.register_forward_pre_hook(partial(_draw, dropping=dropping, generator=generator))
    return model


def pin_kept_(model: M, kept: Sequence[bool] | None) -> M:
    """Fixes which `StochasticDepth` layers of a model stay in training, and ends `drop_layers_`.

    For everything that runs the same dropped net several times: curvature, per-sample gradients under `torch.func.vmap`
    (which forbids drawing inside), accumulation over micro-batches.

    Args:
        model: contains `StochasticDepth` layers.
        kept: one decision per layer in the order of `model.modules()`; None lets every layer draw for itself.

    Returns:
        The model.

    Raises:
        ValueError: if the number of decisions is not the number of layers.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from theta0.layers import StochasticDepth
        >>> model = nn.Sequential(*(StochasticDepth(nn.Linear(4, 4), 0.5) for _ in range(2)))
        >>> model = pin_kept_(model, [True, False])
        >>> x = torch.randn(3, 4)
        >>> torch.equal(model(x), model[0](x))  # the second layer is skipped
        True
    """
    layers = _layers(model)
    if kept is not None and len(kept) != len(layers):
        raise ValueError(f"expected {len(layers)} decisions, one per StochasticDepth layer, got {len(kept)}")
    _forget_draw(model)
    for layer, decision in zip(layers, kept if kept is not None else [None] * len(layers), strict=True):
        layer.kept = decision
    return model


def _draw(model: nn.Module, _: Any, *, dropping: Dropping, generator: torch.Generator | None) -> None:
    layers = _layers(model)
    if not any(layer.training for layer in layers):
        return
    kept = draw_kept([layer.survival for layer in layers], dropping=dropping, generator=generator)
    for layer, decision in zip(layers, kept, strict=True):
        layer.kept = decision


def _forget_draw(model: nn.Module) -> None:
    # By the hook itself and not by a stored handle, so that it also works on a copy of the model.
    for key, hook in list(model._forward_pre_hooks.items()):
        if isinstance(hook, partial) and hook.func is _draw:
            del model._forward_pre_hooks[key]


def _layers(model: nn.Module) -> list[StochasticDepth]:
    layers = [module for module in model.modules() if isinstance(module, StochasticDepth)]
    if not layers:
        raise ValueError(f"expected a model with StochasticDepth layers, got {type(model).__name__} without any")
    return layers


def _check_survival(survival: float) -> None:
    if not 0 <= survival <= 1:
        raise ValueError(f"survival must be a probability between 0 and 1, got {survival}")
