"""Each code arises on an ill network, where the fault begins, and not on its healthy twin."""

import math

import pytest
import torch
from ill_networks import ILL, Ill, Product, data, default, healthy, stack
from torch import nn

from cases import case, each_case, flat
from cases import unprobed as diagnose
from theta0._batches import load_batches
from theta0.diagnosis import Diagnosis, Evidence
from theta0.diagnosis.rule import Place
from theta0.diagnosis.rules import RULES, zero_gradient

CODES = {rule.code for rule in RULES}
each_ill = pytest.mark.parametrize("ill", ILL, ids=lambda ill: f"{ill.code} {ill.layer}")


def codes(found: Diagnosis) -> set[str]:
    return {f.code for f in found.findings}


def test_what_a_forward_and_backward_pass_show_has_an_ill_network():
    """The other codes have tests of their own; all have an example in their rule."""
    places = (Place.SYMMETRY, Place.ZERO_WEIGHTS, Place.FORWARD, Place.BACKWARD)
    shown = {rule.code for rule in RULES if rule.place in places} - {"degenerate-softmax", "linear-network"}
    assert shown <= {ill.code for ill in ILL} <= CODES


@each_ill
def test_the_fault_is_found_where_it_begins(ill: Ill):
    found = diagnose(ill.ill(), data(), ill.loss)
    (finding,) = (f for f in found.findings if f.code == ill.code)
    assert finding.severity == ill.severity
    if ill.layer is not None:
        assert finding.layer == ill.layer
    assert finding.layer in (finding.layers or (finding.layer,))
    assert found.healthy == (ill.severity != "error")
    assert_complete_and_in_order(found)


def assert_complete_and_in_order(found: Diagnosis) -> None:
    for f in found.findings:
        assert f.code in CODES
        assert f.source
        assert f.message.strip().endswith(".")
        assert isinstance(f.value, float)
        assert isinstance(f.threshold, float)
    ranks = [("error", "warning", "note").index(f.severity) for f in found.findings]
    assert ranks == sorted(ranks)


@each_ill
def test_its_healthy_twin_has_none_of_it(ill: Ill):
    loss = "cross_entropy" if callable(ill.loss) else ill.loss
    found = diagnose(ill.healthy(), data(), loss)
    assert ill.code not in codes(found)
    linear = {"linear-network"}  # some of these networks have no nonlinearity, which is no fault of their start
    assert {f.code for f in found.findings if f.severity != "note"} <= linear


@pytest.mark.parametrize("where", [0, 2, 4])
def test_dead_units_are_found_at_whatever_layer_they_are(where):
    model = stack(3, nn.ReLU, gain=1.4)
    nn.init.constant_(model[where].bias, -100.0)
    assert next(f.layer for f in diagnose(model, data(), "cross_entropy").findings if f.code == "dead-units") == str(
        where
    )


@pytest.mark.parametrize("where", [0, 2, 4, 6])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_is_a_finding_and_the_only_one(where, value):
    model = healthy()
    with torch.no_grad():
        model[where].weight[0, 1] = value
    found = diagnose(model, data(), "cross_entropy")
    assert [(f.code, f.layer) for f in found.findings] == [("non-finite", f"{where}.weight")]
    assert not found.healthy


@pytest.mark.parametrize("name", ["0.running_var", "0.running_mean"])
def test_a_buffer_that_is_not_finite_is_a_finding(name):
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    model.get_buffer(name).fill_(torch.nan)
    found = diagnose(model, data(), "cross_entropy")
    assert {f.code for f in found.findings if f.severity != "note"} == {"non-finite"}


def test_a_zero_gradient_at_the_start_alone_is_no_fault():
    assert "zero-gradient" not in codes(diagnose(Product(both=False), data(), "cross_entropy"))
    assert "zero-gradient" not in codes(diagnose(case("zero head").model(), flat(), "cross_entropy"))


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
def test_a_persistent_zero_gradient_is_one_under_every_optimizer(optimizer):
    found = diagnose(Product(both=True), data(), "cross_entropy", optimizer=optimizer, learning_rate=0.1)
    (finding,) = (f for f in found.findings if f.code == "zero-gradient")
    assert finding.layers == ("down.weight", "up.weight")


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_that_starts_at_zero_neither_is_a_fault_nor_hides_one(bias):
    for model, expected in ((healthy(), set()), (default(20, nn.Sigmoid), {"activation-shift"})):
        model[-1] = nn.Linear(8, 3, bias=bias)
        nn.init.zeros_(model[-1].weight)
        found = diagnose(model, data(), "cross_entropy")
        assert {f.code for f in found.findings if f.severity == "error"} == expected


NOTES = {
    "functional": {"unused-parameters"},
    "frozen": {"frozen-parameters"},
    "mixed modes": {"frozen-batch-norm"},
}


@each_case
def test_the_networks_of_the_table_are_not_ill_and_few_have_a_note(case):
    found = diagnose(case.model(), case.batches(), case.loss)
    assert [f for f in found.findings if f.severity != "note"] == []
    assert codes(found) == NOTES.get(case.name, set())


@pytest.mark.parametrize("phi", [nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh])
def test_a_healthy_rectifier_net_with_half_its_units_off_is_not_dead(phi):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), phi(), nn.Linear(32, 32), phi(), nn.Linear(32, 3))
    assert diagnose(model, data(), "cross_entropy").findings == ()


@pytest.mark.parametrize("depth", [1, 2])
def test_shallow_nets_with_the_default_start_are_healthy(depth):
    for phi in (nn.Sigmoid, nn.Tanh, nn.ReLU):
        assert diagnose(default(depth, phi), data(), "cross_entropy").healthy


def test_a_zero_gradient_is_an_error_where_it_holds_half_of_the_parameters(monkeypatch):
    """The whole kind: some stuck tensors slow a network down, most of them stop it."""
    for stuck, severity in ((1, "warning"), (2, "warning"), (3, "error"), (6, "error")):
        monkeypatch.setattr(Evidence, "trained", [f"p{i}.bias" for i in range(6)])
        monkeypatch.setattr(Evidence, "stuck", [f"p{i}.bias" for i in range(stuck)])
        evidence = Evidence(healthy(), load_batches(data(), healthy()), "cross_entropy")
        evidence.table.update({f"p{i}.bias": {"value_rms": 1.0} for i in range(6)})
        assert zero_gradient.judge(evidence).severity == severity


@pytest.mark.parametrize("last", [nn.ReLU(), nn.Softmax(1)])
def test_a_squashed_output_s_number_is_past_its_threshold_or_is_where_the_outputs_begin(last):
    """Logits behind a ReLU can reach the loss: their finding is about where they begin, not about a gap of zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3), last)
    x = torch.randn(64, 8)
    result = diagnose(model, [(x, x[:, :3].argmax(1))], "cross_entropy")
    found = next(finding for finding in result.findings if finding.code == "squashed-output")
    if isinstance(last, nn.ReLU):
        assert (found.value, found.threshold, found.quantity) == (0.0, 0.0, "least value")
    else:
        assert found.value > found.threshold > 0
