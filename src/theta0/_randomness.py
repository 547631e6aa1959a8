"""One stream of random numbers per parameter name, so that a draw does not depend on the order of the layers."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

Randomness = int | torch.Generator | None


def streams(generator: Randomness) -> Callable[[str], torch.Generator]:
    """A function from a name to a CPU generator of its own.

    Equal seeds and names give equal streams, whatever is asked before. A `torch.Generator` is advanced once. None
    takes `torch.initial_seed()`, what `torch.manual_seed` last set, and leaves the global generator where it is.
    """
    if generator is None:
        seed = torch.initial_seed()
    elif isinstance(generator, torch.Generator):
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    else:
        seed = generator

    def stream(name: str) -> torch.Generator:
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))

    return stream


def uniform(shape: torch.Size, bound: float, generator: torch.Generator) -> Tensor:
    """Draw in float32 from U(-bound, bound), on the CPU."""
    return torch.empty(shape, dtype=torch.float32).uniform_(-bound, bound, generator=generator)


def normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    """Draw in float32 from N(0, std²), on the CPU."""
    return torch.empty(shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
