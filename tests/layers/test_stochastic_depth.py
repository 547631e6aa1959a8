"""Stochastic depth: the law of the drops, both conventions, shared draws, and the Fisher matrix of a dropped net."""

import copy
import doctest
import math
import pickle
import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from torch import nn

import theta0.layers.stochastic_depth
from theta0.layers import StochasticDepth, draw_kept, drop_layers_, pin_kept_
from theta0.theory import stochastic_depth_bounds


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def stack(layers, p=0.5, **options):
    """Layer l adds 10^l to zero, so that the output spells the kept layers."""

    class Add(nn.Module):
        def __init__(self, amount):
            super().__init__()
            self.amount = nn.Parameter(torch.tensor(amount))

        def forward(self, x):
            return torch.zeros_like(x) + self.amount

    return nn.Sequential(*(StochasticDepth(Add(10.0**i), p, **options) for i in range(layers)))


def spelled(model, layers):
    return tuple(digit == "1" for digit in reversed(f"{round(model(torch.zeros(())).item()):0{layers}d}"))


def test_the_examples_in_the_docstrings_run():
    result = doctest.testmod(theta0.layers.stochastic_depth)
    assert result.attempted >= 3
    assert result.failed == 0


# ── one layer


def test_a_layer_keeps_or_drops_the_whole_batch():
    layer = StochasticDepth(nn.Linear(3, 3, bias=False), 0.3, generator=generator())
    x = torch.randn(5, 3, generator=generator(1))
    kept = x + layer.branch(x)
    outputs = [layer(x) for _ in range(2000)]
    share = sum(torch.equal(y, kept) for y in outputs) / 2000
    assert all(torch.equal(y, kept) or torch.equal(y, x) for y in outputs)
    assert abs(share - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 2000)


@pytest.mark.parametrize(("rescale", "training", "evaluation"), [("evaluation", 1.0, 0.25), ("training", 4.0, 1.0)])
def test_where_the_survival_probability_enters(rescale, training, evaluation):
    layer = pin_kept_(StochasticDepth(nn.Identity(), 0.25, rescale=rescale), [True])
    x = torch.ones(2, dtype=torch.float64)
    assert torch.equal(layer(x), x + training * x)
    assert torch.equal(layer.eval()(x), x + evaluation * x)
    assert torch.equal(pin_kept_(layer, [False]).train()(x), x)
    assert torch.equal(layer.eval()(x), x + evaluation * x)  # pins concern training alone


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rescale", ["evaluation", "training"])
def test_training_averages_to_evaluation_up_to_the_convention(rescale):
    """E β equals the factor of evaluation in either convention."""
    layer = StochasticDepth(nn.Identity(), 0.4, rescale=rescale, generator=generator())
    x = torch.ones((), dtype=torch.float64)
    sample = torch.stack([layer(x) for _ in range(4000)])
    assert abs(sample.mean() - layer.eval()(x)) < 4 * sample.std() / 4000**0.5


def test_a_dropped_branch_is_not_computed_and_gets_no_gradient():
    class Explodes(nn.Linear):
        def forward(self, x):
            raise AssertionError("computed")

    layer = pin_kept_(StochasticDepth(Explodes(2, 2), 0.5), [False])
    x = torch.ones(2, requires_grad=True)
    layer(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(2))
    assert layer.branch.weight.grad is None


def test_shortcut_and_further_arguments():
    class Scaled(nn.Module):
        def forward(self, x, factor, *, shift):
            return factor * x[:, :2] + shift

    layer = StochasticDepth(Scaled(), 1.0, shortcut=nn.Linear(3, 2))
    x = torch.randn(4, 3, generator=generator())
    assert torch.equal(layer(x, 2.0, shift=1.0), layer.shortcut(x) + (2.0 * x[:, :2] + 1.0))
    with pytest.raises(ValueError, match=r"must return the shape \(4, 3\) of its shortcut, got \(4, 1\)"):
        StochasticDepth(nn.Linear(3, 1), 1.0)(x)


