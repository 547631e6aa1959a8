"""The changes that are tried, each as small as it can be."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from theta0._batches import Batch
from theta0._losses import Loss
from theta0._training import Maker
from theta0.experiments.free_outputs import free_outputs
from theta0.experiments.optimizers import OptimizerKind, clipped
from theta0.experiments.weight_decay import without_decay
from theta0.explanation.bench import Change, Setting, scale_of
from theta0.treatment.remedies import REMEDIES
from theta0.treatment.searches import SEARCHES

WARM_UP = 10  # steps
REMEDY = "the remedy "
CLIPPED = 1.0  # norm of the gradient
_FACTORS = (10.0, 0.1, 0.01)


def changes(model: nn.Module, given: Setting, loss: Loss, remedies: Sequence[str]) -> list[Change]:
    """Every change that applies: how it is trained, what it is given, and the remedies that findings name.

    Returns:
        The changes, those first that leave the network as it is.
    """
    found = [Change(f"the learning rate times {factor:g}", _at(factor)) for factor in _FACTORS]
    clipping = Change("clipping", _optimizer(lambda make: clipped(make, CLIPPED)))
    found += [Change(f"a warm-up of {WARM_UP} steps", _optimizer(_warmed)), clipping]
    if given.kind.decay:
        found.append(Change("no weight decay", _without_decay))
    if any(not m.training for m in model.modules()):
        found.append(Change("the model in training mode", _in_training_mode))
    if any(_real(leaf) for leaf in tree_flatten(given.batches[0].inputs)[0]):
        found.append(Change("the inputs standardized", _standardized_inputs))
    if _real(given.batches[0].targets):
        found.append(Change("the targets standardized", _standardized_targets(loss)))
    cheap = [name for name in remedies if name not in SEARCHES and name != "type-defaults"]
    return found + [Change(REMEDY + name, _remedy(name, loss)) for name in cheap]


def _at(factor: float) -> Callable[[nn.Module, Setting, int], Setting]:
    return lambda model, setting, seed: replace(setting, rate=factor * setting.rate)


def _optimizer(wrap: Callable[[Maker], Maker]) -> Callable[[nn.Module, Setting, int], Setting]:
    def apply(model: nn.Module, setting: Setting, seed: int) -> Setting:
        kind: OptimizerKind = replace(setting.kind, make=wrap(setting.kind.make))
        return replace(setting, kind=kind)

    return apply


def _without_decay(model: nn.Module, setting: Setting, seed: int) -> Setting:
    return replace(setting, kind=without_decay(setting.kind))


def _warmed(make: Maker) -> Maker:
    """The rate grows linearly over the first steps."""

    def made(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        optimizer, taken = make(parameters, rate), [0]
        rates = [group["lr"] for group in optimizer.param_groups]

        def before(*_: Any) -> None:
            taken[0] += 1
            for group, own in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = own * min(1.0, taken[0] / WARM_UP)

        optimizer.register_step_pre_hook(before)
        return optimizer

    return made


def _in_training_mode(model: nn.Module, setting: Setting, seed: int) -> Setting:
    model.train()
    return setting


def _standardized_inputs(model: nn.Module, setting: Setting, seed: int) -> Setting:
    leaves = [tree_flatten(batch.inputs)[0] for batch in setting.batches]
    moments = [
        _mean_and_spread([row[i] for row in leaves]) if _real(leaves[0][i]) else None for i in range(len(leaves[0]))
    ]

    def put(batch: Batch) -> Batch:
        place = iter(moments)

        def standardized(leaf: Any) -> Any:
            found = next(place)
            return leaf if found is None else (leaf - found[0]) / found[1]

        return replace(batch, inputs=tree_map(standardized, batch.inputs))

    return replace(setting, batches=[put(batch) for batch in setting.batches])


def _standardized_targets(loss: Loss) -> Callable[[nn.Module, Setting, int], Setting]:
    def apply(model: nn.Module, setting: Setting, seed: int) -> Setting:
        mean, spread = _mean_and_spread([batch.targets for batch in setting.batches])
        batches = [replace(batch, targets=(batch.targets - mean) / spread) for batch in setting.batches]
        free = free_outputs(model, batches, loss)
        return replace(setting, batches=batches, scale=scale_of(free, setting.scale[0] if free is None else free.first))

    return apply


def _mean_and_spread(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of each feature (the second axis; the last of three), over everything else."""
    axis = -1 if parts[0].dim() == 3 else 1
    rows = torch.cat([part.movedim(axis, -1).reshape(-1, part.shape[axis]) for part in parts])
    shape = [1] * parts[0].dim()
    shape[axis] = -1
    spread = rows.std(0, correction=0)
    return rows.mean(0).reshape(shape), torch.where(spread > 0, spread, torch.ones_like(spread)).reshape(shape)


def _remedy(name: str, loss: Loss) -> Callable[[nn.Module, Setting, int], Setting]:
    def apply(model: nn.Module, setting: Setting, seed: int) -> Setting:
        done = REMEDIES[name](model, list(setting.batches), loss, generator=seed)
        if not done.kept:
            raise ValueError(done.reason)
        return setting

    return apply


def _real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() > 1
