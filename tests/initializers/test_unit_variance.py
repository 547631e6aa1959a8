"""The unit-variance start: every layer, the first included, in execution order; what must stay stays."""

import pytest
import torch
from torch import nn

from cases import case, each_case, flat, normal
from references import Kept, call, doubled
from states import randomness, state_of
from theta0._models import unwrapped
from theta0.initializers import UnitVariance, initialize, unit_variance_

NAMES = (
    "mlp", "single linear", "cnn", "other convolutions", "residual", "tied", "twice", "functional", "two inputs",
    "tuple output", "checkpointed", "weight_norm", "constrained", "in place", "regression", "own loss",
)  # fmt: skip
each_scalable = pytest.mark.parametrize("case", [case(name) for name in NAMES], ids=NAMES)


def scaled(model: nn.Module, batches, **options) -> UnitVariance:
    return initialize("unit-variance", model, batches, **options)


def deviations(model: nn.Module, batches) -> dict[str, float]:
    """Pooled over calls, by an independent route: outputs kept whole by module hooks."""
    kept = Kept(model)
    for batch in batches:
        kept.counts.clear()
        call(model, doubled(batch)[0], labelled=False)
    joined: dict[str, list[torch.Tensor]] = {}
    for name, outputs in kept.outputs.items():
        if not isinstance(kept.modules[name], nn.Embedding):
            joined.setdefault(name.partition("#")[0], []).extend(t.detach().flatten() for t in outputs)
    return {name: torch.cat(outputs).std(correction=0).item() for name, outputs in joined.items()}


@each_scalable
@pytest.mark.parametrize("std", [1.0, 0.3])
def test_every_layer_has_the_wanted_deviation(case, std):
    model = case.model().double()
    report = scaled(model, case.batches(), std=std)
    assert report.unconverged == ()
    for path, deviation in deviations(model, case.batches()).items():
        assert deviation == pytest.approx(std, rel=0.1), path
        assert report.deviations[path] == pytest.approx(deviation, rel=1e-6)


@each_scalable
def test_layers_are_visited_in_execution_order_the_first_included(case):
    expected = [path for path, kind in case.layers if kind != "embedding"]
    assert list(scaled(case.model(), case.batches()).deviations) == expected


@each_scalable
def test_only_values_change(case):
    model = case.model()
    before, drawn = state_of(model), randomness()
    scaled(model, case.batches())
    after = state_of(model)
    assert randomness() == drawn
    assert list(after) == list(before)
    for name, value in after.items():
        if isinstance(value, tuple) and len(value) == 7:  # a tensor
            assert value[0] == before[name][0], f"{name} is another tensor"
            assert value[3:] == before[name][3:]
        else:
            assert value == before[name], name


def test_directions_are_kept_and_biases_are_zero():
    model, plain = case("mlp").model(), case("mlp").model()
    report = scaled(model, flat())
    for path in ("0", "2", "4"):
        layer, before = model[int(path)], plain[int(path)]
        torch.testing.assert_close(layer.weight, before.weight * report.scales[path])
        assert report.scales[path] > 0
        assert not layer.bias.any()


def test_twice_is_once():
    model = case("mlp").model()
    scaled(model, flat())
    before = [p.clone() for p in model.parameters()]
    scaled(model, flat())
    torch.testing.assert_close(list(model.parameters()), before, rtol=0.02, atol=0)


def test_frozen_layers_are_left_alone_and_told():
    model = case("frozen").model()
    before = model[0].weight.clone()
    report = scaled(model, flat())
    assert torch.equal(model[0].weight, before)
    assert not model[0].weight.requires_grad
    assert report.skipped == {"0": "frozen"}
    assert set(report.deviations) == {"2", "4"}


def test_a_frozen_bias_is_kept():
    model = case("mlp").model()
    model[0].bias.requires_grad_(False)
    bias = model[0].bias.clone()
    scaled(model, flat())
    assert torch.equal(model[0].bias, bias)


def test_a_bias_of_a_layer_that_needs_no_scaling_becomes_zero_too():
    model = case("mlp").model()
    scaled(model, flat())
    nn.init.constant_(model[2].bias, 0.5)
    scaled(model, flat())
    assert not model[2].bias.any()


def test_tied_weights_are_scaled_once_and_stay_tied():
    model = case("tied").model()
    rows = model.embed.weight.clone()
    scaled(model, case("tied").batches())
    assert model.head.weight is model.embed.weight
    ratio = model.embed.weight / rows
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))


def test_two_layers_that_share_a_weight_stay_tied_and_are_right_together():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    model[2].weight = model[0].weight
    scaled(model, flat())
    assert model[2].weight is model[0].weight
    found = deviations(model, flat())
    assert ((found["0"] ** 2 + found["2"] ** 2) / 2) ** 0.5 == pytest.approx(1, rel=0.1)


