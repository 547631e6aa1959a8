"""Searches for scales: better on held-out data or unchanged, nothing touched but values, each refusal with a reason."""

import copy
import math
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scale_cases import NETWORKS, normal
from torch import nn

from cases import CASES, case, flat
from states import randomness, state_of
from theta0._batches import held_out, load_batches
from theta0._models import unwrapped
from theta0.initializers import (
    ScaleSearch,
    apply_recipe_,
    gradinit_,
    initialize,
    load_recipe,
    metainit_,
    nio_,
    recipe_of,
    save_recipe,
)
from theta0.initializers.scale_search import _stepped as stepped
from theta0.initializers.scale_search import _Walk as Walk
from theta0.measurements import gradcosine, gradient_gram, gradient_norms

sys.path.insert(0, str(Path(__file__).parents[1] / "curvature"))
from curvature_cases import NETS, net

METHODS = {"gradinit": gradinit_, "metainit": metainit_}


def problem(name: str, samples: int = 256):
    """One of the six networks with labels that a random linear map gives, in batches of 32."""
    model, x, _, loss = net(name)
    inputs = normal(samples, *x.shape[1:], seed=1)
    scores = inputs.flatten(1) @ normal(inputs[0].numel(), 4, seed=2)
    targets = scores[:, : 4 if name == "mlp" else 3].argmax(1) if loss == "cross_entropy" else scores[:, :1] / 2
    return model, [(inputs[i : i + 32], targets[i : i + 32]) for i in range(0, samples, 32)], loss


def searched(method, model, batches, loss, **options) -> tuple[ScaleSearch, str]:
    name = method.__name__.removesuffix("_")
    try:
        found = initialize(name, model, batches, loss, **options)
    except ValueError as error:
        return None, str(error)
    return found, "" if found.kept else found.refusal


def aligned(model, batches, loss) -> tuple[float, float]:
    """GradCosine and the largest norm on held-out batches, by the Gram matrix."""
    grams = [
        gradient_gram(model, [b], loss, sub_batches=2, overlap=0.6)
        for b in held_out(load_batches(batches, model, max_batches=None))[1]
    ]
    return sum(map(gradcosine, grams)) / len(grams), sum(float(gradient_norms(g).max()) for g in grams) / len(grams)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "least"),
    [(("mlp", "group-norm"), 1), pytest.param(tuple(NETS), 4, marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_held_out_gradcosine_rises_within_the_cap_or_the_start_is_unchanged(names, least):
    kept = 0
    for name in names:
        model, batches, loss = problem(name)
        before, start = aligned(model, batches, loss), state_of(model)
        result, reason = searched(nio_, model, batches, loss, steps=30, max_batches=None)
        after = aligned(model, batches, loss)
        assert (result.before.objective, result.before.gradient_norm) == pytest.approx(before, rel=1e-4), name
        if reason:
            assert state_of(model) == start, name
            assert result.reason in reason, name
            assert "expected" in reason, name
            assert set(result.scales.values()) == {1.0}, name
            continue
        kept += 1
        assert (result.after.objective, result.after.gradient_norm) == pytest.approx(after, rel=1e-4), name
        assert after[0] > before[0], name
        assert after[1] <= result.cap == pytest.approx(1.5 * before[1], rel=1e-4), name
        assert only_values_changed(start, state_of(model)), name
    assert kept >= least


def only_values_changed(before, after) -> bool:
    """The same tensors, hooks, modes, gradients and flags; buffers keep their values too."""
    assert list(after) == list(before)
    for name, value in after.items():
        if isinstance(value, tuple) and len(value) == 7:
            assert value[0] == before[name][0], f"{name} is another tensor"
            assert value[3:] == before[name][3:], name
        else:
            assert value == before[name], name
    return True


OTHERS = [(c, m) for c in CASES if c.name in ("norm and dropout", "tied", "frozen", "lstm") for m in METHODS.values()]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("c", "method"), [*((c, nio_) for c in CASES), *OTHERS], ids=lambda o: getattr(o, "name", ""))
def test_nothing_but_the_scaled_values_changes(c, method):
    model = c.model()
    inner = unwrapped(model)
    before, drawn = state_of(inner), randomness()
    trained = {name for name, p in inner.named_parameters() if p.requires_grad}
    buffers = {name for name, _ in inner.named_buffers()}
    result, reason = searched(method, model, c.batches(), c.loss, steps=2)
    after = state_of(inner)
    assert randomness() == drawn
    if reason:
        assert after == before
        assert "expected" in reason or "raised" in reason
        return
    assert only_values_changed(before, after)
    for name in [*buffers, *(set(dict(inner.named_parameters())) - trained)]:
        assert after[name][2] == before[name][2], f"{name} changed"
    for name, scale in result.scales.items():
        assert name in trained
        assert 0.9 < scale < 1.1


def test_tied_tensors_share_a_scale_zero_ones_have_none_and_bare_ones_have_one():
    model = NETWORKS["transformer"][0]()
    result, _ = searched(nio_, model, [(normal(24, 4, 6), torch.arange(24) % 3)], "cross_entropy", steps=2)
    assert "shifts.0" in result.scales
    assert "shifts.1" not in result.scales
    tied = case("tied").model()
    result, _ = searched(nio_, tied, case("tied").batches(), "cross_entropy", steps=2)
    assert set(result.scales) == {"embed.weight", "mix.weight", "mix.bias"}
    frozen = case("frozen").model()
    result, _ = searched(nio_, frozen, flat(), "cross_entropy", steps=2)
    assert set(result.scales) == {name for name, p in frozen.named_parameters() if p.requires_grad}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_start_and_a_recipe_brings_it_back_bit_for_bit(tmp_path):
    model, batches, loss = problem("mlp")
    again, fresh = copy.deepcopy(model), copy.deepcopy(model)
    result, _ = searched(nio_, model, batches, loss, steps=12, generator=3)
    assert result.kept
    searched(nio_, again, batches, loss, steps=12, generator=3)
    path = save_recipe(recipe_of(model, result, notes={"seed": "0"}), tmp_path / "deep" / "start.json")
    assert path.stat().st_size < 4000
    recipe = load_recipe(path)
    assert recipe.notes == {"seed": "0"}
    assert apply_recipe_(fresh, recipe) is fresh
    for name, p in model.named_parameters():
        assert torch.equal(p, dict(fresh.named_parameters())[name])
        assert torch.equal(p, dict(again.named_parameters())[name])
    before = copy.deepcopy(fresh.state_dict())
    with pytest.raises(ValueError, match=r"expected 0.weight at the start that was scaled.*the same seed"):
        apply_recipe_(fresh, recipe)
    assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())
    with pytest.raises(ValueError, match="without; build it"):
        apply_recipe_(nn.Linear(2, 2), recipe)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', '{"format": "theta0 recipe"}'])
