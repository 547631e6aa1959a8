"""Any source of data → repeatable batches on the model's device; a loss by name or callable."""

import copy
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy
from torch.utils._pytree import tree_flatten, tree_map

from theta0._errors import guarded, shown
from theta0._models import Step, StepInputs, device_of, outputs_of, parameter_names, required_parameters, unwrapped
from theta0._ranks import pooled
from theta0._state import preserve_randomness, seed_draws

P = ParamSpec("P")
Found = TypeVar("Found")
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Batch:
    """One batch, on the model's device.

    Attributes:
        inputs: a tensor, a mapping (passed as keywords) or a sequence.
        targets: what the loss compares with; None where the data have none.
        size: how many samples.
        number: its place in the source, from 0.
    """

    inputs: Any
    targets: Any
    size: int
    number: int = 0


def load_batches(
    batches: Iterable[Any], model: nn.Module, *, max_batches: int | None = 4, step: Step | None = None
) -> list[Batch]:
    """Read a data source once, so that every measurement sees the same data, on the model's device and in its dtype.

    The source's random state (global generators and a DataLoader's own) is left as it was. Batches are `(inputs,
    targets)`, mappings or bare inputs, and anything where a `step` takes them: then they stay as they are, tensors
    moved to the model's device. `max_batches` None reads all.

    Raises:
        ValueError: if there is no batch, an empty one, or a value in one that is not finite.
    """
    if isinstance(batches, (str, bytes, Mapping, Tensor, np.ndarray)) or not isinstance(batches, Iterable):
        came = shown(batches) if isinstance(batches, (Tensor, np.ndarray)) else type(batches).__name__
        raise ValueError(
            f"batches: expected an iterable of (inputs, targets), got {came}; pass a DataLoader, or a list of batches: "
            "[(inputs, targets)]"
        )
    with preserve_randomness():
        with own_generators(batches):
            items = pooled(lambda: guarded("batches:", lambda: list(islice(batches, max_batches))), max_batches, Batch)
        found = [
            _batch(item, number, model) if step is None else _step_batch(item, number, model, step)
            for number, item in enumerate(items)
        ]
    if not found:
        raise ValueError(
            "batches: expected at least one batch, got none; is the data set empty, or a generator already used up?"
        )
    return found


def prepared(model: nn.Module, batches: Iterable[Any], max_batches: int | None) -> tuple[nn.Module, list[Batch]]:
    """The user's module without wrappers and with shapes (a copy where it is lazy), and batches for it."""
    model = unwrapped(model)
    found = load_batches(batches, model, max_batches=max_batches)
    return with_shapes(model, found[0]), found


def endless(
    batches: Iterable[Any], model: nn.Module, seeds: Callable[[int], int], *, skip: int = 0
) -> Generator[Batch, None, None]:
    """Read a data source over and over, one batch at a time.

    A DataLoader's own generator is put back when the iterator is closed; torch's global one is the caller's to restore.
    `seeds` makes the seed of both from the number of the pass; the first `skip` batches are passed over. Batches are
    numbered from 0 within each pass.

    Raises:
        ValueError: if a pass yields nothing.
    """
    with own_generators(batches) as generators:
        for number in itertools.count():
            seed_draws(seeds(number))
            for generator in generators:
                generator.manual_seed(seeds(number))
            source = guarded("batches:", lambda: iter(batches))
            read = 0
            while (item := guarded("batches:", lambda: next(source, source))) is not source:  # noqa: B023 - called at once
                read += 1
                if skip:
                    skip -= 1
                    continue
                yield _batch(item, read - 1, model)
            if not read:
                raise ValueError(
                    f"batches: expected at least one batch in pass {number + 1} over the data, got none; is the data "
                    "set empty, or a generator that can be read only once? Pass a list or a DataLoader"
                )


