import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from cases import CASES, case, each_case, normal
from states import randomness, state_of
from theta0._batches import load_batches, with_shapes
from theta0._models import main_output, unwrapped
from theta0._state import twice_differentiable
from theta0.measurements import perturbation_noise, perturbed_outputs
from theta0.measurements.perturbation_noise import draw, gram_is_cheaper, gram_route, noise_from
from theta0.measurements.perturbed_calls import PerturbedCalls
from theta0.measurements.perturbed_outputs import neighbourhood, sampled

SEPARATE = {"lstm", "gru", "spectral_norm, old", "spectral_norm", "constrained"}  # one pass cannot hold these


def prepared(c):
    model = unwrapped(c.model())
    batch = load_batches(c.batches(), model)[0]
    return with_shapes(model, batch), batch.inputs


def called(model, parameters, inputs):
    parameters = parameters | {name: b.clone() for name, b in model.named_buffers()}  # some move at every pass
    if isinstance(inputs, dict):
        return functional_call(model, parameters, (), {k: v for k, v in inputs.items() if k != "labels"})
    return functional_call(model, parameters, inputs if isinstance(inputs, tuple) else (inputs,))


@pytest.mark.parametrize("c", [c for c in CASES if c.name not in {"half", "own loss"}], ids=lambda c: c.name)
def test_explicit_perturbations_are_those_of_separate_models(c):
    model, inputs = prepared(c)
    seeds = torch.tensor([3, 1, 4, 1, 5])
    with twice_differentiable(model):
        around = neighbourhood(model, inputs, 0.7)
        assert (around.obstacle is not None) == (c.name in SEPARATE)
        together = sampled(around, inputs, seeds, prefer="explicit").logits
        noise = noise_from(around.deviations, seeds)
        trained = dict(model.named_parameters())
        rebuilt = _draws_in_order(model, inputs, around, noise)
        apart = torch.stack([
            main_output(called(model, {n: p + rebuilt[n][i] for n, p in trained.items() if n in rebuilt}, inputs))
            for i in range(5)
        ])  # fmt: skip
        torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-4 * float(apart.detach().abs().max()))
        torch.testing.assert_close(together[1], together[3], rtol=1e-3, atol=1e-4)  # equal seeds, equal models
        weights = torch.linspace(-1, 1, together.numel()).view_as(together)
        trained = [p for p in model.parameters() if p.requires_grad]
        one, other = (
            torch.autograd.grad((outputs * weights).sum(), trained, allow_unused=True, materialize_grads=True)
            for outputs in (together, apart)
        )
    largest = max(float(g.abs().max()) for g in other)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * largest)


def _draws_in_order(model, inputs, around, noise):
    """The noise that a pass draws, in the order of the parameters' uses."""
    trained = {n: p for n, p in model.named_parameters() if id(p) in around.names}
    if around.obstacle is not None:
        return {n: draw(noise, p) for n, p in trained.items()}
    calls = PerturbedCalls(
        noise, around.names, len(_first(inputs)), prefer="explicit", reused=frozenset(), layouts=around.layouts
    )
    with torch.no_grad(), calls.perturbed():
        given = calls.inputs(inputs)
        named = {k: v for k, v in given.items() if k != "labels"} if isinstance(given, dict) else {}
        _ = model(**named) if named else model(*given) if isinstance(given, tuple) else model(given)
    return {n: noise.drawn[id(p)] for n, p in trained.items() if id(p) in noise.drawn}


def _first(inputs):
    return (
        next(iter(inputs.values())) if isinstance(inputs, dict) else inputs[0] if isinstance(inputs, tuple) else inputs
    )


def test_deviations_follow_fan_in_and_fan_out():
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2), nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 4, 2), nn.Flatten(), nn.Linear(100, 3)
    )
    around = neighbourhood(model, normal(4, 2, 6, 6), 2.0)
    found = {around.names[key]: 2.0 / value for key, value in around.deviations.items()}
    squares = {name: round(value**2) for name, value in found.items()}
    assert squares == {
        "0.weight": 9, "0.bias": 6, "1.weight": 6, "1.bias": 6, "2.weight": 24, "2.bias": 4, "4.weight": 100,
        "4.bias": 3,
    }  # fmt: skip


