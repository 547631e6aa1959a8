"""`skip` of the initializers that go layer by layer: what it takes, and that nothing in it is without effect."""

import pytest
import torch
from torch import nn

from states import state_of
from theta0.initializers.unit_variance import unit_variance
from theta0.initializers.weight_norm_start import weight_norm_start

pytestmark = pytest.mark.parametrize("start", [unit_variance, weight_norm_start])


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Linear(4, 2)), [torch.randn(6, 5, 4)]


def test_a_module_is_left_with_all_that_is_in_it(start):
    model, batches = encoder()
    kept = {name: value.clone() for name, value in model[0].state_dict().items()}
    found = start(model, batches, skip=["0"], draw="normal", generator=0)
    assert all(torch.equal(kept[name], value) for name, value in model[0].state_dict().items())
    names = ("self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2")
    assert found.skipped == {f"0.{name}": "skipped as asked" for name in names}
    assert model(batches[0]).var().item() == pytest.approx(1, rel=0.1)


def test_a_layer_that_is_no_module_and_a_lone_layer_can_be_named(start):
    model, batches = encoder()
    before = model[0].self_attn.in_proj_weight.clone()
    start(model, batches, skip=["0.self_attn.in_proj"])
    assert torch.equal(model[0].self_attn.in_proj_weight, before)
    lone = nn.Linear(4, 2)
    before = state_of(lone)
    start(lone, batches, skip=["(model)"])
    assert state_of(lone) == before


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("skip", [["nowhere"], "0", None, [0], (name for name in ["0"])])
def test_what_names_nothing_is_refused(start, skip):
    model, batches = encoder()
    before = state_of(model)
    with pytest.raises(ValueError, match="skip: expected a collection"):
        start(model, batches, skip=skip)
    assert state_of(model) == before