def held_out(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Split batches into a part to train on and a part to verify on.

    The last quarter of the batches (at least one) is held out, or the last quarter of the samples of a single batch.

    Raises:
        ValueError: if there is a single batch with fewer than two samples, or one that cannot be split by samples.
    """
    if len(batches) > 1:
        kept = len(batches) - max(1, len(batches) // 4)
        return list(batches[:kept]), list(batches[kept:])
    (batch,) = batches
    kept = batch.size - max(1, batch.size // 4)
    if kept < 1:
        raise ValueError("batches: a single batch of one sample leaves nothing to verify on; pass at least two samples")
    return [sliced(batch, slice(0, kept))], [sliced(batch, slice(kept, batch.size))]


def checked_forward(model: nn.Module, batch: Batch) -> Any:
    """As `outputs_of`, on a batch; what the user's model raises becomes a `ValueError` of one sentence."""
    what = "the step" if isinstance(batch.inputs, StepInputs) else "the model's forward"
    return guarded(f"batch {batch.number}: {what}", lambda: outputs_of(model, batch.inputs), lambda: _given(batch))


def _given(batch: Batch) -> str:
    """What the model was given, for a message; whole numbers where a layer takes others are a common mistake."""
    leaves = [leaf for leaf in tree_flatten(batch.inputs)[0] if isinstance(leaf, Tensor)]
    if isinstance(batch.inputs, StepInputs) or not leaves:
        return ""
    kinds = ", ".join(f"{str(leaf.dtype).removeprefix('torch.')} of shape {tuple(leaf.shape)}" for leaf in leaves[:3])
    advice = ""
    if leaves[0].dtype == torch.uint8:
        advice = "; images as bytes are divided by 255 first: inputs.float() / 255"
    elif not leaves[0].is_floating_point() and not leaves[0].is_complex():
        advice = "; a layer other than an embedding takes inputs.float()"
    return f" (the inputs are {kinds}{advice})"


def with_shapes(model: nn.Module, batch: Batch) -> nn.Module:
    """The model, or a deep copy initialised by a forward pass where parameters are lazy; the user's own stays lazy."""
    if not any(is_lazy(p) for p in [*model.parameters(), *model.buffers()]):
        return model
    with preserve_randomness():
        lazy = [b for b in model.buffers() if isinstance(b, UninitializedBuffer)]
        # torch cannot copy an uninitialised buffer; the memo hands deepcopy a fresh one.
        blank = cast(Any, UninitializedBuffer)  # torch declares no arguments for it
        model = copy.deepcopy(model, {id(b): blank(device=b.device, dtype=b.dtype) for b in lazy})
        with torch.no_grad():
            checked_forward(model, batch)
    return model


def initialised(model: nn.Module) -> nn.Module:
    """The user's module without wrappers; refused if it has lazy parameters, whose values do not exist yet."""
    model = unwrapped(model)
    lazy = [name for name, p in [*model.named_parameters(), *model.named_buffers()] if is_lazy(p)]
    if lazy:
        raise ValueError(
            f"model: expected parameters that hold values, got lazy ones ({', '.join(lazy[:3])}); "
            "run one forward pass first: model(inputs)"
        )
    return model


@contextmanager
def own_generators(batches: Any) -> Iterator[list[torch.Generator]]:
    """Lend the generators of a DataLoader, its samplers and its data set, each once; afterwards they are as before."""
    sampler, data = getattr(batches, "batch_sampler", None), getattr(batches, "dataset", None)
    holders = (batches, getattr(batches, "sampler", None), sampler, getattr(sampler, "sampler", None), data)
    found = [getattr(holder, "generator", None) for holder in holders]
    generators = list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())
    states = [g.get_state() for g in generators]
    try:
        yield generators
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _batch(item: Any, number: int, model: nn.Module) -> Batch:
    if isinstance(item, Batch):
        return item
    inputs, targets = _split(tree_map(_tensor, item), number, model)
    device = device_of(model)
    floating = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtype = next(iter(floating)) if len(floating) == 1 else None

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(device, dtype if dtype is not None and leaf.is_floating_point() else leaf.dtype)

    inputs = tree_map(moved, dict(inputs) if isinstance(inputs, Mapping) else inputs)
    targets = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, targets)
    for what, part in (("inputs", inputs), ("targets", targets)):
        _require_finite(part, f"batch {number}, {what}")
    sizes = [leaf.shape[0] for leaf in tree_flatten(inputs)[0] if isinstance(leaf, Tensor) and leaf.dim() > 0]
    if not sizes or sizes[0] == 0:
        what = "an empty one" if sizes else f"{type(inputs).__name__} without any"
        raise ValueError(f"batch {number}: expected inputs holding a tensor of at least one sample, got {what}")
    return Batch(inputs, targets, sizes[0], number)


def _step_batch(item: Any, number: int, model: nn.Module, step: Step) -> Batch:
    """A batch that only its step understands; its size is the length of the first tensor or array in it.

    Raises:
        ValueError: if that is zero.
    """
    if isinstance(item, Batch):
        return item
    device = device_of(model)
    moved = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, item)
    leaves = tree_flatten(moved)[0]
    sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, (Tensor, np.ndarray)) and leaf.ndim > 0]
    if sizes and sizes[0] == 0:
        raise ValueError(f"batch {number}: expected at least one sample, got an empty tensor first")
    return Batch(StepInputs(step, moved), None, sizes[0] if sizes else 1, number)


def _tensor(leaf: Any) -> Any:
    """Arrays of numbers as tensors, which share their memory where they can."""
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" else leaf


def _split(item: Any, number: int, model: nn.Module) -> tuple[Any, Any]:
    """Inputs and targets; what is neither for `forward` nor a tensor, as names of files, is left out."""
    if isinstance(item, Mapping):
        return _split_mapping(item, number, model)
    if isinstance(item, (tuple, list)):
        if len(item) == 2:
            return item[0], item[1]
        if len(item) == 1:
            return item[0], None
        taken = max(1, len(required_parameters(model)))
        rest = [part for part in item[taken:] if isinstance(part, Tensor)]
        if len(rest) != 1:
            raise ValueError(
                f"batch {number}: expected (inputs, targets), got {len(item)} items, of which forward takes {taken} "
                f"and {len(rest)} further ones are tensors; yield ((a, b), targets), or pass step=, a function "
                "(model, batch) -> loss"
            )
        return (item[0] if taken == 1 else tuple(item[:taken])), rest[0]
    return item, None


