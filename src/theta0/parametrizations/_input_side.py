"""The same function from the input's side: (V C) x = V (C x), which is cheaper when there are fewer rows than units."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from theta0._trace.interpreter import tracing

# How often the drift of mean(v) is looked at, which reads the whole matrix twice.
_EVERY = 16
# mean(v) in root mean squares of w: up to the first one centring of the input is as exact as centring the weight, up to
# the second two are; beyond it, and in half precision always, v's own rounding would show in w.
_ONCE, _TWICE = 1 / 64, 8.0


def compute_from_input_(layer: nn.Module, name: str) -> None:
    """Let a Linear layer constrained in ambient coordinates centre its input where that is cheaper.

    C = I - 11ᵀ/m is symmetric, so W x = (V C) x = V (C x): batch · m numbers to touch instead of out · m.
    `layer.weight` stays the centred weight for everyone who reads it, and the weight is what computes whenever calls
    are watched, compiled or traced, under autocast, under `parametrize.cached()`, with parameters replaced
    (`functional_call`), in half precision and on accelerators. `remove_parametrizations` gives the layer its plain
    class back.
    """
    kind: Any = type(layer)
    if name == "weight" and isinstance(layer, nn.Linear) and kind.__mro__[1].forward is nn.Linear.forward:
        kind.forward = _forward


def _forward(self: nn.Linear, input: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch units"]:
    if torch.compiler.is_compiling() or not (times := _centrings(self, input)):
        return nn.Linear.forward(self, input)
    x = input - input.mean(-1, keepdim=True)
    if times == 2:
        x = x - x.mean(-1, keepdim=True)
    return F.linear(x, _made(self)._parameters["original"], self.bias)


def _made(layer: nn.Linear) -> Any:
    """What holds v; by way of dictionaries, since torch's attributes cost microseconds each."""
    held: Any = layer._modules["parametrizations"]
    return held._modules.get("weight")


def _centrings(layer: nn.Linear, input: Tensor) -> int:
    """How often to centre the input; 0 where the weight is to be centred instead."""
    made = _made(layer)
    parts = {} if made is None else made._modules
    known = parts["0"].__dict__ if len(parts) == 1 else {}
    if "from_input" not in known:
        return 0
    calls, drift, times = known["from_input"]
    if torch._C._current_graph_task_id() >= 0:  # a checkpointed block runs again: as it ran before
        return int(times)
    v = made._parameters.get("original")
    if v is not None and _may(layer, input, v):
        drift = _drift(v) if calls % _EVERY == 0 else drift
        known["from_input"] = (calls + 1, drift, 1 if drift <= _ONCE else 2 if drift <= _TWICE else 0)
    else:
        known["from_input"] = (calls, drift, 0)
    return int(known["from_input"][2])


def _may(layer: nn.Linear, input: Tensor, v: Tensor) -> bool:
    return (
        input.numel() < v.numel()
        and type(v) is nn.Parameter  # not what `functional_call` or a transform of torch.func puts in its place
        and input.dtype is v.dtype
        and input.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and not tracing()
        and not getattr(parametrize, "_cache_enabled", 0)
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        and input.is_cpu  # measured there; on an accelerator, looking at the drift would wait for it
    )


def _drift(v: Float[Tensor, "units m"]) -> float:
    """The largest |mean(v)| over units, in root mean squares of the unit's w; infinite where nothing is finite."""
    with torch.no_grad():
        mean = v.mean(1)
        power = torch.linalg.vector_norm(v, dim=1).square() / v.shape[1] - mean.square()  # of w, roughly
        worst = float((mean.abs() / power.clamp_min(torch.finfo(v.dtype).tiny).sqrt()).max())
    return worst if worst == worst else float("inf")
