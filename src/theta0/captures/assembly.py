"""From what was recorded to a model and batches: whose modules they are, and which passes make one batch."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from theta0._trace.functions import SPECS
from theta0.captures.entries import Constant, Entry, Use, closure
from theta0.captures.passes import Pass, Recording, Steps
from theta0.captures.stepping import passes_for
from theta0.captures.tape import CapturedBatch, Operation, Result, Tape, Value, Weight, mapped
from theta0.measurements.taken_back import TakenBack

CLIP_TOLERANCE = 1e-3  # of a norm: torch clips to the limit but for 1e-6 and rounding


class ScriptModules(nn.Module):
    """The modules that a script's step calls, where no module of the script's owns all of them."""

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """Modules of a script are called by its step.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("these modules are called by the script's step: pass step=")


@dataclass(frozen=True, eq=False)
class Factor:
    """A constant by which a script multiplies its loss.

    Attributes:
        value: the factor.
        reason: "accumulation" or "scaling", where the optimizer's step does not have it; "" where it is the script's.
    """

    value: float = 1.0
    reason: str = ""


def batches_of(found: Recording, steps: Steps | None) -> list[list[Pass]]:
    """The passes that make up each batch of an optimizer.

    Passes of one kind between two steps are accumulation: a batch each. Passes of different kinds, as of real and of
    generated images, are terms of one loss.

    Returns:
        The passes of each batch.
    """
    if steps is None:
        return [[one] for one in found.passes]
    kinds = {one.signature for group in steps.groups for one in group}
    left = passes_for(found.passes[steps.consumed :], {id(p) for p in steps.parameters})
    batches: list[list[Pass]] = []
    for group in [*steps.groups, [one for one in left if one.signature in kinds]]:
        current: dict[Any, Pass] = {}
        for one in group:
            if one.signature in current:
                batches.append(list(current.values()))
                current = {}
            current[one.signature] = one
        batches += [list(current.values())] if current else []
    whole = max((len(batch) for batch in batches), default=0)
    return [batch for batch in batches if len(batch) == whole]  # the last may have been cut off by the stop


def factor_of(batches: Sequence[Sequence[Pass]], steps: Steps | None) -> tuple[Factor, Use | None]:
    """The constant factor at the end of the loss, and the tensor that it multiplies.

    It is removed where accumulation or a gradient scaler takes it out again: k passes of 1/k, or a scale by which the
    gradients were divided before the step.

    Returns:
        The factor, and the loss without it where it is removed.
    """
    if any(len(batch) > 1 or not batch[0].plain for batch in batches):
        return Factor(), None
    assert batches[0][0].roots[0] is not None
    inner, value = unscaled(batches[0][0].roots[0])
    if value == 1.0:
        return Factor(), inner
    if steps is None or not steps.groups:
        return Factor(value), None
    accumulated = max(len(group) for group in steps.groups)
    left = steps.shrunk * value
    if accumulated > 1 and abs(value * accumulated - 1) < 1e-6:
        return Factor(value, "accumulation"), inner
    if value > 1 and left < 1.001:
        return Factor(value, "scaling"), inner
    if accumulated > 1 and value * accumulated > 1 and left * accumulated < 1.001:
        return Factor(value, "scaling"), inner
    return Factor(value), None


def gradient_kept(steps: Steps | None, model: nn.Module) -> float | None:
    """The share of the gradient that the steps of an optimizer find: 1 where nothing but a loss scale is taken out.

    Returns:
        The median over the steps, 0 where the loss depends on nothing that the optimizer holds; None where no step is
        seen to use the gradients of passes before it.
    """
    if steps is not None and not {id(p) for p in steps.parameters} & {id(p) for p in model.parameters()}:
        return 0.0
    pairs = [] if steps is None else zip(steps.groups, steps.shares, strict=False)
    shares = [min(1.0, share * max(1.0, _scale(group))) for group, share in pairs if share is not None]
    return median(shares) if shares else None