def test_skipped_layers_are_told():
    model = case("mlp").model()
    before = model[2].weight.clone()
    assert scaled(model, flat(), skip=["2"]).skipped == {"2": "skipped as asked"}
    assert torch.equal(model[2].weight, before)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_embeddings_and_fused_recurrent_layers_are_left_alone(name):
    model = case(name).model()
    before = {n: p.clone() for n, p in model.named_parameters()}
    assert set(scaled(model, case(name).batches()).skipped) == {"embed", "rnn"}
    assert all(n.startswith("head") or torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_attention_projections_are_scaled():
    c = case("transformer, batch first")
    report = scaled(c.model().eval(), c.batches())
    assert report.unconverged == ()
    assert {path for path, kind in c.layers if kind == "linear"} == set(report.deviations)


@pytest.mark.parametrize("broken", ["0", "2"])
@pytest.mark.parametrize(("value", "what"), [(0.0, "does not vary"), (float("nan"), "is not finite")])
def test_an_output_that_cannot_be_scaled_is_an_error_that_names_the_layer_and_restores(broken, value, what):
    model = case("mlp").model()
    nn.init.constant_(model[int(broken)].weight, value)
    before, drawn = state_of(model), randomness()
    with pytest.raises(ValueError, match=rf"layer '{broken}'.*{what}.*skip=\['{broken}'\]"):
        unit_variance_(model, flat())
    assert state_of(model) == before
    assert randomness() == drawn


def test_equal_units_on_equal_samples_do_not_vary_whatever_their_biases():
    model = case("mlp").model()
    nn.init.constant_(model[0].weight, 0.1)
    with pytest.raises(ValueError, match="layer '0'"):
        unit_variance_(model, [(torch.full((4, 6), 0.3), torch.zeros(4))])


def test_spectral_norm_cannot_be_scaled_and_is_restored():
    c = case("spectral_norm")
    model = c.model()
    before = state_of(model)
    with pytest.raises(ValueError, match=r"layer '0'.*parametrization.*skip"):
        unit_variance_(model, c.batches())
    assert state_of(model) == before
    assert set(scaled(model, c.batches(), skip=["0", "2"]).deviations) == {"4"}


@pytest.mark.parametrize("name", ["weight_norm, old", "spectral_norm, old"])
def test_weights_recomputed_by_hooks_are_left_alone_and_told(name):
    report = scaled(case(name).model(), case(name).batches())
    assert set(report.skipped) == {"0", "2"}
    assert set(report.deviations) == {"4"}


def test_linearly_constrained_weights_keep_their_zero_sums():
    model = case("constrained").model().double()
    scaled(model, case("constrained").batches())
    for layer in (model[0], model[3]):
        assert layer.weight.flatten(1).sum(1).abs().max() < 1e-12


def test_what_cannot_converge_is_told():
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 4, bias=False), 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x * 10.0 ** (self.calls**2 % 5))  # never in the same proportion

    torch.manual_seed(0)
    report = scaled(Moving(), [normal(5, 4), normal(5, 4)])
    assert report.unconverged == ("layer",)
    assert report.sweeps == 10


def test_buffers_stay():
    model = case("norm and dropout").model()
    before = [b.clone() for b in model.buffers()]
    scaled(model, flat())
    assert all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("draw", ["normal", "orthogonal", None])
def test_half_precision(dtype, draw):
    model = case("mlp").model().to(dtype)
    assert scaled(model, flat(), draw=draw, generator=0).unconverged == ()
    assert model[0].weight.dtype == dtype


@pytest.mark.parametrize("draw", ["normal", "orthogonal"])
def test_draws_are_repeatable_and_leave_the_global_generator(draw):
    first, again, other = (case("mlp").model() for _ in range(3))
    drawn = randomness()
    unit_variance_(first, flat(), draw=draw, generator=1)
    unit_variance_(again, flat(), draw=draw, generator=1)
    unit_variance_(other, flat(), draw=draw, generator=torch.Generator().manual_seed(9))
    assert randomness() == drawn
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first[0].weight, other[0].weight)
    if draw == "orthogonal":
        w = first[2].weight
        torch.testing.assert_close(w @ w.T, (w[0] @ w[0]) * torch.eye(8), atol=1e-4, rtol=1e-4)


def test_a_draw_does_not_depend_on_the_other_layers():
    alone, among = case("mlp").model(), case("mlp").model()
    unit_variance_(alone, flat(), draw="normal", generator=1, skip=["2"])
    unit_variance_(among, flat(), draw="normal", generator=1)
    assert torch.equal(alone[0].weight, among[0].weight)


@pytest.mark.parametrize("name", ["mlp", "cnn", "constrained", "weight_norm", "bare", "tied", "twice"])
def test_every_kind_of_weight_can_be_drawn_anew(name):
    model = case(name).model()
    for p in model.parameters():
        if p.dim() > 1 and name in ("mlp", "cnn"):
            nn.init.zeros_(p)
    assert scaled(model, case(name).batches(), draw="normal", generator=0).unconverged == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"std": 0.0}, "std: expected a positive number, got 0"),
        ({"std": float("nan")}, "std: expected a positive number"),
        ({"draw": "uniform"}, "draw: expected None, 'normal' or 'orthogonal', got 'uniform'"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        unit_variance_(case("mlp").model(), flat(), **options)


def test_a_lazy_model_is_an_error_that_says_what_to_do():
    model = case("lazy").model()
    with pytest.raises(ValueError, match=r"lazy ones \(0.weight.*model\(inputs\)"):
        unit_variance_(model, flat())
    assert isinstance(model[0].weight, nn.UninitializedParameter)


@pytest.mark.parametrize("phi", [nn.Sigmoid(), nn.ReLU(), nn.Tanh()])
def test_deep_networks_come_to_unit_variance(phi):
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(20) for part in (nn.Linear(16, 16), phi)), nn.Linear(16, 3))
    assert scaled(model, [normal(32, 16)]).unconverged == ()


@each_case
def test_every_case_is_scaled_or_restored_with_a_reason(case):
    model = case.model()
    before = state_of(unwrapped(model))
    try:
        unit_variance_(model, case.batches())
    except ValueError:
        assert case.name in ("spectral_norm", "lazy", "zero head")
        assert state_of(unwrapped(model)) == before
