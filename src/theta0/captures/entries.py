"""What is noted of a script's tensors while it runs: from which module's call, by which functions, each one came."""

import random
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from theta0._trace.source import source_of_caller
from theta0.captures.tape import Surroundings, leaves_of, mapped


@dataclass(eq=False)
class Entry:  # grows stale; a node of the graph that a loss hangs on, alive as long as a tensor of it is
    """One module's call or one function.

    Attributes:
        number: in the order in which they ran.
        module: the module called; None for a function.
        function: the torch function; None for a call.
        arguments: tensors are `Use` or `Constant`.
        options: likewise.
        surroundings: what it ran under.
        places: the places of the tensors returned, by identity.
        calls: the calls that it depends on.
        kept: what was returned, where it carries no gradient.
        own_loss: the place of the outputs' own `.loss`, if they have one.
        single: whether a call returned one tensor and nothing else.
        stale: whether an optimizer has trained the module since.
    """

    number: int
    module: nn.Module | None
    function: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    surroundings: Surroundings
    places: dict[int, int] = field(default_factory=dict)
    calls: frozenset["Entry"] = frozenset()
    kept: tuple[Tensor, ...] | None = None
    own_loss: int | None = None
    single: bool = False
    stale: bool = False

    def uses(self) -> list["Use | Constant"]:
        """What it was given."""
        found: list[Use | Constant] = []

        def add(leaf: Any) -> Any:
            if isinstance(leaf, (Use, Constant)):
                found.append(leaf)
            return leaf

        mapped((self.arguments, self.options), add)
        return found


@dataclass(frozen=True)
class Use:
    """A tensor that an entry returned."""

    entry: Entry
    place: int


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that no entry returned.

    Attributes:
        value: a copy; the tensor itself where it is a leaf that requires a gradient.
        leaf: whether it is such a leaf: a parameter, or data that are differentiated with respect to.
        unseen: whether it has a graph that was not seen being made.
        source: the identity of a parameter; 0 for other tensors, which may be gone and their identity taken.
    """

    value: Tensor
    leaf: bool = False
    unseen: bool = False
    source: int = 0


class Constants:  # a class, because a tensor given twice has to become one constant
    """The constants made so far, by the identity and version of the tensor."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Constant]] = {}

    def of(self, tensor: Tensor) -> Constant:
        """The constant of a tensor.

        Returns:
            The one made before, unless the tensor was written to since.
        """
        entry, version = self._known.get(id(tensor)), _version(tensor)
        if entry is not None and entry[0]() is tensor and entry[1] == version:
            return entry[2]
        leaf = tensor.requires_grad and tensor.is_leaf
        value, source = (
            tensor if leaf else tensor.detach().clone(),
            id(tensor) if isinstance(tensor, nn.Parameter) else 0,
        )
        made = Constant(value, leaf, tensor.requires_grad and not leaf, source)
        self._known[id(tensor)] = (weakref.ref(tensor), version, made)
        return made

    def forget_dead(self) -> None:
        """Drop what was kept of tensors that are gone."""
        self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}


def _version(tensor: Tensor) -> int:
    """How often it was written to; parameters are never copied, so theirs does not count."""
    return 0 if tensor.is_inference() or (tensor.requires_grad and tensor.is_leaf) else int(tensor._version)


def surroundings(
    randomness: Callable[[], None] | None = None, weights: Iterable[tuple[Tensor, Tensor]] = ()
) -> Surroundings:
    """What holds now."""
    devices = ["cpu"] + [name for name in ("cuda", "xpu", "mps") if getattr(torch, name).is_available()]
    autocast = tuple((name, torch.get_autocast_dtype(name)) for name in devices if torch.is_autocast_enabled(name))
    return Surroundings(torch.is_grad_enabled(), autocast, randomness, tuple(weights), source_of_caller())


def random_states() -> tuple[Any, ...]:
    """The states of torch's, numpy's and Python's generators; torch's of the current accelerator too."""
    cuda: Any = torch.cuda  # torch declares no types for `is_initialized`
    accelerator = cuda.get_rng_state() if cuda.is_available() and cuda.is_initialized() else None
    return torch.get_rng_state(), accelerator, np.random.get_state(), random.getstate()


def drawn_since(states: tuple[Any, ...]) -> Callable[[], None] | None:
    """Whether random numbers were drawn since the states were taken.

    Returns:
        What puts the generators back into them; None where nothing was drawn.
    """
    cpu, accelerator, numpy, python = states
    now = random_states()
    same = torch.equal(now[0], cpu) and now[3] == python and now[2][2] == numpy[2]
    if same and np.array_equal(now[2][1], numpy[1]) and (accelerator is None or torch.equal(now[1], accelerator)):
        return None

    def restore() -> None:
        torch.set_rng_state(cpu)
        np.random.set_state(numpy)
        random.setstate(python)
        if accelerator is not None:
            torch.cuda.set_rng_state(accelerator)

    return restore


def own_loss_place(outputs: Any) -> int | None:
    """The place of the outputs' own loss among their tensors."""
    own = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    return next((i for i, leaf in enumerate(leaves_of(outputs)) if leaf is own), None)


def closure(roots: Iterable[Use], cut: Callable[[Use], bool] = lambda use: False) -> list[Entry]:
    """Every entry that some tensors depend on, in the order in which they ran.

    Args:
        roots: the tensors.
        cut: behind which uses not to look.

    Returns:
        The entries.
    """
    waiting, found = [use for use in roots if not cut(use)], dict[int, Entry]()
    while waiting:
        entry = waiting.pop().entry
        if entry.number not in found:
            found[entry.number] = entry
            waiting.extend(use for use in entry.uses() if isinstance(use, Use) and not cut(use))
    return [found[number] for number in sorted(found)]