def gradient_left_over(steps: Steps | None) -> float | None:
    """The share of the gradient's entries that still hold the gradient of an earlier step.

    Returns:
        The least of the steps but the first; None where fewer than two of these are seen.
    """
    known = [] if steps is None else [share for share in steps.left_over if share is not None]
    return min(known) if len(known) > 1 else None


def clip_norm(steps: Steps | None) -> float | None:
    """The norm to which a script clips gradients: what several steps find, and no step finds more.

    Returns:
        The norm, to four digits; None where it is not seen to clip.
    """
    pairs = [] if steps is None else zip(steps.norms, steps.shares, strict=False)
    known = [(norm, share) for norm, share in pairs if norm is not None and share is not None]
    highest = max((norm for norm, _ in known), default=0.0)
    at_it = [norm for norm, share in known if share < 1 - CLIP_TOLERANCE and norm > (1 - CLIP_TOLERANCE) * highest]
    return float(f"{highest:.4g}") if len(at_it) > 1 and highest > 0 else None


def opposed(found: Recording, steps: Steps | None, entries: Iterable[Entry]) -> bool:
    """Whether something beyond a loss keeps it in bounds: weights that are rewritten between steps, or an adversary.

    Args:
        found: what was recorded.
        steps: the optimizer.
        entries: the calls and functions behind its loss, its data included.

    Returns:
        Whether another optimizer trains parameters on which the loss or its data depend, or weights were rewritten.
    """
    if steps is None:
        return False
    own = {id(p) for p in steps.parameters}
    others = {id(p) for other in found.optimizers.values() for p in other.parameters} - own
    every = list(entries)
    modules = {id(entry.module): entry.module for entry in every if entry.module is not None}
    used = {id(p) for module in modules.values() for p in module.parameters()}
    # A critic that is frozen meanwhile is no call of trained parameters: its weights are what functions are given.
    used |= {c.source for entry in every for c in entry.uses() if isinstance(c, Constant)}
    return steps.rewritten or not used.isdisjoint(others)


def taken_back(found: Recording, steps: Steps | None, model: nn.Module) -> tuple[TakenBack, ...]:
    """The trained parameters whose steps the script takes back, or overwrites, each time."""
    if steps is None:
        return ()
    names = {id(p): name for name, p in model.named_parameters()}
    own = [names.get(id(p), "a parameter outside of the model") for p in steps.parameters]
    return steps.values.taken_back(own, [found.written.get(id(p), "") for p in steps.parameters])


def _scale(group: Sequence[Pass]) -> float:
    """By how much the gradients of some passes are larger than the mean gradient: the factor of the loss, summed."""
    factors = [unscaled(one.roots[0])[1] for one in group if len(one.roots) == 1 and one.roots[0] is not None]
    accumulated = max(Counter(one.signature for one in group).values())
    return max((abs(factor) for factor in factors), default=1.0) * accumulated


def unscaled(root: Use) -> tuple[Use, float]:
    """A loss without the numbers that it is multiplied with or divided by last; and their product."""
    entry, factor = root.entry, 1.0
    while entry.function is not None and not entry.options:
        spec = SPECS.get(entry.function)
        uses = [a for a in entry.arguments if isinstance(a, Use)]
        numbers = [number for a in entry.arguments if not isinstance(a, Use) and (number := _number(a)) is not None]
        if spec is None or len(uses) != 1 or len(numbers) != 1 or len(entry.arguments) != 2:
            break
        if spec.role == "multiply":
            factor *= numbers[0]
        elif spec.role == "divide" and entry.arguments[0] is uses[0] and numbers[0]:
            factor /= numbers[0]
        else:
            break
        root, entry = uses[0], uses[0].entry
    return root, factor


def _number(value: Any) -> float | None:
    if isinstance(value, Constant) and value.value.numel() == 1 and not value.leaf:
        return float(value.value)
    return float(value) if isinstance(value, (int, float)) else None


