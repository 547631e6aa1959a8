"""Activation shift: the observed mean preactivation is what the angle between weights and mean activation predicts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import case, each_case, normal
from theta0._records import by_layer
from theta0.measurements import activation_shift, neuron_shifts, signals

LAYERS = {
    "linear": (nn.Linear(6, 5), (7, 6)),
    "linear without bias": (nn.Linear(6, 5, bias=False), (7, 6)),
    "linear over positions": (nn.Linear(6, 5), (7, 3, 6)),
    "conv1d": (nn.Conv1d(4, 6, 3), (5, 4, 9)),
    "conv1d strided": (nn.Conv1d(4, 6, 3, stride=2, padding=1), (5, 4, 9)),
    "conv1d same": (nn.Conv1d(4, 6, 4, padding="same", dilation=2), (5, 4, 9)),
    "conv1d valid": (nn.Conv1d(4, 6, 4, padding="valid"), (5, 4, 9)),
    "conv1d circular": (nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (5, 4, 9)),
    "conv1d circular same": (nn.Conv1d(4, 6, 4, padding="same", padding_mode="circular"), (5, 4, 9)),
    "conv2d grouped": (nn.Conv2d(4, 6, 3, groups=2, padding=1), (5, 4, 6, 7)),
    "conv2d depthwise dilated": (nn.Conv2d(4, 8, (3, 2), groups=4, dilation=(2, 1), padding=(1, 0)), (5, 4, 7, 6)),
    "conv2d strided": (nn.Conv2d(4, 6, 3, stride=(2, 3), padding=(2, 1)), (5, 4, 8, 9)),
    "conv2d reflected": (nn.Conv2d(4, 6, 3, padding=2, padding_mode="reflect"), (5, 4, 8, 9)),
    "conv3d": (nn.Conv3d(2, 4, (2, 1, 3), stride=(1, 2, 1), dilation=(2, 1, 1), groups=2), (3, 2, 6, 5, 4)),
    "conv2d unbatched": (nn.Conv2d(3, 4, 3), (3, 6, 7)),
}


@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_predicted_mean_is_the_observed_one(layer, shape):
    layer = layer.double()
    batches = [normal(*shape, seed=seed).double() + 0.7 for seed in range(2)]
    (shift,) = neuron_shifts(layer, batches).values()
    torch.testing.assert_close(shift.predicted, shift.observed, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        z = torch.cat([layer(x) for x in batches])
    units = -1 if isinstance(layer, nn.Linear) else (0 if z.dim() == layer.weight.dim() - 1 else 1)
    if shape == (3, 6, 7):
        z = torch.stack([layer(x) for x in batches]).detach()
        units = 1
    rows = z.movedim(units, -1).flatten(0, -2)
    torch.testing.assert_close(shift.observed, rows.mean(0))
    assert shift.variance == pytest.approx(rows.var(correction=0).item(), rel=1e-9)
    assert (shift.cosine.abs() <= 1 + 1e-12).all()
    torch.testing.assert_close(shift.weight_norm, layer.weight.detach().flatten(1).norm(dim=1))


def test_mean_input_is_that_of_the_unfolded_patches():
    conv = nn.Conv2d(3, 4, (2, 3), stride=2, padding=1, dilation=(1, 2)).double()
    x = normal(5, 3, 8, 9).double() + 1
    patches = F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=2)
    mu = patches.mean((0, 2))
    (shift,) = neuron_shifts(conv, [x]).values()
    torch.testing.assert_close(shift.input_mean_norm, mu.norm().expand(4))
    cosine = F.cosine_similarity(conv.weight.detach().flatten(1), mu[None])
    torch.testing.assert_close(shift.cosine, cosine)


def test_batches_of_different_sizes_are_weighed_by_their_rows():
    layer = nn.Linear(3, 2).double()
    x = normal(12, 3).double()
    (together,) = neuron_shifts(layer, [x]).values()
    (apart,) = neuron_shifts(layer, [x[:2], x[2:9], x[9:]]).values()
    torch.testing.assert_close(apart.observed, together.observed)
    assert apart.variance == pytest.approx(together.variance)


def test_matrix_product_by_a_parameter():
    shifts = neuron_shifts(case("bare").model().double(), case("bare").batches())
    assert list(shifts) == ["first", "second"]
    for shift in shifts.values():
        torch.testing.assert_close(shift.predicted, shift.observed, rtol=1e-10, atol=1e-12)


def test_zero_sum_weights_have_no_shift_on_equal_inputs():
    model = case("constrained").model().double()
    (first, *_) = neuron_shifts(model, [torch.full((4, 1, 6), 3.0).double()]).values()
    torch.testing.assert_close(first.cosine, torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(first.observed, first.bias)


def test_zero_weights_and_zero_inputs_have_cosine_zero():
    layer = nn.Linear(3, 2).double()
    nn.init.zeros_(layer.weight)
    (shift,) = neuron_shifts(layer, [torch.zeros(4, 3)]).values()
    assert shift.cosine.tolist() == [0, 0]
    torch.testing.assert_close(shift.observed, layer.bias.detach())


@each_case
def test_share_agrees_with_signals_and_prediction_holds_everywhere(case):
    shifts = neuron_shifts(case.model(), case.batches())
    kinds = dict(case.layers)
    expected = [path for path, kind in case.layers if kind in ("linear", "conv", "matmul")]
    assert [path for path in shifts if "#" not in path] == expected
    loose = case.name == "half"
    if case.name == "spectral_norm, old":
        return  # in train mode its weight is another one for every batch
    for path, shift in shifts.items():
        scale = float((shift.weight_norm * shift.input_mean_norm).max()) + 1
        assert float((shift.predicted - shift.observed).abs().max()) < (2e-3 if loose else 2e-6) * scale, path
    if "norm" in case.name or "dropout" in case.name or "transformer" in case.name or case.name == "mixed modes":
        return  # one pass draws other noise than the other
    table = by_layer(signals(case.model(), case.batches(), case.loss))
    for record in activation_shift(case.model(), case.batches()):
        if record.quantity == "shift_share" and kinds.get(record.layer) != "conv":
            assert record.value == pytest.approx(table[record.layer]["shift_share"], rel=1e-9, abs=1e-15)
