"""Whether a network's outputs are an affine function of its inputs, and of how many weights in a row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from theta0._trace.interpreter import Handler, Step, tensors_in

# Roles of affine functions of one tensor that depends on the data; batch normalization scales and shifts.
_AFFINE = frozenset(("positive", "negate", "pad", "dropout", "add", "subtract", "join", "batch_norm", "embedding"))
_PRODUCTS = frozenset(("multilinear", "multiply"))


@dataclass(frozen=True)
class AffineChain:
    """The weights behind a tensor.

    Attributes:
        layers: the layers whose weights were applied one after the other, the first first.
        maps: of each, the number of features that go in and come out, and whether every one is linked with every one.
        bent: whether a nonlinearity came behind the last of them.
        nonlinear: whether a nonlinearity lies between two of them.
    """

    layers: tuple[str, ...] = ()
    maps: tuple[tuple[int, int, bool], ...] = ()
    bent: bool = False
    nonlinear: bool = False


def affine_handler() -> Handler:
    """A handler whose note on a tensor is the `AffineChain` behind it."""

    def after(step: Step, result: Any) -> AffineChain | None:
        notes: Sequence[AffineChain] = [note for _, note in step.notes(handler)]
        spec, owners = step.spec, step.interpreter.owners
        weight = step.argument(spec.weight) if spec is not None and spec.kind and spec.role != "loss" else None
        owner = owners.find(weight) if isinstance(weight, Tensor) and owners is not None else None
        if owner is not None and isinstance(weight, Tensor):
            behind = _joined(notes)
            layers, maps = (*behind.layers, owner.layer), (*behind.maps, _map(step, weight, result))
            return AffineChain(layers[-64:], maps[-64:], False, behind.nonlinear or behind.bent)
        if not notes or not tensors_in((result,) if result is not None else step.arguments[:1], {}):
            return None
        chain = _joined(notes)
        if _affine(step, len(notes), handler):
            return chain
        # A weight that was made of others is multiplied with what went through a nonlinearity.
        between = chain.bent and spec is not None and spec.role in _PRODUCTS
        return replace(chain, bent=True, nonlinear=chain.nonlinear or between)

    handler = Handler(after=after)
    return handler


def _joined(notes: Sequence[AffineChain]) -> AffineChain:
    if not notes:
        return AffineChain()
    longest = max(notes, key=lambda note: len(note.layers))
    return replace(longest, bent=any(n.bent for n in notes), nonlinear=any(n.nonlinear for n in notes))


def _map(step: Step, weight: Tensor, result: Any) -> tuple[int, int, bool]:
    """Features before and after a weight, and whether it links all of them."""
    before = step.argument(step.spec.input) if step.spec is not None else None
    if not (isinstance(before, Tensor) and isinstance(result, Tensor) and before.dim() and result.dim()):
        return 0, 0, True
    axis = 1 if step.spec is not None and step.spec.kind.startswith("conv") and before.dim() > 2 else -1
    wide, out = before.shape[axis], result.shape[axis]
    return wide, out, weight.numel() >= wide * out


def _affine(step: Step, count: int, handler: Handler) -> bool:
    spec = step.spec
    if spec is None:
        return step.name in ("__get__", "__setitem__", "to", "type_as", "squeeze", "zeros_like", "ones_like")
    if spec.role in _PRODUCTS:
        return count == 1
    if spec.role == "divide":
        return count == 1 and step.note(step.arguments[0], handler) is not None
    return spec.role in _AFFINE
