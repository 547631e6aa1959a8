"""Steps of a script's optimizers: which passes each uses, what it finds of their gradients, and which loop it is in."""

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from theta0.captures.entries import (
    closure,
)
from theta0.captures.passes import Pass, Recording, Steps
from theta0.captures.stored_data import stored_data


def norms_of(parameters: Sequence[Tensor]) -> dict[int, float]:
    """The norms of the gradients that parameters hold, by the parameters' identities."""
    gradients = {id(p): p.grad.detach() for p in parameters if p.grad is not None}
    dense = [(g.coalesce().values() if g.is_sparse else g).double() for g in gradients.values()]
    norms = [torch.linalg.vector_norm(g).cpu() for g in dense]
    return dict(zip(gradients, torch.stack(norms).tolist(), strict=True)) if norms else {}


def before_step(found: Recording, optimizer: torch.optim.Optimizer) -> None:
    """What a step is about to use: the passes since the last, the rates, and what was rewritten meanwhile."""
    if found.interpreter is None:
        return
    found.check()
    _count_loop(found, optimizer)
    if found.loop > 1:
        return
    steps = found.optimizers.get(id(optimizer))
    if steps is None:
        steps = found.optimizers[id(optimizer)] = Steps(optimizer, _state_of(optimizer))
        found.alive = alive((torch.optim.Optimizer, LRScheduler))
        if not found.stored.begins:
            found.stored = stored_data(alive((Dataset,)))
        found.several = found.several or sum(isinstance(kept, torch.optim.Optimizer) for kept in found.alive) > 1
        for p in steps.parameters:
            if id(p) not in found.covered:
                found.covered.add(id(p))
                found.restores[id(p)] = _putter(p)
    group = optimizer.param_groups[0]
    steps.rate = max([steps.rate, *(float(group[key]) for key in ("lr", "initial_lr", "max_lr") if key in group)])
    steps.rates.append(float(group["lr"]))
    steps.rewritten = steps.rewritten or not (steps.sums is None or torch.equal(steps.sums, _sums(steps)))
    steps.begun = len(steps.groups)
    steps.values.begins(steps.parameters)
    found.stepping = True
    _consume(found, steps)


def _count_loop(found: Recording, optimizer: torch.optim.Optimizer) -> None:
    """A loop begins with the first step of an optimizer that was made after the first step of the one before."""
    if found.loop == 1 or (found.together is not None and optimizer in found.together):
        return
    if found.together is not None:
        found.loop -= 1
        found.earlier.update(found.together)
    found.together = weakref.WeakSet(alive((torch.optim.Optimizer,)))


def _sums(steps: Steps) -> Tensor:
    """A number for each parameter that changes when it does."""
    return torch.stack([p.detach().double().abs().sum().cpu() for p in steps.parameters if p.numel()])


def _putter(parameter: Tensor) -> Callable[[], None]:
    value = parameter.detach().clone()

    def restore() -> None:
        parameter.data.copy_(value)

    return restore


def after_step(found: Recording, optimizer: torch.optim.Optimizer) -> None:
    """What a step has changed: calls that were made before it are stale for the next."""
    steps, found.stepping = found.optimizers.get(id(optimizer)), False
    if found.loop > 1:
        _forget(found)
    if steps is None:
        return
    if found.skip > 0:
        found.skip -= 1
        _forget(found)
        return
    _consume(found, steps, closure=True)
    steps.sums = _sums(steps)
    steps.values.ends(steps.parameters)
    found.places |= {p.data_ptr(): id(p) for p in steps.parameters if p.numel()}
    changed = {id(p) for p in steps.parameters}
    found.trained |= changed
    for entry in found.live:
        if entry.module is not None and any(id(p) in changed for p in entry.module.parameters()):
            entry.stale = True
    found.live = [entry for entry in found.live if not entry.stale or entry.surroundings.weights]


def _forget(found: Recording) -> None:
    """Begin anew after a step that is passed over: the models stay as they are now."""
    for entry in found.live:
        entry.stale = True
    for collected in (found.passes, found.live, found.optimizers, found.restores, found.covered, found.trained):
        collected.clear()
    found.unseen = found.calls = 0


