"""A column of a table that drowns the others behind a normalization; a loss so small that steps are epsilon's."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from theta0 import diagnose

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=GENERATOR)
Y = (X[:, :3].sum(1) > 0).long()


def network(*middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), *middle, nn.ReLU(), nn.Linear(32, 2))


def batches(x=X):
    return [(x[i : i + 64], Y[i : i + 64]) for i in range(0, 256, 64)]


def codes(model, data, loss="cross_entropy", **options):
    return [f.code for f in diagnose(model, data, loss, **options).findings if f.severity != "note"]


def scaled(factor, column=5):
    x = X.clone()
    x[:, column] *= factor
    return x


def test_a_column_that_drowns_the_others_is_named_behind_a_normalization_too():
    options = {"optimizer": "momentum", "learning_rate": 0.03}
    first = diagnose(network(nn.BatchNorm1d(32)), batches(scaled(1e6)), "cross_entropy", **options).findings[0]
    assert (first.code, first.severity) == ("input-scale", "error")
    assert "Column 5" in first.message
    for harmless in (X, scaled(30.0)):
        assert "input-scale" not in codes(network(nn.BatchNorm1d(32)), batches(harmless), **options)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_gradients_below_epsilon_are_named_with_what_a_step_is_worth(optimizer):
    options = {"optimizer": optimizer, "learning_rate": 0.003}
    first = diagnose(network(), batches(), lambda o, t: 1e-10 * F.cross_entropy(o, t), **options).findings[0]
    assert (first.code, first.severity) == ("precision", "error")
    assert "epsilon" in first.message
    assert 0 < first.value < 1e-2


@pytest.mark.parametrize(
    ("factor", "options"),
    [
        (1e-10, {"optimizer": "sgd", "learning_rate": 1e9}),
        (1e-10, {"optimizer": lambda ps: torch.optim.Adam(ps, lr=0.003, eps=1e-18)}),
        (1e-3, {"optimizer": "adam", "learning_rate": 0.003}),
    ],
    ids=["no epsilon", "a smaller one", "gradients above it"],
)
def test_small_losses_whose_steps_are_whole_are_no_finding(factor, options):
    assert "precision" not in codes(network(), batches(), lambda o, t: factor * F.cross_entropy(o, t), **options)


@pytest.mark.parametrize(("units", "named"), [(4, False), (8, False), (32, True)])
def test_half_of_a_few_units_may_be_off_by_chance_and_all_of_them_not(units, named):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, units), nn.ReLU(), nn.Linear(units, 2))
    with torch.no_grad():
        model[0].bias[: units // 2] = -100
    assert ("dead-units" in codes(model, batches(), probe_steps=0)) is named
    with torch.no_grad():
        model[0].bias[:] = -100
    assert "dead-units" in codes(model, batches(), probe_steps=0)


def test_a_rate_at_which_nothing_moves_is_tried_upwards_whichever_way_noise_points():
    """At a thousandth of a thousandth the last decimals rise or fall by chance."""
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 2))
        rates = [
            r.rate for r in diagnose(model, batches(), "cross_entropy", optimizer="adam", learning_rate=1e-7).probe.runs
        ]
        assert max(rates) > 9e-6
