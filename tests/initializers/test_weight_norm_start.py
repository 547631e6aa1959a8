"""Weight normalization's start: mean 0 and variance 1 of every unit, silent ones guarded, all or nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

from cases import case, each_case, flat, normal
from references import Kept, call, doubled
from states import randomness, state_of
from theta0._models import unwrapped
from theta0.initializers import WeightNormStart, initialize, unit_variance_, weight_norm_start_
from theta0.parametrizations import centered_weight_norm, linearly_constrained

SHAPES = {
    "linear": (lambda: nn.Linear(6, 5), (40, 6)),
    "positions": (lambda: nn.Linear(6, 5), (10, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1, groups=2), (10, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2), (10, 3, 7, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), (6, 2, 4, 5, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), (10, 4, 5)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(3, 2, (2, 3), padding=1), (10, 3, 5, 4)),
}
WRAPS = {
    "plain": lambda layer: layer,
    "weight norm": parametrizations.weight_norm,
    "weight norm of the whole": lambda layer: parametrizations.weight_norm(layer, dim=None),
    "centred": centered_weight_norm,
    "constrained": linearly_constrained,
}


def started(model: nn.Module, batches, **options) -> WeightNormStart:
    return initialize("weight-norm-start", model, batches, **options)


def by_unit(model: nn.Module, batches) -> dict[str, torch.Tensor]:
    """[rows, units] per layer by an independent route: outputs kept whole by module hooks."""
    kept = Kept(model)
    for batch in batches:
        kept.counts.clear()
        call(model, batch if isinstance(batch, torch.Tensor) else doubled(batch)[0], labelled=False)
    rows: dict[str, list[torch.Tensor]] = {}
    for name, outputs in kept.outputs.items():
        module = kept.modules[name]
        if isinstance(module, nn.Embedding):
            continue
        axis = 1 if isinstance(module, nn.modules.conv._ConvNd) else -1
        rows.setdefault(name.partition("#")[0], []).extend(t.detach().movedim(axis, -1).flatten(0, -2) for t in outputs)
    return {name: torch.cat(parts) for name, parts in rows.items()}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
@pytest.mark.parametrize(("build", "shape"), SHAPES.values(), ids=SHAPES.keys())
def test_every_unit_of_every_kind_of_layer_is_standard(build, shape, wrap):
    torch.manual_seed(0)
    model = nn.Sequential(wrap(build()), nn.Sigmoid()).double()
    nn.init.normal_(model[0].bias)
    x = normal(*shape).double() + 0.4
    found = started(model, [x])
    assert found == WeightNormStart(found.scales, {}, (), {}, (), 2)
    z = model[0](x).detach().movedim(-1 if isinstance(model[0], nn.Linear) else 1, -1).flatten(0, -2)
    torch.testing.assert_close(z.mean(0), torch.zeros_like(z[0]), atol=1e-12, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones_like(z[0]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, centered_weight_norm])
def test_gains_and_biases_are_the_sources_formula_and_directions_stay(wrap):
    torch.manual_seed(0)
    x = normal(64, 8).double() + 0.5
    layer = wrap(nn.Linear(8, 4)).double()
    direction = layer.parametrizations.weight.original1.detach().clone()
    v = direction - direction.mean(1, keepdim=True) if wrap is centered_weight_norm else direction
    t = x @ (v / v.norm(dim=1, keepdim=True)).T
    started(layer, [x])
    torch.testing.assert_close(layer.parametrizations.weight.original0[:, 0], 1 / t.std(0, correction=0))
    torch.testing.assert_close(layer.bias, -t.mean(0) / t.std(0, correction=0))
    assert torch.equal(layer.parametrizations.weight.original1, direction)


def test_layers_are_standardised_in_execution_order():
    model = case("functional").model().double()
    assert list(started(model, case("functional").batches()).scales) == ["first", "middle", "last"]


@pytest.mark.parametrize("name", ["mlp", "cnn", "other convolutions", "residual", "weight_norm", "constrained"])
def test_networks_are_standard_over_several_batches_together(name):
    model = case(name).model().double()
    found = started(model, case(name).batches(), max_batches=None)
    assert found.unconverged == ()
    for path, z in by_unit(model, case(name).batches()).items():
        units = [u for u in range(z.shape[1]) if u not in found.guarded.get(path, ())]
        assert (z.std(0, correction=0)[units] - 1).abs().max() < 0.1, path
        if path not in found.unshifted:
            assert z.mean(0)[units].abs().max() < 0.1, path


def test_a_layer_called_twice_is_standard_over_its_calls():
    model = case("twice").model().double()
    assert started(model, case("twice").batches()).unconverged == ()
    z = by_unit(model, case("twice").batches()[:1])["shared"]
    assert (z.std(0, correction=0) - 1).abs().max() < 0.1
    assert z.mean(0).abs().max() < 0.1


def with_silent_channels(active: bool) -> torch.Tensor:
    x = normal(64, 8, 16)
    if not active:
        x[:, 5:] = 0
    return x


@pytest.mark.parametrize("wrap", [lambda layer: layer, parametrizations.weight_norm])
def test_channels_silent_in_the_first_batch_do_not_explode_later(wrap):
    torch.manual_seed(0)
    first = nn.Conv1d(8, 8, 3, padding=1, groups=8)
    silent = first.weight[5:].detach().clone()
    model = nn.Sequential(wrap(first), nn.ReLU(), wrap(nn.Conv1d(8, 32, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(448, 1))
    found = started(model, [with_silent_channels(active=False)])
    assert found.guarded == {"0": (5, 6, 7)}
    torch.testing.assert_close(model[0].weight[5:], silent)
    assert not model[0].bias[5:].any()
    assert model(with_silent_channels(active=True)).abs().max() < 100


def test_a_unit_that_hardly_varies_is_guarded_by_the_floor():
    torch.manual_seed(0)
    x = normal(50, 3)
    x[:, 2] *= 1e-3
    layer = nn.Linear(3, 3)
    nn.init.eye_(layer.weight)
    assert started(layer, [x]).guarded == {"(model)": (2,)}
    nn.init.eye_(layer.weight)
    assert started(layer, [x], floor=1e-5).guarded == {}
    torch.testing.assert_close(layer(x).std(0, correction=0), torch.ones(3), rtol=1e-4, atol=0)


def test_a_constant_far_from_zero_is_not_taken_for_a_variation():
    layer = nn.Linear(2, 2)
    nn.init.eye_(layer.weight)
    x = torch.stack([normal(40), torch.full((40,), 1e4) + 1e-4 * normal(40, seed=1)], 1)
    assert started(layer, [x], floor=0.0).guarded == {"(model)": (1,)}
    assert layer(x).abs().max() < 10


def test_layers_without_a_bias_that_can_be_set_keep_their_means():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2)).double()
    nn.init.constant_(model[2].bias, 0.7)
    model[2].bias.requires_grad_(False)
    x = normal(30, 4).double() + 1
    found = started(model, [x], skip=["2"])
    assert found.unshifted == ("0",)
    assert found.skipped == {"2": "skipped as asked"}
    z = by_unit(model, [x])["0"]
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(3).double())
    assert z.mean(0).abs().max() > 0.1


def test_frozen_layers_embeddings_and_recurrent_layers_are_left_alone():
    assert started(case("frozen").model(), flat()).skipped == {"0": "frozen"}
    assert set(started(case("gru").model(), case("gru").batches()).skipped) == {"embed", "rnn"}


@pytest.mark.parametrize(("value", "what"), [(0.0, "does not vary"), (float("nan"), "is not finite")])
def test_a_layer_of_which_no_unit_varies_is_an_error_and_restores(value, what):
    model = case("mlp").model()
    nn.init.constant_(model[2].weight, value)
    before, drawn = state_of(model), randomness()
    with pytest.raises(ValueError, match=rf"weight_norm_start_: layer '2'.*{what}.*skip=\['2'\]"):
        weight_norm_start_(model, flat())
    assert state_of(model) == before
    assert randomness() == drawn


def test_one_sample_is_an_error():
    with pytest.raises(ValueError, match="does not vary"):
        weight_norm_start_(nn.Linear(3, 2), [normal(1, 3)])


def test_spectral_norm_cannot_be_scaled_and_is_restored():
    c = case("spectral_norm")
    model = c.model()
    before = state_of(model)
    with pytest.raises(ValueError, match=r"weight_norm_start_: layer '0'.*parametrization.*skip"):
        weight_norm_start_(model, c.batches())
    assert state_of(model) == before


def test_constrained_weights_keep_their_zero_sums():
    model = case("constrained").model().double()
    started(model, case("constrained").batches())
    for layer in (model[0], model[3]):
        assert layer.weight.flatten(1).sum(1).abs().max() < 1e-12


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x + 1, x.flip(0))[0]


@pytest.mark.parametrize("start", [unit_variance_, weight_norm_start_])
def test_the_parts_of_a_packed_weight_are_scaled_apart(start):
    torch.manual_seed(0)
    model = CrossAttention().double()
    model.attention.in_proj_weight.data[8:16] *= 7
    x = normal(5, 6, 8).double()
    start(model, [x])
    q, k, v = (
        z.flatten(0, -2)
        for z in (
            x @ model.attention.in_proj_weight[:8].T,
            (x + 1) @ model.attention.in_proj_weight[8:16].T,
            x.flip(0) @ model.attention.in_proj_weight[16:].T,
        )
    )
    for z in (q, k, v):
        found = z.std(correction=0) if start is unit_variance_ else z.std(0, correction=0)
        torch.testing.assert_close(found, torch.ones_like(found), atol=0.03, rtol=0)


def test_draws_are_repeatable_and_of_the_sources_size():
    first, again = (nn.Sequential(parametrizations.weight_norm(nn.Linear(40, 50))) for _ in range(2))
    drawn = randomness()
    for model in (first, again):
        weight_norm_start_(model, [normal(64, 40)], draw="normal", generator=3)
    assert randomness() == drawn
    torch.testing.assert_close(first[0].weight, again[0].weight)
    assert first[0].parametrizations.weight.original1.std().item() == pytest.approx(0.05, rel=0.1)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4), st.lists(st.floats(0.5, 2), min_size=4, max_size=4))
def test_the_start_forgets_scales_and_biases(biases, scales):
    """Scales near each other: a unit that varies far less than its layer counts as silent and keeps its size."""
    torch.manual_seed(0)
    plain, changed = (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double() for _ in range(2))
    changed.load_state_dict(plain.state_dict())
    with torch.no_grad():
        changed[0].weight.mul_(torch.tensor(scales).double()[:, None])
        changed[0].bias.copy_(torch.tensor(biases).double())
    x = normal(20, 6).double()
    for model in (plain, changed):
        weight_norm_start_(model, [x])
    torch.testing.assert_close(plain(x), changed(x), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draw": "uniform"}, "draw: expected None, 'normal' or 'orthogonal'"),
        ({"floor": -0.1}, "floor: expected a share"),
        ({"floor": float("nan")}, "floor: expected a share"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        weight_norm_start_(case("mlp").model(), flat(), **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = case("mlp").model().to(dtype)
    assert started(model, [(normal(64, 6), None)]).unconverged == ()


@each_case
def test_every_case_is_started_or_restored_with_a_reason(case):
    model = case.model()
    before = state_of(unwrapped(model))
    try:
        weight_norm_start_(model, case.batches())
    except ValueError:
        assert case.name in ("spectral_norm", "lazy", "zero head")
        assert state_of(unwrapped(model)) == before