def _consume(found: Recording, steps: Steps, *, closure: bool = False) -> None:
    """Give the optimizer the passes since its last step whose gradients are still there; all those of a closure."""
    held = {id(p) for p in steps.parameters}
    new = found.passes[steps.consumed :]
    group = [one for one in new if one.received & held] if closure else passes_for(new, held)
    since = found.passes[max(other.consumed for other in found.optimizers.values()) :]
    steps.consumed = len(found.passes)
    if not group:
        steps.unreached += [since[-1:]] if since else []
        return
    if closure:  # whose gradients the step used and may have changed since; what was there before it, it did not use
        steps.shares[steps.begun :] = [None] * (len(steps.groups) - steps.begun)
        steps.norms[steps.begun :] = [None] * (len(steps.groups) - steps.begun)
        steps.left_over[steps.begun :] = [None] * (len(steps.groups) - steps.begun)
    steps.groups.append(group)
    share, norm = (None, None) if closure else _share(group, steps.parameters)
    steps.shares.append(share)
    steps.norms.append(norm)
    steps.left_over.append(None if closure or len(steps.groups) < 2 else _left_over(group, steps.parameters))
    if len(steps.groups) > 1:
        _release(found, group)


def _release(found: Recording, group: Sequence[Pass]) -> None:
    """Drop the weights kept for passes that nothing will be compared with: each optimizer's first are."""
    waiting = {id(p) for one in found.alive if isinstance(one, torch.optim.Optimizer) for p in _waiting(found, one)}
    roots = [root for one in group if one.received.isdisjoint(waiting) for root in one.roots if root is not None]
    for entry in closure(roots):
        if entry.surroundings.weights:
            entry.surroundings = replace(entry.surroundings, weights=())


def _waiting(found: Recording, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters of an optimizer that has not stepped with a gradient yet."""
    steps = found.optimizers.get(id(optimizer))
    return [] if steps is not None and steps.groups else [p for g in optimizer.param_groups for p in g["params"]]


def _share(group: Sequence[Pass], parameters: Sequence[Tensor]) -> tuple[float | None, float | None]:
    """The norm of the gradients that parameters hold, over what it was after the passes that made them; and itself."""
    held, after = {id(p) for p in parameters}, dict[int, float]()
    for one in group:
        after |= {key: norm for key, norm in one.norms.items() if key in held}
    made, left = math.hypot(*after.values()), math.hypot(*norms_of(parameters).values())
    return (left / made, left) if made > 0 and math.isfinite(made) and math.isfinite(left) else (None, None)


def _left_over(group: Sequence[Pass], parameters: Sequence[Tensor]) -> float | None:
    """The share of the entries with a gradient that no pass of a step found empty: an earlier step's is still there."""
    held = {id(p): p.numel() for p in parameters}
    received = {key for one in group for key in one.received if key in held}
    fresh = {key for one in group for key in one.received & one.empty}
    total = sum(held[key] for key in received)
    return sum(held[key] for key in received - fresh) / total if total else None


def passes_for(pending: Sequence[Pass], held: set[int]) -> list[Pass]:
    """The passes whose gradients some parameters still hold: the later ones, from where they were last empty.

    Returns:
        The passes.
    """
    group: list[Pass] = []
    for one in pending:
        mine = one.received & held
        if not mine:
            continue
        if mine <= one.empty:
            group = []
        group.append(one)
    return group


def _state_of(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    state = {key: dict(value) for key, value in optimizer.state.items()}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update({key: dict(value) for key, value in state.items()})
        for group, kept in zip(optimizer.param_groups, groups, strict=False):
            group.update(kept)

    return restore


def alive(kinds: tuple[type, ...]) -> list[Any]:
    """What the script has made of some kinds; by their types, since proxies answer `isinstance` with side effects."""
    return [found for found in gc.get_objects() if issubclass(type(found), kinds)]
