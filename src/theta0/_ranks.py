"""The ranks of a process group, where there is one: they meet, split work, add up, and come to one verdict."""

import functools
import hashlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from itertools import chain, count
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_map

from theta0._errors import RankError
from theta0._models import unwrapped
from theta0._randomness import streams
from theta0._state import preserve_randomness, seed_draws, snapshot, unsynchronized

P = ParamSpec("P")
Model = TypeVar("Model")
Found = TypeVar("Found")
WAIT = 300.0  # seconds for which a rank waits for the others where THETA0_RANK_TIMEOUT says nothing else
_FAILED = "failed: "
_meetings = count()
_alone = ContextVar("theta0 works on this rank only", default=False)
_verb = ContextVar("the verb that all ranks are in", default="")


def ranks() -> int:
    """How many processes work together: the size of the default process group, 1 where there is none."""
    if _alone.get() or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def is_first() -> bool:
    """Whether this process writes files and speaks for all: rank 0, or the only one."""
    return ranks() == 1 or distributed.get_rank() == 0


@contextmanager
def this_rank_only() -> Iterator[None]:
    """Within the block theta0 works on this rank alone, as if there were no process group.

    Otherwise its verbs are called on every rank, and wait for each other.

    Example:
        >>> import torch, theta0
        >>> with theta0.this_rank_only():
        ...     found = theta0.diagnose(torch.nn.Linear(2, 2), [torch.randn(8, 2)])
    """
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def join() -> None:
    """Make a process group where `torchrun` has started several processes and there is none."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and distributed.is_available()
    if several and not distributed.is_initialized():
        distributed.init_process_group("gloo")


def leave() -> None:
    """End the process group, where there is one, together: what a peer that leaves first still owes is lost."""
    if distributed.is_available() and distributed.is_initialized():
        meet("the end")
        distributed.destroy_process_group()


@contextmanager
def group_kept() -> Iterator[None]:
    """Within the block a script that is left early does not take its process group with it."""
    destroy, kept = distributed.destroy_process_group, lambda group=None: None
    distributed.destroy_process_group = kept
    try:
        yield
    finally:
        distributed.destroy_process_group = destroy


def meet(where: str) -> None:
    """Wait until every rank is here, for at most `THETA0_RANK_TIMEOUT` seconds.

    Raises:
        RankError: naming the ranks that did not come, that are elsewhere, or that have failed, and why.
    """
    if ranks() == 1:
        return
    store: Any = distributed_c10d._get_default_store()
    number, seconds = next(_meetings), float(os.environ.get("THETA0_RANK_TIMEOUT", WAIT))
    keys = [f"theta0/{number}/{rank}" for rank in range(ranks())]
    store.set(keys[distributed.get_rank()], where)
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError as error:  # torch's DistStoreError is one
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        raise RankError(
            f"{where}: expected all {ranks()} ranks within {seconds:g} seconds, got nothing of rank "
            f"{', '.join(missing)}; call it on every rank, or on one alone within `theta0.this_rank_only()`, or set "
            "THETA0_RANK_TIMEOUT"
        ) from error
    _compare(where, [store.get(key).decode() for key in keys])


def _compare(own: str, places: Sequence[str]) -> None:
    failed = [f"rank {r}: {place.removeprefix(_FAILED)}" for r, place in enumerate(places) if place.startswith(_FAILED)]
    if failed and not own.startswith(_FAILED):
        raise RankError("; ".join(failed))
    if not failed and len(set(places)) > 1:
        others = "; ".join(f"rank {rank} is at {place}" for rank, place in enumerate(places) if place != own)
        raise RankError(f"{own}: expected every rank to be here, got others ({others}); call the same on every rank")


def summed(value: Tensor) -> Tensor:
    """The sum of a tensor over all ranks, equal on each; the given one where there is one process."""
    if ranks() == 1:
        return value
    total = value.clone()
    distributed.all_reduce(total)
    return total


def averaged(values: Sequence[Tensor]) -> list[Tensor]:
    """The means of tensors over all ranks, detached, exchanged all at once; each must bring the same shapes."""
    detached = [value.detach() for value in values]
    if ranks() == 1 or not detached:
        return detached
    meet("a mean over the ranks")
    means = summed(torch.cat([value.flatten() for value in detached])) / ranks()
    parts = torch.split(means, [value.numel() for value in detached])
    return [part.view(value.shape).to(value.dtype) for part, value in zip(parts, detached, strict=True)]


def share(items: Tensor) -> Tensor:
    """This rank's part of a list that all ranks have: consecutive entries; parts differ by one at most."""
    if ranks() == 1:
        return items
    return items.tensor_split(ranks())[distributed.get_rank()]


