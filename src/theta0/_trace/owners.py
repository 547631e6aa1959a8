"""Who owns a weight: from a tensor seen in a call to a layer's path and its parameters' names."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

ROOT = "(model)"  # the path of a weight that belongs to the model itself; the empty string is the whole network


@dataclass(frozen=True)
class Owner:
    """Where a weight lives.

    `layer` is its path as in `named_modules()`, for a bare parameter its own; `attribute` is the weight's name in the
    module, `parameters` are the full names of those behind it.
    """

    layer: str
    module: nn.Module
    attribute: str
    parameters: tuple[str, ...]


class Owners:  # a class because hooks and look-ups share the stack of running modules
    """The weights of one model and the modules that are running."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {module: path for path, module in model.named_modules()}
        self._running: list[nn.Module] = []
        self._making = 0
        self._made: dict[int, tuple[Tensor, nn.Module, str]] = {}  # by parametrizations; held so that ids stay unique
        self._held: dict[int, list[tuple[nn.Module, str]]] = {}
        self._owners: dict[tuple[nn.Module, str], Owner] = {}
        for module in self._paths:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self._held.setdefault(id(parameter), []).append((module, name))
        self._parametrized = {
            child: (module, name)
            for module in self._paths
            if parametrize.is_parametrized(module)
            for name, child in module.parametrizations.items()
        }

    def enter(self, module: nn.Module, inputs: Any) -> None:
        """A forward pre-hook: the module starts to run."""
        self._running.append(module)
        self._making += module in self._parametrized

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """A forward hook: the module has run; what a parametrization made is remembered."""
        if module in self._running:
            while True:
                last = self._running.pop()
                self._making -= last in self._parametrized
                if last is module:
                    break
        if module in self._parametrized:
            self._made[id(output)] = (output, *self._parametrized[module])

    @property
    def making(self) -> bool:
        """Whether a parametrization is making a weight: its products, as of an adapter's factors, are no calls."""
        return self._making > 0

    @property
    def inside_model(self) -> bool:
        """Whether a module of the model runs; a loss may be a module too, but is not the model's."""
        return bool(self._running) and self._running[0] in self._paths

    @property
    def running(self) -> tuple[str, nn.Module | None]:
        """The module that runs: its path ("" for the model itself, and outside of it) and the module."""
        module = self._running[-1] if self._running else None
        return (self._paths.get(module, "") if module is not None else ""), module

    def find(self, weight: Tensor) -> Owner | None:
        """The owner of a tensor that is a parameter, a view of one, or made from one by its module.

        It is the running module where several share the tensor, and None for any other tensor.
        """
        for tensor in (weight, weight._base):
            if tensor is None:
                continue
            if id(tensor) in self._held:
                return self._owner(*self._preferred(self._held[id(tensor)]))
            if id(tensor) in self._made:
                return self._owner(*self._made[id(tensor)][1:])
        running = self._running[-1] if self._running else None
        # A weight that a pre-forward hook recomputes is a plain attribute of the running module.
        if running is not None and running in self._paths and running.__dict__.get("weight") is weight:
            return self._owner(running, "weight")
        return None

    def module_of(self, weight: Tensor) -> Owner | None:
        """As `find`, for a weight that is one of several in its layer: the layer is the module itself."""
        owner = self.find(weight)
        if owner is None:
            return None
        path = self._paths[owner.module] or ROOT
        names = tuple(self._names(owner.module))
        return Owner(path, owner.module, owner.attribute, names)

    def _preferred(self, held: list[tuple[nn.Module, str]]) -> tuple[nn.Module, str]:
        return next((entry for entry in held if self._running and entry[0] is self._running[-1]), held[0])

    def _owner(self, module: nn.Module, attribute: str) -> Owner:
        known = self._owners.get((module, attribute))
        if known is None:
            known = self._owners[module, attribute] = self._new_owner(module, attribute)
        return known

    def _new_owner(self, module: nn.Module, attribute: str) -> Owner:
        path = self._paths[module]
        short = attribute.removesuffix("_weight") if attribute != "weight" else ""
        layer = ".".join(part for part in (path, short) if part) or ROOT
        return Owner(layer, module, attribute, tuple(self._names(module, attribute)))

    def _names(self, module: nn.Module, attribute: str | None = None) -> list[str]:
        path = self._paths[module]
        local = [name for name, _ in module.named_parameters()]
        if attribute is not None:
            behind = f"parametrizations.{attribute}."
            old_style = {f"{attribute}_g", f"{attribute}_v", f"{attribute}_orig"}
            local = [n for n in local if n == attribute or n.startswith(behind) or n in old_style]
        return [f"{path}.{name}" if path else name for name in local]