@pytest.mark.parametrize("shared", [True, False])
def test_gram_route_has_the_covariance_of_drawn_weights(shared):
    h = normal(2, 3, 40).double() if not shared else normal(3, 40).double()
    weight, bias = normal(2, 40, seed=1).double(), normal(2, seed=2).double()
    count = 40_000
    source = h if shared else h[0].expand(count, 3, 40)
    noise = noise_from({}, torch.arange(count))
    z = gram_route(source, weight, bias, 0.3, 0.5, noise, "layer")
    h = h if shared else h[0]
    expected = 0.09 * h @ h.T + 0.25
    for unit in range(2):
        difference = z[:, :, unit].T.cov() - expected
        assert float(difference.abs().max()) < 5 * float(expected.diagonal().max()) * (2 / count) ** 0.5
    assert float((z[:, :, 0] * z[:, :, 1]).mean(0).sub(z[:, :, 0].mean(0) * z[:, :, 1].mean(0)).abs().max()) < 0.1
    assert float((z.mean(0) - F.linear(h, weight, bias)).abs().max()) < 5 * float(expected.max() / count) ** 0.5


def test_threads_that_draw_noise_change_no_number():
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            noise = noise_from({}, torch.arange(64))
            found.append(perturbation_noise.normal(noise, (16, 392), torch.zeros(1)))
    finally:
        torch.set_num_threads(threads)
    assert found[0].numel() > perturbation_noise._MANY
    assert torch.equal(*found)
    alone = torch.empty(16, 392).normal_(generator=torch.Generator().manual_seed(7))
    assert torch.equal(found[1][7], alone)


def test_gram_route_differentiates_like_autograd():
    noise = noise_from({}, torch.arange(3))

    def function(h, w, b):
        for generator, seed in zip(noise.generators, range(3), strict=True):
            generator.manual_seed(seed)
        return gram_route(h, w, b, 0.6, 0.2, noise, "layer")

    many, one = normal(3, 4, 5).double().requires_grad_(), normal(4, 5).double().requires_grad_()
    weight, bias = normal(2, 5, seed=1).double().requires_grad_(), normal(2, seed=2).double().requires_grad_()
    assert torch.autograd.gradcheck(function, (many, weight, bias))
    assert torch.autograd.gradcheck(function, (one, weight, bias))


def test_duplicate_and_dead_inputs_have_a_factor_and_equal_outputs():
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 20, bias=False))
    with torch.no_grad():
        model[2].bias.fill_(-100.0)  # dead inputs to a layer without bias: K = 0
    row = normal(1, 30)
    found = perturbed_outputs(model, row.expand(6, 30), perturbations=50, generator=0, prefer="gram")
    assert set(found.routes.values()) == {"gram"}
    spread = found.logits.std(1)
    assert float(spread.detach().max()) <= 0.02 * float(found.logits.detach().std()) + 1e-6


def test_the_route_is_chosen_by_counted_cost_and_shown():
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 2))
    routes = perturbed_outputs(model, normal(32, 300), perturbations=4, generator=0).routes
    assert routes == {
        "0.weight": "gram", "0.bias": "gram", "2.weight": "gram", "2.bias": "gram", "4.weight": "explicit",
        "4.bias": "explicit",
    }  # fmt: skip
    assert gram_is_cheaper(32, 784, 392)
    assert not gram_is_cheaper(32, 392, 2)
    assert not gram_is_cheaper(32 * 28 * 28, 9, 16)


def test_a_weight_used_twice_is_drawn_once():
    routes = perturbed_outputs(case("twice").model(), normal(2, 6), perturbations=3, generator=0, prefer="gram").routes
    assert routes == {
        "shared.weight": "explicit",
        "shared.bias": "explicit",
        "head.weight": "gram",
        "head.bias": "gram",
    }