def cut_of(steps: Steps | None) -> Callable[[Use], bool]:
    """Which results are data for an optimizer: they carry no gradient, and none of its parameters made them."""
    if steps is None:
        return lambda use: False
    held = {id(p) for p in steps.parameters}
    known: dict[int, bool] = {}

    def cut(use: Use) -> bool:
        entry = use.entry
        if entry.kept is None:
            return False
        if entry.number not in known:
            modules = [call.module for call in entry.calls if call.module is not None]
            known[entry.number] = not any(id(p) in held for module in modules for p in module.parameters())
        return known[entry.number]

    return cut


def model_of(found: Recording, entries: Iterable[Entry], steps: Steps | None) -> nn.Module:
    """The smallest module of the script's that owns everything that its step uses; a container where there is none.

    Args:
        found: what was recorded.
        entries: the calls and functions of the step.
        steps: the optimizer; a module that also owns all that it trains is preferred.

    Returns:
        The module.
    """
    entries = list(entries)
    called = list({id(e.module): e.module for e in entries if e.module is not None}.values())
    owned = {id(p) for module in called for p in module.parameters()}
    loose = [
        c.value for e in entries for c in e.uses() if isinstance(c, Constant) and isinstance(c.value, nn.Parameter)
    ]
    candidates = {id(m): m for m in (*called, *(module for module, _ in found.owners.values()))}
    sized = sorted(candidates.values(), key=lambda module: sum(1 for _ in module.modules()))
    fitting = [m for m in sized if _owns(m, called, loose)]
    trained = [] if steps is None else steps.parameters
    for module in fitting:
        if _owns(module, called, trained):
            return module
    if fitting:
        return fitting[0]
    return _container(found, called, [p for p in loose if id(p) not in owned])


def _owns(module: nn.Module, called: Sequence[nn.Module], parameters: Sequence[Tensor]) -> bool:
    inside, held = {id(part) for part in module.modules()}, {id(p) for p in module.parameters()}
    return all(id(part) in inside for part in called) and all(id(p) in held for p in parameters)