_TARGETS = ("label", "labels", "target", "targets", "y")


def _split_mapping(item: Mapping[Any, Any], number: int, model: nn.Module) -> tuple[Any, Any]:
    """By the names of `forward`'s parameters; `labels` stay among the inputs, for models with a loss of their own."""
    names = parameter_names(model)
    if "labels" in item or names is None or len(item) == 1 or all(key in names for key in item):
        return item, item.get("labels")
    inputs = {key: value for key, value in item.items() if key in names}
    rest = {key: value for key, value in item.items() if key not in names and isinstance(value, Tensor)}
    targets = rest if inputs else {key: value for key, value in rest.items() if key in _TARGETS}
    others = [key for key in rest if key not in targets]
    if len(targets) != 1 or len(others) != (0 if inputs else 1):
        raise ValueError(
            f"batch {number}: expected a mapping whose keys are forward's parameters ({', '.join(sorted(names))}) and "
            f"one tensor of targets, got {', '.join(map(str, item))}; rename them, or pass step=, a function "
            "(model, batch) -> loss"
        )
    return inputs or rest[others[0]], next(iter(targets.values()))


def _require_finite(part: Any, where: str) -> None:
    for leaf in tree_flatten(part)[0]:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            continue
        values = leaf if leaf.layout is torch.strided else leaf.to_sparse_coo().coalesce().values()  # type: ignore[no-untyped-call]
        if not torch.isfinite(values).all():
            bad = int((~torch.isfinite(values)).sum())
            raise ValueError(
                f"{where}: expected finite numbers, got {bad} NaN or infinite of {leaf.numel()}; "
                "clean the data before training on them"
            )


def sliced(batch: Batch, samples: slice | Tensor) -> Batch:
    """Some samples of a batch, by a slice (then views) or their numbers; what has not its length stays whole."""

    def cut(leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch.size):
            return leaf
        if leaf.layout is not torch.strided:  # a graph: rows cannot be taken by a slice
            numbers = torch.arange(batch.size)[samples] if isinstance(samples, slice) else samples
            return leaf.to_sparse_coo().index_select(0, numbers.to(leaf.device))  # type: ignore[no-untyped-call]
        return leaf[samples if isinstance(samples, slice) else samples.to(leaf.device)]

    return replace(
        batch,
        inputs=tree_map(cut, batch.inputs),
        targets=tree_map(cut, batch.targets),
        size=len(range(batch.size)[samples] if isinstance(samples, slice) else samples),
    )


def require_separable(batches: Sequence[Batch]) -> None:
    """Refuse batches whose samples cannot be taken apart or reordered: a sparse matrix relates them."""
    for batch in batches:
        for leaf in tree_flatten(batch.inputs)[0]:
            if isinstance(leaf, Tensor) and leaf.layout is not torch.strided and batch.size in leaf.shape:
                raise ValueError(
                    f"batch {batch.number}: expected samples that can be divided into sub-batches, got a sparse matrix "
                    f"of shape {tuple(leaf.shape)} that relates them; use unit_variance_ or metainit_"
                )


def in_single_precision(model: nn.Module, batches: Sequence[Batch]) -> tuple[nn.Module, list[Batch]]:
    """Half-precision networks are measured on a float32 copy: rounding at 1e-2 would hide the eigenvalue."""
    if not any(p.dtype in _HALF for p in model.parameters()):
        return model, list(batches)
    return copy.deepcopy(model).float(), cast_batches(batches, torch.float32)


def searched_in_single_precision(
    search: Callable[Concatenate[nn.Module, P], Found],
) -> Callable[Concatenate[nn.Module, P], Found]:
    """A search that trains a model in place: one of half precision is trained as a float32 copy, and written back.

    In half precision most of Adam's steps are below the rounding of a weight, and float16 overflows.
    """

    @functools.wraps(search)
    def searched(model: nn.Module, *args: P.args, **kwargs: P.kwargs) -> Found:
        inner = initialised(model)
        if not any(p.dtype in _HALF for p in inner.parameters()):
            return search(inner, *args, **kwargs)
        copied = copy.deepcopy(inner).float()
        found = search(copied, *args, **kwargs)
        with torch.no_grad():
            for own, value in zip(
                [*inner.parameters(), *inner.buffers()], [*copied.parameters(), *copied.buffers()], strict=True
            ):
                own.data.copy_(value)
        return found

    return cast(Callable[Concatenate[nn.Module, P], Found], searched)


def cast_batches(batches: Sequence[Batch], dtype: torch.dtype) -> list[Batch]:
    """Batches whose floating tensors have another precision."""

    def converted(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return [replace(b, inputs=tree_map(converted, b.inputs), targets=tree_map(converted, b.targets)) for b in batches]
