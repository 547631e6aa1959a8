import pytest
import torch
from torch import nn

from cases import case, normal
from states import randomness, state_of
from theta0._records import by_layer
from theta0.measurements import dead_units, jacobians, neighbours


def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def test_jacobian_norms_are_those_of_the_jacobian_by_autograd():
    model, x = classifier(), normal(5, 6).double()
    table = by_layer(jacobians(model, [x]))
    hidden = model[0](x)
    places = {"(input)": (x, model), "0": (hidden, model[1:]), "2": (model[:3](x), model[3:])}
    assert list(table) == [*places, ""]
    worst = []
    for layer, (at, rest) in places.items():
        full = torch.stack([torch.autograd.functional.jacobian(rest, row) for row in at])  # samples × classes × units
        norms = full.square().sum(-1).sqrt()
        worst.append((1 - norms).square())
        assert table[layer]["jacobian_norm"] == pytest.approx(float(norms.mean()))
        for i in range(3):
            assert table[layer][f"jacobian_norm_class_{i}"] == pytest.approx(float(norms[:, i].mean()))
    assert table[""]["detachment"] == pytest.approx(float(torch.stack(worst).amax(0).mean()))


def test_jacobian_under_batch_normalisation_holds_the_statistics_constant():
    model, x = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double(), normal(9, 6).double()
    z = model[0](x)
    gain = model[1].weight / (z.var(0, correction=0) + model[1].eps).sqrt()
    expected = ((model[2].weight * gain) @ model[0].weight).norm(dim=1).mean()
    assert by_layer(jacobians(model, [x]))["(input)"]["jacobian_norm"] == pytest.approx(expected.item())


def test_dead_units_are_counted_batch_by_batch():
    model = nn.Sequential(nn.Linear(1, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))
    model[0].weight.data = torch.tensor([[1.0], [1.0], [-1.0], [0.0]])
    batches = [torch.tensor([[1.0], [2.0]]), torch.tensor([[-1.0], [2.0]])]
    assert by_layer(dead_units(model, batches))["0"]["fully_dead_share"] == pytest.approx((0.5 + 0.25) / 2)


def test_a_start_with_a_dominant_bias_misses_a_class_and_does_not_depend_on_its_input():
    model = classifier()
    with torch.no_grad():
        model[4].weight.zero_()
        model[4].bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    table = by_layer(neighbours(model, [normal(8, 6)], generator=0, perturbations=32, scale=0.5))[""]
    assert table["degenerate_softmax_share"] == 1
    assert table["constant_output_share"] == 1
    assert table["uniformity"] > 0.3
    assert table["degenerate_distance"] == pytest.approx(2**0.5 - 3**-0.5, abs=1e-3)


def test_uniform_outputs_score_zero_within_noise():
    class Uniform(nn.Module):
        """Logits whose softmax is uniform on the simplex: logs of two exponentials, made from Gaussian parameters."""

        def __init__(self):
            super().__init__()
            self.free = nn.Parameter(torch.zeros(4, dtype=torch.float64))

        def forward(self, x):
            squares = (self.free.square().reshape(2, 2).sum(1) + 1e-30).log()  # χ² of two degrees: an exponential
            return squares + 0 * x[:, :2]

    table = by_layer(neighbours(Uniform(), [normal(3, 2).double()], perturbations=512, scale=1.0, generator=3))[""]
    assert abs(table["uniformity"]) < 0.01


@pytest.mark.sampled(3)
@pytest.mark.parametrize("measure", [neighbours, jacobians, dead_units])
@pytest.mark.parametrize("name", ["norm and dropout", "transformer, batch first", "cnn", "lazy", "mixed modes"])
def test_the_model_and_the_random_state_are_left_as_they_were(measure, name):
    options = {"perturbations": 4, "generator": 1} if measure is neighbours else {}
    model, batches = case(name).model(), case(name).batches()
    before, random_before = state_of(model), randomness()
    measure(model, batches, **options)
    assert state_of(model) == before
    assert randomness() == random_before


def test_the_same_seed_gives_the_same_records():
    one, two, other = (neighbours(classifier(), [normal(8, 6)], perturbations=8, generator=g) for g in (1, 1, 2))
    assert one == two != other


@pytest.mark.parametrize(
    ("build", "inputs", "message"),
    [
        (lambda: nn.Linear(6, 1), normal(8, 6), "at least two logits"),
        (lambda: nn.Conv1d(1, 2, 3), normal(8, 1, 6), "at least two logits"),
        (lambda: nn.Linear(6, 3), normal(1, 6), "at least 2 samples"),
        (lambda: nn.Linear(6, 3), normal(8, 6) / 0, "finite"),
    ],
)
def test_bad_input_is_told(build, inputs, message):
    with pytest.raises(ValueError, match=message):
        neighbours(build(), [inputs], perturbations=4)