def gathered(part: Tensor, total: int) -> Tensor:
    """The parts of all ranks, each its `share` of `total` entries, in order along the first axis.

    It is equal on every rank; each rank's derivative is that of its own part.
    """
    if ranks() == 1:
        return part
    whole: Tensor = _Gathered.apply(part, total)  # type: ignore[no-untyped-call]
    return whole


def from_first(value: Found) -> Found:
    """The first rank's value, of any kind that can be sent."""
    if ranks() == 1:
        return value
    meet("what the first rank holds")
    held = [value]
    distributed.broadcast_object_list(held, src=0)
    return held[0]


def from_all(value: Found) -> list[Found]:
    """Every rank's value, in order of the ranks."""
    if ranks() == 1:
        return [value]
    meet("what the ranks hold")
    held: list[Any] = [None] * ranks()
    distributed.all_gather_object(held, value)
    return held


def exchanges_gradients(module: nn.Module) -> bool:
    """Whether a backward pass behind a module averages gradients over the ranks."""
    wrappers = (m for m in module.modules() if isinstance(m, nn.parallel.DistributedDataParallel))
    return ranks() > 1 and any(wrapper.require_backward_grad_sync for wrapper in wrappers)


def pooled(read: Callable[[], list[Any]], most: int | None, ready: type) -> list[Any]:
    """What all ranks read, in turn, `most` items in all; within a verb that all ranks are in, else this rank's own.

    Ranks that read the same, as without a sampler that splits the data, have it once. What fails on one rank fails on
    each. Items of the class `ready` are every rank's already.
    """
    if ranks() == 1 or not _verb.get():
        return read()
    with _failures_shared():
        own: list[Any] = read()
        if any(isinstance(item, ready) for item in own):
            return own
        own = tree_map(_sent, own)
        marks = from_all(_mark(own))
    if len(set(marks)) == 1:
        return own
    quota = None if most is None else -(-most // ranks())
    parts = from_all(own[:quota])
    longest = max(map(len, parts))
    return [part[k] for k in range(longest) for part in parts if k < len(part)][:most]


def _sent(leaf: Any) -> Any:
    """A tensor as it is sent: on the CPU, and without the rest of a storage of which it is a part."""
    if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
        return leaf.cpu() if isinstance(leaf, Tensor) else leaf
    here = leaf.cpu()
    return here if here.untyped_storage().nbytes() <= here.numel() * here.element_size() else here.clone()


def on_every_rank(verb: Callable[Concatenate[Model, P], Found]) -> Callable[Concatenate[Model, P], Found]:
    """A verb that, on the ranks of a process group, works on the data of all and comes to the first one's result.

    Every rank does the same work: on the batches of all in turn, from the first rank's values and random state. A kept
    change leaves the first rank's values on each. What one raises, all raise. A `DistributedDataParallel` around the
    model, or in it, exchanges nothing meanwhile.
    """

    @functools.wraps(verb)
    def called(model: Model, *args: P.args, **kwargs: P.kwargs) -> Found:
        with unsynchronized(model):
            if ranks() == 1 or _verb.get():
                return verb(model, *args, **kwargs)
            token = _verb.set(verb.__name__)
            try:
                return _together(verb, model, *args, **kwargs)
            finally:
                _verb.reset(token)

    return cast(Callable[Concatenate[Model, P], Found], called)


def _together(verb: Callable[..., Found], model: Any, *args: Any, **kwargs: Any) -> Found:
    meet(verb.__name__)
    if kwargs.get("generator") is not None:
        kwargs["generator"] = from_first(streams(kwargs["generator"])("ranks").initial_seed())
    with preserve_randomness(), _first_values(model) as keep:
        _seed_all(from_first(torch.initial_seed()))
        with _failures_shared():
            own: Any = verb(model, *args, **kwargs)
            wrapped = getattr(own, "wrapped", None)  # a module of this rank's, which is not sent
            found: Any = from_first(own if wrapped is None else replace(own, wrapped=None))
        if getattr(found, "kept", False):
            keep()
    return found if wrapped is None else replace(found, wrapped=wrapped)  # type: ignore[no-any-return]


def _seed_all(seed: int) -> None:
    seed_draws(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def _failures_shared() -> Iterator[None]:
    """What is raised in the block on one rank is raised on all when they next meet, here at the latest."""
    try:
        yield
    except RankError:
        raise
    except Exception as error:
        if not getattr(error, "_met", False):
            error._met = True  # type: ignore[attr-defined]
            meet(_FAILED + (str(error).strip().splitlines() or [type(error).__name__])[0])
        raise
    meet(f"the end of {_verb.get()}")


@contextmanager
def _first_values(model: Any) -> Iterator[Callable[[], None]]:
    """Within the block the model has the first rank's values; afterwards its own, unless what was changed is kept.

    Then it has the first rank's on every one.

    Raises:
        ValueError: if another rank's model is a different one.
    """
    inner = unwrapped(model) if isinstance(model, nn.Module) else nn.Module()
    named = list(chain(inner.named_parameters(), inner.named_buffers()))
    kinds = from_all(_mark([(name, str(t.dtype), tuple(t.shape)) for name, t in named]))
    if len(set(kinds)) > 1:
        other = next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
        raise ValueError(
            f"model: expected the same model on every rank, got another on rank {other} than on rank 0; look at parts "
            "of a model that are on several ranks each alone, within `theta0.this_rank_only()`"
        )
    restore: Callable[[], None] = lambda: None  # noqa: E731 - nothing has to be put back where values are equal
    if len(set(from_all(_mark([t for _, t in named])))) > 1:
        restore = snapshot(inner)
        _broadcast([t for _, t in named])
    kept: list[bool] = []
    try:
        yield lambda: kept.append(True)
    finally:
        if not kept:
            restore()
    if kept:
        _broadcast([*inner.parameters(), *inner.buffers()])


def _broadcast(tensors: Sequence[Tensor]) -> None:
    """Give tensors the first rank's values."""
    meet("the first rank's values")
    carried = "cpu" if "gloo" in distributed.get_backend() else "cuda"
    with torch.no_grad():
        for tensor in tensors:
            value = tensor.data.to(carried, copy=True).contiguous()
            distributed.broadcast(value, src=0)
            tensor.data.copy_(value)


def _mark(value: Any) -> str:
    """A digest of values of any kind, of tensors by their bytes."""
    digest = hashlib.sha256()

    def add(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            flat = leaf.detach().to_dense() if leaf.layout != torch.strided else leaf.detach()
            digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            if flat.numel() and not flat.is_meta:
                digest.update(flat.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode())
        return leaf

    tree_map(add, value)
    return digest.hexdigest()


class _Gathered(
    torch.autograd.Function
):  # torch's own gather sums derivatives over ranks, which counts them twice here
    @staticmethod
    def forward(ctx: Any, part: Tensor, total: int) -> Tensor:
        sizes = [len(piece) for piece in torch.arange(total).tensor_split(ranks())]
        padded = part.new_zeros(max(sizes), *part.shape[1:])
        padded[: len(part)] = part.detach()
        pieces = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(pieces, padded)
        rank = distributed.get_rank()
        ctx.rows = sum(sizes[:rank]), sum(sizes[: rank + 1])
        return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        begin, end = ctx.rows
        return gradients[0][begin:end], None
