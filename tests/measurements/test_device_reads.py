"""How often a diagnosis waits for a device: counted on the CPU, as if model and data lay elsewhere."""

import importlib

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cases import case, normal
from theta0 import _moments, diagnose
from theta0.measurements import signals

USERS = [
    importlib.import_module(f"theta0.{name}")
    for name in (
        "_losses",
        "measurements.signals",
        "measurements.parameters",
        "measurements.outputs",
        "diagnosis.rules.no_signal",
    )
]
WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten._unique2.default,
}


def storage(tensor):
    return tensor.untyped_storage()._cdata


class Elsewhere(TorchDispatchMode):
    """Everything that is made of what lies elsewhere lies there too, but for what is fetched; reads are counted."""

    def __init__(self, tensors, monkeypatch):
        super().__init__()
        self.kept, self.reads, self.fetching = list(tensors), 0, False
        self.away = {storage(tensor) for tensor in self.kept}
        for module in (_moments, *USERS):
            for name in ("readable", "fetched"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, getattr(self, name))
        listed = Tensor.tolist

        def tolist(tensor):
            with monkeypatch.context() as once:  # a function mode calls it again
                once.setattr(Tensor, "tolist", listed)
                self.reads += not self.readable(tensor)
                return listed(tensor)

        monkeypatch.setattr(Tensor, "tolist", tolist)

    def readable(self, tensor):
        return storage(tensor) not in self.away

    def fetched(self, tensors):
        self.reads += any(not self.readable(tensor) for tensor in tensors)
        self.fetching = True
        found = [tensor.detach().clone() for tensor in tensors]
        self.fetching = False
        return found

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        given = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
        if not self.fetching and any(not self.readable(tensor) for tensor in given):
            mask = function is torch.ops.aten.index.Tensor and any(i.dtype == torch.bool for i in given[1:])
            self.reads += mask or function in WAITING
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            self.kept += made  # so that no storage takes another's place
            self.away |= {storage(tensor) for tensor in made}
        return result


def network(depth):
    torch.manual_seed(0)
    layers = [part for _ in range(depth - 1) for part in (nn.Linear(16, 16), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def waits(depth, batches, monkeypatch):
    """How often the passes of a diagnosis wait, and what is measured of them."""
    model = network(depth)
    data = [(normal(8, 16, seed=number), torch.arange(8) % 3) for number in range(batches)]
    with monkeypatch.context() as patched:
        lying = [*model.parameters(), *(leaf for batch in data for leaf in batch)]
        with Elsewhere(lying, patched) as elsewhere:
            signals(model, data, "cross_entropy")
        return elsewhere.reads


def test_no_layer_is_waited_for_and_a_batch_at_most_three_times(monkeypatch):
    shallow, deep = (waits(depth, 1, monkeypatch) for depth in (3, 13))
    assert shallow == deep <= 15
    assert waits(3, 4, monkeypatch) - shallow <= 3 * 3


def test_what_is_read_at_once_is_what_is_read_one_by_one(monkeypatch):
    model = network(4)
    with torch.no_grad():
        model[2].weight[3] = model[2].weight[7]  # a repeated unit
        model[2].bias[3] = model[2].bias[7]
    data = [(normal(8, 16, seed=number), torch.arange(8) % 3) for number in range(3)]
    plain = signals(model, data, "cross_entropy")
    with monkeypatch.context() as patched, Elsewhere([*model.parameters(), *(x for b in data for x in b)], patched):
        found = signals(model, data, "cross_entropy")
    assert [(r.layer, r.quantity) for r in found] == [(r.layer, r.quantity) for r in plain]
    assert [r.value for r in found] == pytest.approx([r.value for r in plain], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "transformer, batch first", "two inputs"])
def test_what_rules_ask_of_the_data_is_read_a_few_times(name, monkeypatch):
    """For two batches, of which the passes take 17; no layer and no leaf of the data is asked by itself."""
    known = case(name)
    model, data = known.model(), known.batches()
    leaves = [leaf for leaf in tree_leaves(data) if isinstance(leaf, Tensor)]
    with monkeypatch.context() as patched, Elsewhere([*model.parameters(), *model.buffers(), *leaves], patched) as both:
        diagnose(model, data, known.loss, probe_steps=0)
    assert both.reads <= 28
