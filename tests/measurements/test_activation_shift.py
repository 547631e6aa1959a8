"""Activation shift: the observed mean preactivation is what the angle between weights and mean activation predicts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import case, each_case, normal
from theta0._records import by_layer
from theta0._records import flat as flattened
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
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3), (5, 4, 9)),
    "transposed 1d strided": (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), (5, 4, 9)),
    "transposed 1d wide stride": (nn.ConvTranspose1d(4, 6, 2, stride=5, padding=1, output_padding=3), (5, 4, 3)),
    "transposed 2d grouped": (nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=(2, 1), groups=2), (5, 4, 6, 7)),
    "transposed 2d dilated": (nn.ConvTranspose2d(3, 5, (2, 3), dilation=(3, 2), padding=(1, 2)), (5, 3, 4, 5)),
    "transposed 3d": (
        nn.ConvTranspose3d(2, 4, (2, 1, 3), stride=(1, 2, 3), padding=(1, 0, 2), groups=2),
        (3, 2, 4, 3, 4),
    ),
}


def dense_mean(layer: nn.Module, batches) -> torch.Tensor:
    """E[w·a] of every unit by the layer's whole matrix, read off by its derivative: no patch, no geometry."""
    bare = {name: p for name, p in layer.named_parameters() if name != "bias"}
    mean = torch.cat([x.unsqueeze(0) if x.dim() == 3 and len(x) == 3 else x for x in batches]).mean(0, keepdim=True)
    sample = mean[0] if mean.dim() > 3 and batches[0].dim() == 3 else mean
    zero = {} if layer.bias is None else {"bias": torch.zeros_like(layer.bias)}

    def apply(x):
        return torch.func.functional_call(layer, bare | zero, (x,))

    matrix = torch.autograd.functional.jacobian(apply, torch.zeros_like(sample))
    z = torch.tensordot(matrix, sample, sample.dim())
    axis = -1 if isinstance(layer, nn.Linear) else z.dim() - layer.weight.dim() + 1
    z = z.movedim(axis, -1).flatten(0, -2).mean(0)
    return z if layer.bias is None else z + layer.bias.detach()


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
    if not isinstance(layer, nn.modules.conv._ConvTransposeNd):
        torch.testing.assert_close(shift.weight_norm, layer.weight.detach().flatten(1).norm(dim=1))
    torch.testing.assert_close(shift.predicted, dense_mean(layer, batches))


def test_mean_input_is_that_of_the_unfolded_patches():
    conv = nn.Conv2d(3, 4, (2, 3), stride=2, padding=1, dilation=(1, 2)).double()
    x = normal(5, 3, 8, 9).double() + 1
    patches = F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=2)
    mu = patches.mean((0, 2))
    (shift,) = neuron_shifts(conv, [x]).values()
    torch.testing.assert_close(shift.input_mean_norm, mu.norm().expand(4))
    cosine = F.cosine_similarity(conv.weight.detach().flatten(1), mu[None])
    torch.testing.assert_close(shift.cosine, cosine)


def test_mean_input_of_a_transposed_convolution_is_that_of_the_patches_of_the_spread_out_input():
    layer = nn.ConvTranspose2d(3, 4, (2, 3), stride=2, padding=1).double()
    x = normal(5, 3, 6, 7).double() + 1
    spread = torch.zeros(5, 3, 11, 13).double()
    spread[:, :, ::2, ::2] = x
    patches = F.unfold(F.pad(spread, (1, 1, 0, 0)), (2, 3))  # the kernel's size less one less the padding
    (shift,) = neuron_shifts(layer, [x]).values()
    torch.testing.assert_close(shift.input_mean_norm, patches.mean((0, 2)).norm().expand(4))
    torch.testing.assert_close(shift.weight_norm, layer.weight.detach().transpose(0, 1).flatten(1).norm(dim=1))


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
    expected = [path for path, kind in case.layers if kind in ("linear", "conv", "conv_transpose", "matmul")]
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
        if record.quantity == "shift_share" and kinds.get(record.layer) not in ("conv", "conv_transpose"):
            assert record.value == pytest.approx(table[record.layer]["shift_share"], rel=1e-9, abs=1e-15)


def test_watching_the_shift_while_training_changes_nothing_and_shows_it():
    """The recipe of the documentation: a function called every so many steps, no callback."""

    def trained(watched: bool) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Sigmoid(), nn.Dropout(0.1), nn.Linear(16, 16), nn.BatchNorm1d(16))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        x, history = normal(32, 6), []
        for step in range(20):
            if watched and step % 5 == 0:
                history.append(flattened(activation_shift(model, [x])))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return [*model.parameters(), *model.buffers()], history

    plain, _ = trained(watched=False)
    watched, history = trained(watched=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert len(history) == 4
    assert all(set(row) == set(history[0]) and 0 <= row["3/shift_share"] <= 1 for row in history)
    assert history[0]["3/shift_share"] != history[-1]["3/shift_share"]


def test_it_costs_one_forward_pass_a_batch():
    class Counted(nn.Linear):
        calls = 0

        def forward(self, x):
            Counted.calls += 1
            return super().forward(x)

    activation_shift(Counted(6, 3), [normal(5, 6)] * 3, max_batches=1)
    assert Counted.calls == 1