@pytest.mark.parametrize("name", ["mlp", "norm and dropout", "cnn"])
def test_memory_bounds_split_the_work_and_change_nothing(name):
    model, inputs = prepared(case(name))
    results = []
    for memory in (2**30, 2000):
        found = perturbed_outputs(model, inputs, perturbations=12, generator=4, memory=memory)
        results.append(
            (found.chunks, found.logits, torch.autograd.grad(found.logits.square().sum(), model.parameters()))
        )
    assert results[0][0] == 1 < results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1])
    for one, other in zip(results[0][2], results[1][2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_vanishing_scale_gives_the_models_own_outputs():
    model, inputs = prepared(case("norm and dropout"))
    found = perturbed_outputs(model, inputs, perturbations=3, scale=0.0, generator=0).logits
    again = perturbed_outputs(model, inputs, perturbations=5, scale=0.0, generator=9).logits
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[0], again[4])


def test_frozen_parameters_are_not_perturbed():
    model = nn.Linear(4, 3).requires_grad_(False)
    model.bias.requires_grad_(True)
    found = perturbed_outputs(model, normal(5, 4), perturbations=6, generator=0)
    moved = found.logits - model(normal(5, 4))
    torch.testing.assert_close(moved, moved[:, :1].expand_as(moved))  # a bias moves all samples alike
    assert set(found.routes) == {"bias"}


@pytest.mark.sampled(8)
@each_case
def test_the_model_and_the_random_state_are_left_as_they_were(case):
    model, batches = case.model(), case.batches()
    inputs = batches[0] if isinstance(batches[0], dict) else batches[0][0]
    before, random_before = state_of(model), randomness()
    if case.name == "lazy":
        pytest.skip("the function takes a model that holds values")
    if case.name == "half":
        inputs = inputs.half()
    perturbed_outputs(unwrapped(model), inputs, perturbations=3, generator=0)
    assert state_of(model) == before
    assert randomness() == random_before


class Packed(nn.Module):
    """Checkpointed by means of its own: hooks on what the forward pass keeps."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return self.layer(x).tanh()


def test_blocks_that_checkpoint_by_their_own_means_are_refused():
    model, inputs = Packed(), torch.randn(5, 4)
    with pytest.raises(ValueError, match="activation checkpointing"):
        perturbed_outputs(model, inputs, perturbations=3)


class Mixing(nn.Module):
    """Samples meet outside batch normalisation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        z = self.layer(x)
        return z - z.mean(0)


def test_a_model_whose_samples_meet_takes_a_pass_for_each_perturbation():
    model = Mixing()
    found = perturbed_outputs(model, normal(5, 4), perturbations=4, generator=0)
    assert set(found.routes.values()) == {"pass"}
    assert float(found.logits.detach().mean(1).abs().max()) < 1e-6


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (nn.Linear(4, 1), normal(5, 4), "at least two logits"),
        (nn.Conv1d(1, 2, 3), normal(5, 1, 6), "at least two logits"),
        (nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), normal(5, 4), "at least two logits"),
        (nn.Linear(4, 3), normal(5, 4) / 0, "finite"),
    ],
)
def test_bad_input_is_told(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        perturbed_outputs(model, inputs, perturbations=3)


@pytest.mark.parametrize("outputs", [2, 40])
def test_a_convolution_of_one_position_is_the_linear_map_of_its_patch(outputs):
    """The same draws, so that the logits are equal, by either route."""
    images = normal(6, 3, 4, 4)
    conv = nn.Sequential(nn.Conv2d(3, outputs, 4), nn.Flatten())
    linear = nn.Sequential(nn.Linear(48, outputs), nn.Flatten())
    with torch.no_grad():
        linear[0].weight.copy_(conv[0].weight.flatten(1))
        linear[0].bias.copy_(conv[0].bias)
    one, other = (
        perturbed_outputs(model, inputs, perturbations=5, generator=0, prefer="gram")
        for model, inputs in ((conv, images), (linear, images.flatten(1)))
    )
    assert set(one.routes.values()) == set(other.routes.values()) == {"gram"}
    torch.testing.assert_close(one.logits, other.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_convolution_behind_another_has_the_spread_of_drawn_kernels():
    """By patches, against kernels that are drawn one by one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3), nn.Flatten())
    images = normal(3, 2, 4, 4)
    spreads = [
        perturbed_outputs(model, images, perturbations=2000, generator=seed, prefer=prefer).logits.std(0)
        for seed, prefer in enumerate(("gram", "explicit"))
    ]
    torch.testing.assert_close(*spreads, rtol=0.12, atol=0.0)
