"""The fault-injection benchmark: its halves, its truth and its intervals; one verdict on its networks."""

import json
import sys
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest

from theta0 import diagnose

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from injection import plan, table, truth  # noqa: E402 - the benchmarks are no package that is installed
from injection.networks import NETWORKS, healthy  # noqa: E402
from injection.problem import called, value_of  # noqa: E402

STORED = json.loads((BENCHMARKS / "results" / "fault_injection_truth.json").read_text())


def test_every_network_is_in_one_half():
    halves = plan.halves()
    assert sorted(halves["dev"] + halves["test"] + halves["unseen"]) == sorted(NETWORKS)
    assert halves == STORED["halves"]
    assert plan.held_out_kinds() == STORED["held out"]


def test_the_halves_share_no_network_and_the_development_half_no_kind_that_is_held_out():
    for name in STORED["injections"]:
        half, network, kind, _ = name.split("/")
        assert network in plan.halves()[half]
        assert half != "dev" or kind not in plan.held_out_kinds()
    assert not set(plan.UNSEEN) & {name for half in ("dev", "test", "fresh") for name in plan.halves()[half]}


@pytest.mark.parametrize("network", [name for name in plan.UNSEEN if name not in plan.NOT_IN["no_nonlinearity"]])
def test_an_unseen_network_without_its_nonlinearities_is_affine(network):
    found = plan.injected(f"unseen/{network}/no_nonlinearity/0", 0)
    if found is None:  # the kind does not fit, and is not drawn
        return
    model = found.problem.model.eval()
    a, b = (x.double() for x in found.problem.train[0][0].split(8)[:2])
    with torch.no_grad():
        ends, middle = (model.double()(x) for x in (torch.cat([a, b]), (a + b) / 2))
    several = isinstance(ends, tuple)
    for end, half in zip(ends if several else (ends,), middle if several else (middle,), strict=True):
        torch.testing.assert_close((end[:8] + end[8:]) / 2, half)


def test_the_stored_classes_follow_from_the_stored_shares():
    for name, entry in STORED["injections"].items():
        assert entry["class"] == ("absent" if "shares" not in entry else truth.verdict(entry["shares"])), name


def test_the_class_needs_both_the_median_and_the_start_that_is_judged():
    assert truth.verdict([0.1, 0.2]) == "ill"
    assert truth.verdict([0.95, 1.1]) == "harmless"
    assert truth.verdict([0.95, 0.1, 0.2]) == "between"
    assert truth.verdict([0.4, 0.8, 0.3]) == "ill"


@pytest.mark.parametrize("kind", ["weight_scale_up", "copied_units", "labels_damaged", "detach", "target_scale"])
def test_an_injection_is_the_same_every_time(kind):
    first, second = (plan.injected(f"dev/film/{kind}/0", 0) for _ in range(2))
    assert (first.size, first.places, first.codes) == (second.size, second.places, second.codes)
    for p, q in zip(first.problem.model.parameters(), second.problem.model.parameters(), strict=True):
        assert torch.equal(p, q)
    for (_, t), (_, u) in zip(first.problem.train, second.problem.train, strict=True):
        assert torch.equal(t, u)


def test_what_is_before_a_cut_gets_no_gradient():
    found = plan.injected("dev/mlp_relu/detach/0", 0)
    inputs, targets = found.problem.train[0]
    value = value_of(found.problem.loss, called(found.problem.model, inputs), targets)
    if value.requires_grad:
        value.backward()
    inside = [p for name, p in found.problem.model.named_parameters() if name.startswith(found.places[0] + ".")]
    first = next(found.problem.model.parameters())
    assert all(p.grad is None for p in [*inside, first])


def test_a_healthy_network_is_the_same_for_the_same_seed():
    a, b, c = (healthy("lora", seed).model.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert any(not torch.equal(a[key], c[key]) for key in a)


@pytest.mark.parametrize(("hits", "count"), [(0, 7), (3, 9), (40, 40), (181, 200)])
def test_wilson_intervals_are_scipys(hits, count):
    interval = binomtest(hits, count).proportion_ci(0.95, "wilson")
    assert table.wilson(hits, count) == pytest.approx((interval.low, interval.high), abs=1e-6)


def test_a_part_of_the_right_module_or_its_parameter_is_the_right_place():
    assert table.within_places("net.1.inner", ["net.1"])
    assert table.within_places("net.1.weight", ["net.1"])
    assert not table.within_places("net.10", ["net.1"])
    assert not table.within_places("", ["net.1"])


def test_the_readme_and_the_limits_quote_the_stored_counts():
    root = Path(__file__).parents[1]
    stored = json.loads((root / "benchmarks/results/fault_injection_test.json").read_text())["summary"]
    every, healthy = stored["all"], stored["kinds"]["healthy"]
    readme, limits = (" ".join((root / name).read_text().split()) for name in ("README.md", "docs/limits.md"))
    assert f"{every['detected']} of {every['ill']} detected" in readme
    assert f"names the cause in {every['first right']} of {every['ill']}" in readme
    changed = (every["wrong alarms"] - healthy["wrong alarms"], every["harmless"] - healthy["harmless"])
    assert f"{every['wrong alarms']} of {every['harmless']} cases that train" in readme
    assert f"{healthy['wrong alarms']} of {healthy['harmless']} unchanged networks" in readme
    assert "{} of {} changes that do no harm".format(*changed) in readme
    assert f"{every['detected']} of {every['ill']} faults that do harm" in limits
    assert f"the right one in {every['module right']} of {every['placed']} cases" in limits


def test_the_readme_and_the_page_quote_the_unseen_half():
    root = Path(__file__).parents[1]
    stored = json.loads((root / "benchmarks/results/fault_injection_unseen.json").read_text())["summary"]
    every = {
        key: stored["all"][key] + stored["held out"][key] for key in stored["all"] if key not in ("kind", "mean cost")
    }
    healthy = stored["kinds"]["healthy"]
    readme, page = (" ".join((root / name).read_text().split()) for name in ("README.md", "docs/fault-injection.md"))
    assert f"{every['detected']} of {every['ill']} detected; the cause first in {every['first right']}" in readme
    assert f"{every['wrong alarms']} of {every['harmless']} cases that train called ill" in readme
    assert f"{healthy['wrong alarms']} of {healthy['harmless']} unchanged networks)" in readme
    assert f"detected {every['detected']} of {every['ill']}, first finding right {every['first right']}" in page
    assert f"the right module {every['module right']} of {every['placed']}" in page


def test_a_rate_that_moves_nothing_is_too_low_where_a_higher_one_learns_a_few_samples_by_heart():
    """An actor with its critic, which no run of ten steps brings below what a constant reaches."""
    problem = plan.injected("unseen/actor_critic/rate_down/0", 0).problem
    options = {"optimizer": problem.optimizer, "probe_steps": 100}
    found = diagnose(problem.model, problem.train, problem.loss, learning_rate=problem.rate, **options)
    first = next(f for f in found.findings if f.severity != "note")
    assert first.code == "learning-rate-too-low"
    assert "16 samples alone are not learned" in first.message
    whole = healthy("actor_critic", 0)
    found = diagnose(whole.model, whole.train, whole.loss, learning_rate=whole.rate, **options)
    assert "learning-rate-too-low" not in {f.code for f in found.findings}