def test_a_file_that_is_no_recipe(text, tmp_path):
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"recipe\.json: expected a recipe"):
        load_recipe(path)
    with pytest.raises(ValueError, match=r"missing\.json: expected a recipe"):
        load_recipe(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sub_batches": 1}, "sub_batches: expected at least 2 parts"),
        ({"sub_batches": 2.5}, "sub_batches: expected .* a whole number, got 2.5"),
        ({"sub_batches": 20, "overlap": 0.95}, "sub_batches: expected parts that differ"),
        ({"overlap": 1.0}, "overlap: expected a fraction from 0 to below 1"),
        ({"overlap": -0.1}, "overlap"),
        ({"sub_batches": 33}, r"sub_batches: .*32 in batch 0.*larger batches or fewer parts"),
        ({"gradient_norm_cap": 1e-9, "cap_unit": "absolute", "steps": 5}, r"gradient norm of at most 1e-09.*raise the"),
        ({"gradient_norm_cap": 0.0}, "gradient_norm_cap: expected a positive"),
        ({"gradient_norm_cap": math.nan}, "gradient_norm_cap: expected a positive"),
        ({"cap_unit": "percent"}, "cap_unit"),
        ({"cap_statistic": "median"}, "cap_statistic"),
        ({"algorithm": "mmcls"}, "algorithm"),
        ({"steps": None}, "steps: expected a number, got None"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps: expected at least 1, whole, got 2.5"),
        ({"lower_bound": 1.0}, "lower_bound"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_arguments(options, message):
    model, batches, loss = problem("mlp")
    before = state_of(model)
    with pytest.raises(ValueError, match=message):
        nio_(model, batches, loss, **options)
    assert state_of(model) == before


@pytest.mark.parametrize("step_size", [0.0, math.nan, math.inf])
def test_gradinits_step_is_finite(step_size):
    model, batches, loss = problem("mlp")
    with pytest.raises(ValueError, match=f"step_size: expected a positive finite number, got {step_size}"):
        gradinit_(model, batches, loss, step_size=step_size)


@pytest.mark.parametrize(
    ("method", "samples", "options", "message"),
    [
        (
            nio_,
            8,
            {"sub_batches": 4},
            "single batch of 8 samples, of which 6 are searched on and 2 held out: sub_batch",
        ),
        (
            nio_,
            8,
            {"sub_batches": 7},
            "single batch of 8 samples, of which 6 are searched on and 2 held out: sub_batch",
        ),
        (gradinit_, 4, {}, "single batch of 4 samples, of which 3 are searched on and 1 held out"),
    ],
)
def test_a_single_batch_that_is_too_small_once_a_quarter_is_held_out(method, samples, options, message):
    model, [(x, y), *_], loss = problem("mlp")
    before = state_of(model)
    with pytest.raises(ValueError, match=message):
        method(model, [(x[:samples], y[:samples])], loss, **options)
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, targets: torch.zeros((), requires_grad=True) + 1, "gradient is finite and not zero"),
        (lambda outputs, targets: outputs.detach().mean(), "got a constant"),
        (lambda outputs, targets: (outputs * 0).sum(), "gradient is finite and not zero"),
        (lambda outputs, targets: (outputs / 0).sum(), "expected a finite loss"),
        (lambda outputs, targets: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_bad_losses(loss, message):
    model, batches, _ = problem("mlp")
    before = state_of(model)
    with pytest.raises(ValueError, match=message):
        nio_(model, batches, loss)
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), "weight_norm, whose is wrong"),
        (lambda: nn.Linear(6, 4).requires_grad_(False), "requires a gradient"),
        (lambda: nn.LazyLinear(4), "lazy"),
    ],
)
def test_networks_without_scales(change, message):
    _, batches, loss = problem("mlp")
    with pytest.raises(ValueError, match=message):
        nio_(change(), batches, loss)