def test_randomness_comes_from_the_generator_or_torchs_default():
    state = torch.get_rng_state()
    drawn = [draw_kept([0.5] * 20, generator=generator(3)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    spelled(drop_layers_(stack(4), "exactly", generator=generator()), 4)
    spelled(stack(4, generator=generator()), 4)
    stack(4).eval()(torch.zeros(()))
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        first = [spelled(stack(6), 6) for _ in range(5)]
        torch.manual_seed(7)
        assert [spelled(stack(6), 6) for _ in range(5)] == first


# ── the law of the drops


@given(st.integers(1, 12), st.data())
def test_exact_draws_keep_the_share(layers, data):
    kept = data.draw(st.integers(0, layers))
    seed = data.draw(st.integers(0, 2**30))
    assert sum(draw_kept([kept / layers] * layers, dropping="exactly", generator=generator(seed))) == kept


def test_exact_draws_take_every_set_equally_often():
    g = generator()
    counts = Counter(draw_kept([0.5] * 4, dropping="exactly", generator=g) for _ in range(6000))
    assert len(counts) == math.comb(4, 2)
    chi_square = sum((n - 1000) ** 2 / 1000 for n in counts.values())
    assert chi_square < 5 + 4 * math.sqrt(10)


def test_bernoulli_draws_are_independent_with_a_probability_per_layer():
    g = generator()
    p = torch.tensor([0.9, 0.5, 0.2, 0.0, 1.0], dtype=torch.float64)
    sample = torch.tensor([draw_kept(p.tolist(), generator=g) for _ in range(4000)], dtype=torch.float64)
    errors = (p * (1 - p) / 4000).sqrt()
    assert ((sample.mean(0) - p).abs() <= 4 * errors).all()
    correlation = torch.corrcoef(sample[:, :3].T) - torch.eye(3, dtype=torch.float64)
    assert correlation.abs().max() < 4 / 4000**0.5


# ── one draw for a model


def test_a_shared_draw_holds_for_a_call_and_changes_with_the_next():
    model = drop_layers_(stack(6), "exactly", generator=generator())
    seen = {spelled(model, 6) for _ in range(40)}
    assert all(sum(kept) == 3 for kept in seen)
    assert len(seen) > 5
    assert tuple(layer.kept for layer in model) in seen


def test_a_layer_called_twice_is_kept_or_dropped_in_both_places():
    layer = StochasticDepth(nn.Identity(), 0.5)
    model = drop_layers_(nn.Sequential(layer, nn.ReLU(), layer), "bernoulli", generator=generator())
    assert {model(torch.ones(())).item() for _ in range(40)} == {1.0, 4.0}


def test_evaluation_draws_nothing():
    g = generator()
    model = drop_layers_(stack(4), "exactly", generator=g).eval()
    state = g.get_state()
    assert model(torch.zeros(())).item() == 0.5 * 1111
    assert torch.equal(g.get_state(), state)


def test_a_second_choice_replaces_the_first_and_pins_end_it():
    model = drop_layers_(drop_layers_(stack(4), "exactly"), "bernoulli", generator=generator())
    assert {sum(spelled(model, 4)) for _ in range(60)} >= {1, 2, 3}
    pin_kept_(model, [True, False, False, True])
    assert {spelled(model, 4) for _ in range(10)} == {(True, False, False, True)}
    pin_kept_(model, None)
    assert all(layer.kept is None for layer in model)
    assert not model._forward_pre_hooks


def test_copies_draw_for_their_own_layers():
    model = drop_layers_(stack(4), "exactly", generator=generator())
    twin = copy.deepcopy(model)
    assert [spelled(twin, 4) for _ in range(5)] == [spelled(model, 4) for _ in range(5)]
    pin_kept_(twin, [True] * 4)
    assert spelled(twin, 4) == (True,) * 4
    assert sum(spelled(model, 4)) == 2


def test_it_pickles_and_its_state_dict_holds_the_branch_alone():
    layer = drop_layers_(StochasticDepth(nn.Linear(2, 2), 0.5), "bernoulli", generator=generator())
    again = pickle.loads(pickle.dumps(layer))
    assert list(again.state_dict()) == ["branch.weight", "branch.bias"]
    x = torch.ones(2)
    assert torch.equal(again(x), layer(x))
    assert repr(again).startswith("StochasticDepth(\n  survival=0.5, rescale='evaluation'")


def test_checkpointing_recomputes_the_same_net():
    model = drop_layers_(
        nn.Sequential(*(StochasticDepth(nn.Linear(3, 3), 0.5) for _ in range(4))), "exactly", generator=generator()
    )

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint_sequential(self.inner, 2, x, use_reentrant=False)

    pin_kept_(model, None)
    outer = drop_layers_(Checkpointed(), "exactly", generator=generator())
    outer(torch.ones(2, 3)).sum().backward()
    assert sum(layer.branch.weight.grad is not None for layer in model) == 2


# ── against the theory


class Thesis(nn.Module):
    """furusho2020thesis, eqs. 12, 14, 26, from this layer."""

    def __init__(self, depth, width, p, g):
        super().__init__()

        def linear(variance):
            layer = nn.Linear(width, width, bias=False, dtype=torch.float64)
            nn.init.normal_(layer.weight, std=math.sqrt(variance), generator=g)
            return layer

        self.first = linear(1 / width)
        self.blocks = nn.Sequential(
            *(StochasticDepth(nn.Sequential(nn.ReLU(), linear(2 / width)), p) for _ in range(depth))
        )

    def forward(self, x):
        return self.blocks(self.first(x)).sum(-1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dropping", ["exactly", "bernoulli"])
def test_the_mean_eigenvalue_of_dropped_nets_is_theorem_8_or_its_bernoulli_form(dropping):
    depth, width, g = 4, 24, generator()
    sample = []
    for _ in range(300):
        net = drop_layers_(Thesis(depth, width, 0.5, g), dropping, generator=g)
        output = net(torch.randn(width, generator=g, dtype=torch.float64))
        gradients = torch.autograd.grad(output, list(net.parameters()), allow_unused=True)
        sample.append(sum(d.square().sum() for d in gradients if d is not None) / ((depth + 1) * width**2))
    means = torch.stack(sample)
    theory = stochastic_depth_bounds(depth, width, 0.5, dropping=dropping)
    assert abs(means.mean() - theory.mean) < 4 * means.std() / len(means) ** 0.5


def test_pinned_decisions_allow_per_sample_gradients():
    net = pin_kept_(Thesis(3, 5, 0.5, generator()), [True, False, True])
    x = torch.randn(6, 5, generator=generator(1), dtype=torch.float64)
    weights = dict(net.named_parameters())

    def output(w, one):
        return torch.func.functional_call(net, w, (one,))

    gradients = torch.func.vmap(torch.func.grad(output), in_dims=(None, 0))(weights, x)
    assert not gradients["blocks.1.branch.1.weight"].any()
    (alone,) = torch.autograd.grad(net(x[2]), net.first.weight)
    torch.testing.assert_close(gradients["first.weight"][2], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: StochasticDepth(nn.Identity(), 1.2), "survival must be a probability"),
        (lambda: StochasticDepth(nn.Identity(), 0.5, rescale="both"), "rescale must be"),
        (lambda: StochasticDepth(nn.Identity(), 0.0, rescale="training"), "cannot be divided by"),
        (lambda: draw_kept([0.5], dropping="sometimes"), "dropping must be"),
        (lambda: draw_kept([0.5, 0.25], dropping="exactly"), "one survival probability for all layers"),
        (lambda: drop_layers_(stack(3), "exactly"), "whole survival·layers"),
        (lambda: drop_layers_(nn.Linear(2, 2), "exactly"), "got Linear without any"),
        (lambda: pin_kept_(stack(3), [True]), "expected 3 decisions"),
    ],
)
def test_wrong_arguments_are_explained(call, words):
    with pytest.raises((ValueError, TypeCheckError)) as caught:  # the latter where the suite runs with types enforced
        call()
    assert isinstance(caught.value, TypeCheckError) or re.search(words, str(caught.value))
