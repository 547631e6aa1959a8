"""Whether a network's outputs are an affine function of its inputs, and of how many weights in a row."""

from collections.abc import Sequence
from dataclasses import dataclass
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
        bent: whether a nonlinearity came behind the last of them.
        nonlinear: whether a nonlinearity lies between two of them.
    """

    layers: tuple[str, ...] = ()
    bent: bool = False
    nonlinear: bool = False


def affine_handler() -> Handler:
    """A handler whose note on a tensor is the `AffineChain` behind it."""

    def after(step: Step, result: Any) -> AffineChain | None:
        notes: Sequence[AffineChain] = [note for _, note in step.notes(handler)]
        spec, owners = step.spec, step.interpreter.owners
        weight = step.argument(spec.weight) if spec is not None and spec.kind and spec.role != "loss" else None
        owner = owners.find(weight) if isinstance(weight, Tensor) and owners is not None else None
        if owner is not None:
            behind = _joined(notes)
            return AffineChain((*behind.layers, owner.layer)[-64:], False, behind.nonlinear or behind.bent)
        if not notes or not tensors_in((result,) if result is not None else step.arguments[:1], {}):
            return None
        chain = _joined(notes)
        return chain if _affine(step, len(notes), handler) else AffineChain(chain.layers, True, chain.nonlinear)

    handler = Handler(after=after)
    return handler


def _joined(notes: Sequence[AffineChain]) -> AffineChain:
    if not notes:
        return AffineChain()
    longest = max(notes, key=lambda note: len(note.layers))
    return AffineChain(longest.layers, any(n.bent for n in notes), any(n.nonlinear for n in notes))


def _affine(step: Step, count: int, handler: Handler) -> bool:
    spec = step.spec
    if spec is None:
        return step.name in ("__get__", "__setitem__", "to", "type_as", "squeeze", "zeros_like", "ones_like")
    if spec.role in _PRODUCTS:
        return count == 1
    if spec.role == "divide":
        return count == 1 and step.note(step.arguments[0], handler) is not None
    return spec.role in _AFFINE