def test_all_zero_parameters():
    model = nn.Linear(6, 4)
    for p in model.parameters():
        p.data.zero_()
    with pytest.raises(ValueError, match="not all zero"):
        nio_(model, problem("mlp")[1], "cross_entropy")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", [1, 7, 40])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_puts_the_start_back(call, error):
    model, batches, _ = problem("bn-resnet")
    before, calls = state_of(model), 0

    def loss(outputs, targets):
        nonlocal calls
        calls += 1
        if calls == call:
            raise error("stop")
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises((KeyboardInterrupt, ValueError), match="stop"):
        nio_(model, batches, loss, steps=20)
    assert state_of(model) == before


def test_a_start_that_becomes_non_finite_on_the_way_is_put_back():
    model, batches, _ = problem("mlp")
    before, norm = state_of(model), float(model[0].weight.detach().norm())

    def loss(outputs, targets):
        gone = abs(float(model[0].weight.detach().norm()) / norm - 1) > 0.05
        return nn.functional.cross_entropy(outputs, targets) * (math.inf if gone else 1.0)

    with pytest.raises(ValueError, match=r"step \d+: .*finite loss.*lower learning_rate; the start is unchanged"):
        nio_(model, batches, loss, steps=60)
    assert state_of(model) == before


@pytest.mark.slow
def test_an_end_of_the_way_that_is_not_finite_leaves_a_shorter_way():
    model, batches, _ = problem("regressor")
    plain, _ = searched(nio_, copy.deepcopy(model), batches, "mse", steps=12, generator=0)
    far = {name: abs(math.log(scale)) for name, scale in plain.scales.items()}
    name = max(far, key=lambda n: far[n])
    start = dict(model.named_parameters())[name].detach().norm().item()
    calls = 0

    def loss(outputs, targets):
        """Not finite beyond three quarters of the way, once the search's own passes are over."""
        nonlocal calls
        calls += 1
        moved = abs(math.log(dict(model.named_parameters())[name].detach().norm().item() / start))
        broken = calls > searching and moved > 0.75 * far[name]
        return nn.functional.mse_loss(outputs, targets) * (math.inf if broken else 1.0)

    searching = 10**9
    counted, _ = searched(nio_, copy.deepcopy(model), batches, loss, steps=12, generator=0)
    # What comes after the steps: three candidates on four batches, then two held-out batches, two sub-batches each.
    searching, calls = calls - 2 * (3 * 4 + 2), 0
    result, _ = searched(nio_, model, batches, loss, steps=12, generator=0)
    assert counted.interpolation == plain.interpolation == 1.0
    assert result.interpolation == 0.5


@pytest.mark.slow
def test_batch_normalisation_uses_batch_statistics_and_dropout_is_off():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.9), nn.Linear(8, 4))
    model[1].running_mean += 100
    before = copy.deepcopy(model.state_dict())
    result, _ = searched(nio_, model, problem("mlp")[1], "cross_entropy", steps=12)
    assert result.before.gradient_norm < 5  # with the running mean of 100 it would be a hundred times as much
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(model.state_dict()[name], before[name])
    without = copy.deepcopy(model)
    without.load_state_dict(before)
    without[3].p = 0.0
    assert searched(nio_, without, problem("mlp")[1], "cross_entropy", steps=12)[0].before == result.before


def test_steps_that_alternate_and_cancel_halve_the_rate():
    steps = Walk(torch.ones(3, dtype=torch.float64), 0.1, 0.01)
    slope = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    for number in range(16):
        constrained = number % 2 == 1
        steps = stepped(steps, -slope if constrained else slope, constrained)
    assert (steps.stalls, steps.rate) == (1, 0.05)
    assert steps.scales.tolist() == pytest.approx([1, 1, 1], abs=0.05)
    straight = Walk(torch.ones(3, dtype=torch.float64), 0.1, 0.01)
    for _ in range(40):
        straight = stepped(straight, slope, False)
    assert straight.stalls == 0


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans()), min_size=1, max_size=40), st.floats(1e-3, 0.9))
def test_no_step_moves_a_scale_further_than_its_rate_nor_over_its_bounds(path, rate):
    steps = Walk(torch.ones(1, dtype=torch.float64), rate, 0.01)
    for slope, constrained in path:
        new = stepped(steps, torch.tensor([slope], dtype=torch.float64), constrained)
        assert abs(float((new.scales / steps.scales).log())) <= steps.rate * (1 + 1e-9)
        assert 0.01 * (1 - 1e-9) <= float(new.scales) <= 100 * (1 + 1e-9)
        steps = new