def _container(found: Recording, called: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> nn.Module:
    container = ScriptModules()
    inner = {id(part) for module in called for part in list(module.modules())[1:]}
    for module in called:
        if id(module) not in inner:
            container.add_module(_free(container, _name(found, module)), module)
    for parameter in {id(p): p for p in parameters}.values():
        container.register_parameter(_free(container, "parameter"), parameter)
    return container


def _name(found: Recording, module: nn.Module) -> str:
    """A module's variable in the script, or its attribute in one that is; else its class."""
    if id(module) in found.owners:
        return found.owners[id(module)][1]
    paths = [path for owner, _ in found.owners.values() for path, part in owner.named_modules() if part is module]
    return paths[0].replace(".", "_") if paths else type(module).__name__.lower()


def _free(container: nn.Module, name: str) -> str:
    wanted, number = name, 1
    while hasattr(container, wanted):
        number += 1
        wanted = f"{name}_{number}"
    return wanted


def tape_of(
    passes: Sequence[Pass], model: nn.Module, cut: Callable[[Use], bool], instead: Use | None = None
) -> CapturedBatch:
    """The straight tape of some passes, with what the script brought to them.

    Args:
        passes: whose losses are summed.
        model: owns what they use.
        cut: which results are data.
        instead: the loss to end at, where a factor behind it is left out.

    Returns:
        The batch.

    Raises:
        ValueError: if a root was not seen being made.
    """
    roots = [root for one in passes for root in one.roots] if instead is None else [instead]
    given = [gradient for one in passes for gradient in one.gradients_given] if instead is None else [None]
    seen = [root for root in roots if root is not None]
    if len(seen) < len(roots):
        raise ValueError("a part of the loss was made where it cannot be seen")
    entries = closure(seen, cut)
    writer = _Writer(model, {entry.number: place for place, entry in enumerate(entries)}, cut)
    operations = tuple(writer.operation(entry) for entry in entries)
    ends = tuple(
        (writer.placed(root), None if g is None else writer.value(g)) for root, g in zip(seen, given, strict=True)
    )
    leaves = frozenset(number for number, leaf in writer.leaves.items() if leaf)
    return CapturedBatch(Tape(operations, ends, leaves), tuple(writer.values))


class _Writer:  # a class, because values get their numbers while operations are written
    def __init__(self, model: nn.Module, places: dict[int, int], cut: Callable[[Use], bool]) -> None:
        self.places, self.cut = places, cut
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.values: list[Tensor] = []
        self.leaves: dict[int, bool] = {}
        self._numbers: dict[Any, int] = {}

    def operation(self, entry: Entry) -> Operation:
        path = None if entry.module is None else self.paths[id(entry.module)]
        arguments, options = mapped((entry.arguments, entry.options), self.placed)
        return Operation(path, entry.function, arguments, options, entry.surroundings)

    def placed(self, leaf: Any) -> Any:
        """What stands for a tensor on the tape."""
        if isinstance(leaf, Use):
            if self.cut(leaf):
                assert leaf.entry.kept is not None
                return self.value(leaf.entry.kept[leaf.place], (leaf.entry.number, leaf.place))
            return Result(self.places[leaf.entry.number], leaf.place)
        if not isinstance(leaf, Constant):
            return leaf
        if leaf.leaf and id(leaf.value) in self.names:
            return Weight(self.names[id(leaf.value)])
        return self.value(leaf.value, id(leaf), leaf.leaf)

    def value(self, tensor: Tensor, key: Any = None, leaf: bool = False) -> Value:
        key = id(tensor) if key is None else key
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.leaves[self._numbers[key]] = leaf
            self.values.append(tensor.detach())
        return Value(self._numbers[key])


def stepped(found: Recording) -> list[Steps | None]:
    """The optimizers of the script in the order in which they stepped; one None where there are none.

    One that never had a gradient is judged by the passes right before its steps, which were meant for it; one that
    never steps, by the passes whose gradients are reset and used by no step. Of those that a loop makes anew for a
    model of the same name, as for each fold or task, the first stands for all.
    """
    for steps in found.optimizers.values():
        steps.groups = steps.groups or steps.unreached
    idle = _never_stepped(found) if found.optimizers else []
    with_passes = [s for s in (*found.optimizers.values(), *idle) if batches_of(found, s)]
    first: dict[Any, Steps] = {}
    for steps in with_passes:
        first.setdefault(_made_by(found, steps), steps)
    return list(first.values()) or [None]


def _made_by(found: Recording, steps: Steps) -> Any:
    """Equal for optimizers that one line of a loop made: what they are, and the names and shapes of what they train."""
    roots = [root for group in steps.groups for one in group for root in one.roots if root is not None]
    called = {id(entry.module) for entry in closure(roots) if entry.module is not None}
    names = sorted(found.owners[key][1] for key in called if key in found.owners)
    shapes = tuple(tuple(p.shape) for p in steps.parameters)
    return (type(steps.optimizer), tuple(names), shapes) if names else id(steps)


def _never_stepped(found: Recording) -> list[Steps]:
    """Optimizers without a step, whose parameters get gradients that are reset again and again."""
    used = {one.signature for steps in found.optimizers.values() for group in steps.groups for one in group}
    unused = [one for one in found.passes if one.signature not in used]
    made = []
    for optimizer in found.alive if unused else ():
        if not isinstance(optimizer, torch.optim.Optimizer) or id(optimizer) in found.optimizers:
            continue
        steps = Steps(optimizer, restore=lambda: None, consumed=len(found.passes))
        held = {id(p) for p in steps.parameters}
        passes = [one for one in unused if one.received & held and (one.received & held) <= one.empty]
        if len(passes) > 1:
            steps.groups, steps.shares = [[one] for one in passes], [0.0] * len(passes)
            steps.rate = float(optimizer.param_groups[0]["lr"])
            made.append(steps)
    return made
