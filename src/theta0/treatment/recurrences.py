"""Remedies for recurrent layers: weights that neither grow nor shrink a state, and gates that remember."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init

from theta0._batches import Batch, checked_forward, initialised, load_batches
from theta0._errors import InapplicableError
from theta0._randomness import Randomness, streams
from theta0._state import preserve_state, transaction
from theta0._trace.calls import LinearCall, trace_calls
from theta0._weights import assign_weight, trained_tensors
from theta0.treatment.results import Applied

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_GATES = {4: (1, 0), 3: (1, None)}  # gates: place of the one that keeps the state, of the one that lets in


def recurrent(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> Applied:
    """Draw the state-to-state weights of recurrent layers orthogonal, one block a gate (Saxe et al., 2014)."""
    inner = initialised(model)
    found = [
        (name, *entry)
        for name, entry in trained_tensors(inner).items()
        if isinstance(entry[0], _RECURRENT) and entry[1].startswith("weight_hh")
    ]
    if not found:
        raise InapplicableError("expected a recurrent layer, got none")
    stream = streams(generator)
    with transaction(inner):
        for name, module, attribute, parameter in found:
            blocks, draw = [], stream(name)
            for block in torch.split(parameter.detach(), parameter.shape[1]):
                fresh = torch.empty(block.shape, dtype=torch.float32)  # QR knows no half precision
                blocks.append(init.orthogonal_(fresh, generator=draw))
            assign_weight(module, attribute, torch.cat(blocks))
    return Applied()


def long_memory(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> Applied:
    r"""Let the gates of LSTM and GRU layers remember over the spans that the data have.

    The keeping gate's bias is $\log u$, $u ∼ U(1, T - 1)$, an LSTM's input gate's its negative (Tallec & Ollivier,
    2018, section 3); T is the number of steps on the first batch. The other summand of those biases becomes 0.
    """
    inner = initialised(model)
    spans = _spans(inner, load_batches(batches, inner, max_batches=1)[0])
    left: dict[str, str] = {}
    stream, done = streams(generator), 0
    with transaction(inner):
        for name, (module, attribute, bias) in trained_tensors(inner).items():
            if not (isinstance(module, _RECURRENT) and attribute.startswith("bias_hh")):
                continue
            gates = bias.numel() // module.hidden_size
            span = spans.get(id(module), 0)
            if gates not in _GATES or span < 3:
                left[name] = "it has no gate that keeps" if gates not in _GATES else f"{span} time steps"
                continue
            _remember(bias, getattr(module, attribute.replace("_hh", "_ih")), gates, span, stream(name))
            done += 1
        if not done:
            raise InapplicableError("expected an LSTM or GRU with a bias and at least three time steps, got none")
    return Applied(left)


def _remember(bias: Tensor, other: Tensor, gates: int, span: int, stream: torch.Generator) -> None:
    hidden = bias.numel() // gates
    keeps, lets_in = _GATES[gates]
    values = torch.log(torch.rand(hidden, generator=stream, dtype=torch.float32) * (span - 2) + 1)
    for place, value in ((keeps, values), (lets_in, -values)):
        if place is not None:
            bias.data[place * hidden : (place + 1) * hidden] = value.to(bias)
            other.data[place * hidden : (place + 1) * hidden] = 0


def _spans(model: nn.Module, batch: Batch) -> dict[int, int]:
    """How many steps each recurrent layer makes in a forward pass; a cell as often as it is called."""
    spans: dict[int, int] = {}

    def see(call: LinearCall) -> None:
        if call.kind == "recurrent" and call.input.dim() == 3:
            spans[id(call.owner.module)] = call.input.shape[1 - (call.sample_axis or 0)]

    def count(module: nn.Module, inputs: Any) -> None:
        spans[id(module)] = spans.get(id(module), 0) + 1

    with preserve_state(model), torch.no_grad(), trace_calls(model, see):
        for module in model.modules():
            if isinstance(module, nn.RNNCellBase):
                module.register_forward_pre_hook(count)
        checked_forward(model, batch)
    return spans
