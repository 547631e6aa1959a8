"""What is put back: a model and random generators after a look, a start after a failure, the conditions of a pass."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from theta0._state.tensor_files import TensorFile, belongs_in_a_file
from theta0._trace.interpreter import eager, no_dropout, without_checkpoints

# Where nn.Module keeps what can be registered: copied one level deeper than other attributes.
_REGISTRIES = frozenset(
    (
        "_parameters",
        "_buffers",
        "_modules",
        "_non_persistent_buffers_set",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
    )
)


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Within the block the model may be run, trained or reparametrised; afterwards it is bit for bit as before.

    What is restored, also when the block raises: parameter and buffer values, the tensor objects themselves, `.grad`,
    `requires_grad`, train or eval modes, hooks, classes (a parametrization changes them) and plain attributes of every
    module; and the random state of torch (CPU and accelerators), numpy and `random`. Compiled regions run eagerly
    meanwhile: they are opaque, and compiling them for a look at them would leave its cache behind.
    """
    restore = snapshot(model)
    with preserve_randomness():
        try:
            with eager(), unsynchronized(model):
                yield
        finally:
            restore()


@contextmanager
def unsynchronized(model: Any) -> Iterator[None]:
    """Within the block `DistributedDataParallel`, around the model or in it, exchanges nothing and expects nothing.

    Otherwise a pass whose gradients are not taken by `.backward()` of all parameters would leave it waiting for them,
    and the next training step would fail.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    found = [module for module in modules if isinstance(module, nn.parallel.DistributedDataParallel)]
    before = [(module.require_backward_grad_sync, module.require_forward_param_sync) for module in found]
    for module in found:
        module.require_backward_grad_sync = module.require_forward_param_sync = False
    try:
        yield
    finally:
        for module, (backward, forward) in zip(found, before, strict=True):
            module.require_backward_grad_sync, module.require_forward_param_sync = backward, forward


@contextmanager
def transaction(model: nn.Module) -> Iterator[None]:
    """Changes within the block stay, unless it raises: then the model is bit for bit as before.

    The random state is as before in any case, and nothing is recorded for autograd.
    """
    restore = snapshot(model)
    with preserve_randomness(), torch.no_grad():
        try:
            yield
        except BaseException:
            restore()
            raise


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Within the block buffers may move, as running statistics do at every pass; afterwards they are put back."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.data.copy_(value)  # through .data: the graph may have saved the buffer


@contextmanager
def preserve_randomness() -> Iterator[None]:
    """Within the block every global random number generator may be drawn from and seeded; afterwards it is as before.

    Those of torch on the CPU and on every accelerator, of numpy and of `random`.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = [backend for backend in (torch.cuda, torch.xpu) if backend.is_available()]
    accelerators = [backend.get_rng_state_all() for backend in devices]
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        for backend, states in zip(devices, accelerators, strict=True):
            backend.set_rng_state_all(states)
        if mps is not None:
            torch.mps.set_rng_state(mps)


def seed_draws(seed: int) -> None:
    """What `torch.manual_seed` does, at a hundredth of its cost where there is no accelerator.

    There `torch.manual_seed` keeps each seed, with three formatted stacks, for devices that are never started.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Within the block a forward pass of the model has a double backward; afterwards the model is as it was.

    Dropout is off (modules, functionals, attention and recurrent layers); attention runs on the kernel written in
    plain operations, since the fused ones have no double backward; recurrent layers run without cuDNN for the same
    reason; compiled regions run eagerly, checkpointed ones once; embeddings have dense gradients. Modes stay as found,
    so batch normalisation in training mode uses batch statistics; the running ones are put back.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with ExitStack() as stack:
        stack.enter_context(preserve_state(model))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(without_checkpoints())  # re-entrant ones refuse `autograd.grad`
        if recurrent:
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.training = False
            elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
                module.dropout = 0.0
            elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                module.sparse = False  # sparse gradients have no second derivative
        yield


@contextmanager
def functorch_safe(model: nn.Module) -> Iterator[None]:
    """As `twice_differentiable`, functional dropout and the fused transformer path off too: every transform follows."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with twice_differentiable(model), no_dropout():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def steady(model: nn.Module) -> Iterator[None]:
    """Within the block functional dropout is off and compiled regions run eagerly; buffers are put back afterwards."""
    with preserve_buffers(model), eager(), no_dropout():
        yield


@contextmanager
def deterministic(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """As `steady`, and draws depend on the seed alone; the caller puts the random state back.

    Without it spectral normalisation, which moves its buffers at every pass, or stochastic depth would make each
    product one of another matrix.
    """
    seed_draws(seed)
    with steady(model):
        yield


def snapshot(model: nn.Module) -> Callable[[], None]:
    """Remember a model's whole state; the function returned puts it back, bit for bit, as often as it is called.

    Memory: one copy of the parameters and buffers, on their devices. Where that is more than 256 MiB it is a file
    instead, in the folder for temporary ones, which is gone with the function returned, also where the process is
    killed; `THETA0_SNAPSHOT=memory` or `disk` decides otherwise.
    """
    modules = [(module, module.__class__, module.__dict__.copy(), _registered(module)) for module in model.modules()]
    parameters, buffers = (
        {id(t): t for module, *_ in modules for t in getattr(module, registry).values() if t is not None}.values()
        for registry in ("_parameters", "_buffers")
    )
    initialized = [t for t in (*parameters, *buffers) if not is_lazy(t) and not t.is_meta]
    put_back = _values(initialized)
    leaves = [(p, p.grad, p.requires_grad, None if p.grad is None else p.grad.clone()) for p in parameters]

    def restore() -> None:
        for module, kind, attributes, registered in modules:
            module.__class__ = kind
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for name in _REGISTRIES & attributes.keys():
                kept = registered.get(name)
                if not _same(attributes[name], kept):
                    module.__dict__[name] = type(attributes[name])() if kept is None else kept.copy()
        with torch.no_grad():
            put_back()
            for parameter, gradient, requires_grad, kept in leaves:
                parameter.requires_grad_(requires_grad)
                parameter.grad = gradient
                if gradient is not None and kept is not None:
                    gradient.copy_(kept)

    return restore


def _values(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Remember values; the function returned writes them into the tensors again."""
    if belongs_in_a_file(sum(t.numel() * t.element_size() for t in tensors)):
        return _in_a_file(tensors)
    kept = [tensor.detach().clone() for tensor in tensors]

    def put_back() -> None:
        for tensor, value in zip(tensors, kept, strict=True):
            tensor.data.copy_(value)

    return put_back


def _in_a_file(tensors: Sequence[Tensor]) -> Callable[[], None]:
    file = TensorFile()
    for number, tensor in enumerate(tensors):
        file.write(str(number), tensor)

    def put_back() -> None:
        for number, tensor in enumerate(tensors):
            file.read_into(str(number), tensor)

    return put_back


def _registered(module: nn.Module) -> dict[str, Any]:
    """Copies of what is registered with a module; most registries are empty, and left out."""
    return {name: module.__dict__[name].copy() for name in _REGISTRIES if module.__dict__.get(name)}


def _same(registry: Any, kept: Any) -> bool:
    """Whether a registry holds the very objects that it held, in the same order."""
    if kept is None or len(registry) != len(kept):
        return not registry and kept is None
    if isinstance(registry, set):
        return bool(registry == kept)
    return all(a == b and registry[a] is kept[b] for a, b in zip(registry, kept, strict=True))
