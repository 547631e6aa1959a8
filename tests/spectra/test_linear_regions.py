"""Linear pieces along a segment against a dense grid and a hand count, and the decay of Fourier coefficients."""

import math

import pytest
import torch
from torch import nn

from states import state_of
from theta0.spectra import linear_regions
from theta0.theory import condition_number, fourier_coefficient_bound, population_error_bound, slowest_factor


class Residual(nn.Module):
    """A branch behind a ReLU, a leaky one, and a functional call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 12), nn.Linear(12, 12), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        h = h + nn.functional.leaky_relu(self.second(h), 0.3)
        return self.last(torch.relu(h - 0.1))


NETWORKS = {
    "deep": lambda: nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)),
    "residual": Residual,
    "in place, dropout": lambda: nn.Sequential(
        nn.Linear(3, 20),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(20, 9),
        nn.BatchNorm1d(9),
        nn.ReLU(),
        nn.Linear(9, 1),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", range(3))
def test_the_pieces_are_those_that_a_dense_grid_shows(name, seed):
    torch.manual_seed(seed)
    model, first, last = NETWORKS[name](), torch.randn(3) * 4, torch.randn(3) * 4
    before = state_of(model)
    found = linear_regions(model, first, last)
    assert state_of(model) == before
    t = torch.linspace(0, 1, 40_001, dtype=torch.float64)[:, None]
    plain = model.double().eval()
    with torch.no_grad():
        values = plain(first.double() * (1 - t) + last.double() * t)
    slopes = (values[1:] - values[:-1]) / (t[1] - t[0])
    changed = ((slopes[1:] - slopes[:-1]).abs().amax(1) > 1e-6 * slopes.abs().max()).nonzero().flatten()
    cells = 1 + int((changed.diff() > 1).sum()) if len(changed) else 0  # a kink inside a cell changes two differences
    close = int((found.breakpoints.diff() < 3e-5).sum())  # kinks that the grid cannot tell apart
    assert found.count - 1 - close <= cells <= found.count - 1
    assert float(slopes.norm(dim=1).max()) <= found.lipschitz * (1 + 1e-9)
    assert found.lipschitz == pytest.approx(float(slopes.norm(dim=1).max()), rel=0.05)


def test_a_hat_has_three_kinks_and_its_coefficients_fall_as_stated():
    model = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.copy_(torch.tensor([-0.25, -0.5, -0.75]))
        model[2].weight.copy_(torch.tensor([[1.0, -2.0, 1.0]]))
    found = linear_regions(model, torch.zeros(1), torch.ones(1))
    torch.testing.assert_close(found.breakpoints, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(found.slopes.flatten(), torch.tensor([0.0, 1.0, -1.0, 0.0], dtype=torch.float64))
    t = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    with torch.no_grad():
        values = model(t[:, None]).flatten()
    for frequency in (5.0, 20.0, 37.0, 100.0):
        wave = torch.polar(torch.ones_like(t), -frequency * t)
        coefficient = abs(complex(torch.trapezoid(values * wave, t)))
        bound = 2 * fourier_coefficient_bound(frequency, lipschitz=found.lipschitz, regions=found.count)
        assert coefficient <= bound
    assert fourier_coefficient_bound(2.0, lipschitz=3.0, regions=4, dimension=3) == pytest.approx(
        12 * (1 / 4 + 1 / 8 + 1 / 16)
    )


@pytest.mark.parametrize("bent", [nn.Tanh(), nn.GELU(), nn.Softplus()])
def test_other_nonlinearities_are_refused(bent):
    model = nn.Sequential(nn.Linear(3, 8), bent, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    before = state_of(model)
    with pytest.raises(ValueError, match="linear between the kinks"):
        linear_regions(model, torch.zeros(3), torch.ones(3))
    assert state_of(model) == before


def test_too_many_kinks_are_refused():
    model = nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 1))
    with pytest.raises(ValueError, match="expected at most 5 kinks"):
        linear_regions(model, torch.full((3,), -9.0), torch.full((3,), 9.0), most=5)


@pytest.mark.parametrize(("rate", "converges"), [(0.3, True), (0.5, True), (0.99, True), (1.01, False)])
def test_descent_on_a_quadratic_leaves_the_slowest_factor(rate, converges):
    eigenvalues = torch.tensor([0.0, 0.1, 0.7, 2.0], dtype=torch.float64)
    assert condition_number(eigenvalues) == pytest.approx(20)
    error, factor = torch.ones(3, dtype=torch.float64), slowest_factor(0.1, 2.0, rate)
    for _ in range(50):
        error = error - rate * eigenvalues[1:] * error
    assert float(error.abs().max()) == pytest.approx(factor**50)
    assert (factor < 1) is converges


def test_the_population_bound_holds_for_the_mean_of_draws():
    generator = torch.Generator().manual_seed(0)
    distances = torch.rand(2000, 25, generator=generator, dtype=torch.float64).square()  # ‖θ* - θ*_i‖² of 25 samples
    deviation = math.sqrt(1 / 5 - 1 / 9)
    bounds = torch.tensor([population_error_bound(float(d.mean()), deviation, 25, 0.9) for d in distances])
    assert float((bounds < 1 / 3).double().mean()) <= 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: condition_number(torch.zeros(3)), "positive semidefinite"),
        (lambda: condition_number(torch.tensor([-1.0, 2.0])), "positive semidefinite"),
        (lambda: slowest_factor(2.0, 1.0, 0.1), "smallest <= largest"),
        (lambda: population_error_bound(1.0, 1.0, 10, 1.0), "between 0 and 1"),
        (lambda: fourier_coefficient_bound(0.0, lipschitz=1.0, regions=1), "frequency: expected a positive number"),
        (lambda: fourier_coefficient_bound(1.0, lipschitz=1.0, regions=0), "regions"),
    ],
)
def test_arguments_out_of_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()
