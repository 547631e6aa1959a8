"""`diagnose`: why a network does not train. What it is called with, what it answers, what it costs."""

import dataclasses
import time

import pytest
import torch
from torch import nn

import theta0
from cases import case, flat, labels, normal
from theta0 import diagnose


def batches():
    return [(normal(16, 8, seed=i), labels(16, seed=9 + i)) for i in range(2)]


def shallow():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def deep():
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(20) for part in (nn.Linear(8, 8), nn.Sigmoid())), nn.Linear(8, 3))


def faint():
    """Small weights, and biases that carry what the weights do not."""
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(8, 8), nn.Tanh())), nn.Linear(8, 3))
    for number, layer in enumerate(model[::2]):
        nn.init.orthogonal_(layer.weight, 0.1 if number < 6 else 1.0)
        layer.bias.data = 0.3 * normal(len(layer.bias), seed=2 * number)
    return model


def codes(found):
    return {finding.code for finding in found.findings}


def test_a_network_that_trains_has_no_findings():
    found = theta0.diagnose(shallow(), batches(), "cross_entropy")
    assert found.healthy
    assert found.findings == ()


def test_of_a_network_that_does_not_it_says_what_where_and_by_how_much():
    found = theta0.diagnose(deep(), batches(), "cross_entropy")
    assert not found.healthy
    assert {"activation-shift", "vanishing-gradients"} <= codes(found)
    first = found.findings[0]
    assert first.severity == "error"
    assert first.cause == ""  # what follows from another finding names it
    assert first.layer in dict(deep().named_modules())
    assert first.value > first.threshold or first.code == "vanishing-gradients"
    assert first.source
    assert first.remedy
    shift = {r.layer: r.value for r in found.records if r.quantity == "shift_share"}
    assert shift["0"] < 0.5 < shift["38"]  # the numbers behind it, layer by layer


def test_with_the_rate_that_you_train_with_it_judges_that_too():
    found = theta0.diagnose(shallow(), batches(), "cross_entropy", optimizer="sgd", learning_rate=1e3)
    assert "learning-rate-too-high" in codes(found)
    assert found.learning_rate.bound < 1e3
    mild = theta0.diagnose(shallow(), batches(), "cross_entropy", optimizer="sgd", learning_rate=0.1)
    assert mild.healthy


def test_without_targets_the_forward_numbers_are_judged_alone():
    found = theta0.diagnose(faint(), [x for x, _ in batches()])
    assert "vanishing-activations" in codes(found)
    assert codes(found).isdisjoint({"vanishing-gradients", "zero-gradient", "unused-parameters"})


def test_a_model_without_parameters_has_nothing_to_train():
    (finding,) = diagnose(nn.Flatten(), flat(), "cross_entropy").findings
    assert (finding.code, finding.severity) == ("unregistered-parameters", "error")
    assert diagnose(nn.Flatten(), [normal(4, 3)]).findings == ()  # no loss, no training


def test_results_are_frozen_and_equal_when_repeated():
    first, again = (diagnose(shallow(), batches(), "cross_entropy") for _ in range(2))
    assert first == again
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.cost = 0.0


def test_to_dict_is_flat_and_logs_every_record():
    found = diagnose(shallow(), batches(), "cross_entropy")
    logged = found.to_dict()
    assert len(logged) == len(found.records)
    assert all(isinstance(value, float) for value in logged.values())
    assert logged["0/preactivation_variance"] > 0
    assert logged["loss"] > 0


def test_cost_counts_gradients():
    """Two batches, two forward passes of eight samples, and three for a gradient that is zero."""
    assert diagnose(shallow(), batches(), "cross_entropy", probe_steps=0).cost == pytest.approx(2 + 2 * 8 / 16 / 3)
    assert diagnose(case("zero head").model(), flat(), "cross_entropy", probe_steps=0).cost == pytest.approx(
        2 + 2 / 3 + 3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"optimizer": "lion"}, "optimizer: expected one of sgd, .*got 'lion'"), ({"loss": "hinge"}, "loss: expected")],
)
def test_wrong_arguments(options, message, unchecked):
    with pytest.raises(ValueError, match=message):
        diagnose(shallow(), batches(), **({"loss": "cross_entropy"} | options))


def test_short_runs_that_do_not_fit_into_the_time_are_left_out_and_that_is_said():
    class Slow(nn.Linear):
        def forward(self, x):
            time.sleep(0.02)
            return super().forward(x)

    x = torch.randn(64, 4)
    found = diagnose(Slow(4, 2), [(x, x[:, :2])] * 4, "mse", optimizer="sgd", learning_rate=0.01, seconds=0.2)
    assert found.probe.runs == ()
    assert (
        "Whether training lowers the loss was not found out: 10 steps do not fit into the time given."
        in found.not_measured
    )
    assert any("does not fit into the time given" in line and "rate" in line for line in found.not_measured)
    with pytest.raises(ValueError, match="seconds: expected a positive number, got -1"):
        diagnose(nn.Linear(4, 2), [(x, x[:, :2])], "mse", seconds=-1)
