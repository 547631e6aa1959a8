"""Many small trainings at once: stacked over rates and seeds, in parallel over shapes, resumable from a file."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from theta0.jobs import completed

Loss = Callable[[Tensor, Tensor], Tensor]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Moment:
    """What an observer of `train_stacked` sees before each update.

    Attributes:
        step: number of updates made so far.
        members: which members still train: `rate index * number of seeds + seed index`.
        weights: their weights, stacked along the first axis in that order.
    """

    step: int
    members: Int[Tensor, " alive"]
    weights: Weights


def train_stacked(
    make_model: Callable[[Generator], nn.Module],
    x: Float[Tensor, "n ..."],
    y: Tensor,
    loss: Loss,
    *,
    rates: Sequence[float] | Float[Tensor, "rates seeds"],
    seeds: Sequence[int],
    steps: int,
    draw: Callable[[Generator], Tensor] | None = None,
    limit: float = 1000.0,
    observe: Callable[[Moment], None] | None = None,
) -> Float[Tensor, "rates seeds {steps}+1"]:
    """Full-batch gradient descent of one architecture from every seed at every rate, all in one stacked network.

    A member whose loss is not finite, or above `limit` and above `limit` times its first loss, has diverged: its loss
    stays infinite from there on and it is taken out of the stack, so that it neither costs time nor touches the others.
    A ValueError answers rates of another shape or below zero, and networks with buffers (running statistics), which a
    stack cannot keep apart.

    Args:
        make_model: a freshly initialized network from a generator; called once per seed with that seed's generator.
        x: all inputs.
        y: all targets.
        loss: `(outputs, targets) -> 0-d tensor`.
        rates: learning rates shared by all seeds, or one per rate and seed.
        seeds: one start each.
        steps: number of updates.
        draw: a tensor drawn anew for each update and seed, passed to the network behind `x` (the layers that
            stochastic depth keeps); members of one seed share the draw at every rate.
        limit: the loss that counts as divergence, relative to a first loss above 1.
        observe: called before every update and after the last.

    Returns:
        The loss before each update and after the last; infinite where a member has diverged.
    """
    table = _rate_table(rates, len(seeds))
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    models = [make_model(generator) for generator in generators]
    skeleton, weights = _stacked(models, len(table), x)
    rate, alive = table.flatten().to(x), torch.arange(table.numel())
    losses = torch.full((table.numel(), steps + 1), torch.inf)
    step_all = vmap(grad_and_value(_member_loss(skeleton, loss)), (0, None, None, 0 if draw else None))
    for step in range(steps + 1):
        if observe is not None:
            observe(Moment(step, alive, weights))
        drawn = torch.stack([draw(g) for g in generators])[alive % len(seeds)].to(x) if draw else None
        gradients, values = step_all(weights, x, y, drawn)
        losses[alive, step] = values.detach().float().cpu()
        survives = _survives(losses[alive, step], losses[alive, 0], limit)
        losses[alive[~survives], step] = torch.inf
        alive = alive[survives]
        if step == steps or not len(alive):
            break
        weights = {
            name: weight[survives] - gradients[name][survives] * _per_member(rate[alive], weight)
            for name, weight in weights.items()
        }
    return losses.view(len(table), len(seeds), steps + 1)


def _rate_table(rates: Sequence[float] | Tensor, seeds: int) -> Float[Tensor, "rates seeds"]:
    table = torch.as_tensor(rates, dtype=torch.float64)
    table = table.unsqueeze(1).expand(-1, seeds) if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] != seeds or not table.numel():
        raise ValueError(
            f"expected at least one seed and rates of shape [rates] or [rates, {seeds}] for {seeds} seeds, "
            f"got {tuple(torch.as_tensor(rates).shape)}"
        )
    if not bool((torch.isfinite(table) & (table >= 0)).all()):
        raise ValueError("learning rates must be finite and not negative")
    return table


def _stacked(models: list[nn.Module], rates: int, x: Tensor) -> tuple[nn.Module, Weights]:
    weights, buffers = stack_module_state(models)
    if buffers:
        raise ValueError(
            f"the network keeps buffers {sorted(buffers)}, which stacked members would share: "
            "build normalisations with track_running_stats=False"
        )
    repeated = {name: weight.detach().to(x).repeat(rates, *[1] * (weight.ndim - 1)) for name, weight in weights.items()}
    return models[0], repeated


def _member_loss(skeleton: nn.Module, loss: Loss) -> Callable[[Weights, Tensor, Tensor, Tensor | None], Tensor]:
    def value(weights: Weights, x: Tensor, y: Tensor, drawn: Tensor | None) -> Tensor:
        inputs = (x,) if drawn is None else (x, drawn)
        return loss(functional_call(skeleton, weights, inputs), y)

    return value


def _survives(now: Tensor, first: Tensor, limit: float) -> Tensor:
    return torch.isfinite(now) & (now <= limit * first.clamp_min(1.0))


def _per_member(rate: Tensor, weight: Tensor) -> Tensor:
    return rate.view(-1, *[1] * (weight.ndim - 1))


Configuration = Mapping[str, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Store:
    """Results on disk, one JSON object a line, `{"configuration": …, "result": …}`, so that a sweep can be resumed.

    One process writes to a file at a time. A line cut short by an interruption is skipped, and its result computed
    again.

    Attributes:
        path: the file; it is created, with its folder, by the first result.
    """

    path: Path

    def read(self) -> dict[str, Any]:
        """All results so far.

        Returns:
            Results by `canonical(configuration)`; the last one of a configuration counts.
        """
        if not self.path.is_file():
            return {}
        results: dict[str, Any] = {}
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                results[canonical(entry["configuration"])] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue  # a torn line: no prefix of a JSON object is itself JSON
        return results

    def append(self, configuration: Configuration, result: Any) -> None:
        """Write one result and flush it to the disk.

        Args:
            configuration: what was computed.
            result: numbers, strings, lists and dictionaries; None for what is not finite.
        """
        line = json.dumps({"configuration": dict(configuration), "result": result}, allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            if file.tell() and not _ends_line(file):
                line = "\n" + line
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _ends_line(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def canonical(configuration: Configuration) -> str:
    """A configuration as text that does not depend on the order of its keys.

    Args:
        configuration: numbers, strings, lists and dictionaries.

    Returns:
        Its JSON with sorted keys.

    Raises:
        ValueError: it holds something else, or a number that is not finite.
    """
    try:
        return json.dumps(dict(configuration), sort_keys=True, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"a configuration must be plain finite JSON, got {configuration!r}: {error}") from error


def sweep(
    compute: Callable[[Configuration], Any],
    configurations: Iterable[Configuration],
    *,
    store: Store | None = None,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Any]:
    """The result of every configuration, computed in parallel, those in the store left out.

    Args:
        compute: configuration -> JSON-like result; with a process backend it must be importable (or a
            `functools.partial` of such a function).
        configurations: what to compute.
        store: where results are kept as they arrive, and found again.
        backend: joblib's: "loky", "threading", "dask", "ray"; None is what `joblib.parallel_config` says.
        jobs: how many run at once; None is what `joblib.parallel_config` says, else 1.
        progress: called with how many are done and how many there are.

    Returns:
        Results in the order of the configurations.
    """
    wanted = [dict(configuration) for configuration in configurations]
    keys = [canonical(configuration) for configuration in wanted]
    results = store.read() if store else {}
    missing = {key: configuration for key, configuration in zip(keys, wanted, strict=True) if key not in results}
    total, done = len(set(keys)), len(set(keys)) - len(missing)
    if progress:
        progress(done, total)
    for key, result in completed(compute, missing, jobs=jobs, backend=backend):
        results[key] = result
        done += 1
        if store:
            store.append(missing[key], result)
        if progress:
            progress(done, total)
    return [results[key] for key in keys]
