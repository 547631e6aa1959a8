"""A treated start is kept only if a short run proves it better; otherwise the model is bit for bit as it came."""

import math
import random
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from cases import SAMPLED, case, flat, mlp, normal
from states import randomness, state_of
from theta0._models import unwrapped
from theta0.initializers.unit_variance import unit_variance
from theta0.parametrizations import is_linearly_constrained
from theta0.treatment import REMEDIES, treat
from theta0.treatment.results import Applied
from theta0.treatment.trials import fresh_order


def deep(depth=6, width=16, phi=nn.Sigmoid) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(part for _ in range(depth) for part in (nn.Linear(width, width), phi())), nn.Linear(width, 3)
    )


def learnable(count=8) -> list:
    x = normal(count * 32, 16)
    y = (x[:, 0] > 0).long()
    return list(zip(x.split(32), y.split(32), strict=True))


QUICK = {"optimizer": "momentum", "learning_rate": 0.1, "steps": 8}


@pytest.mark.slow
def test_the_reported_runs_are_what_training_gives_on_data_that_took_no_part_before():
    model = deep()
    found = treat(model, learnable(), "cross_entropy", with_="lcw", **QUICK | {"steps": 12})
    assert found.kept
    assert len(found.confirmations) == 3
    assert found.confirmations[0] == (found.untreated, found.treated)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    rest = learnable()[:6]
    for order, (_, reported) in enumerate(found.confirmations, start=1):
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        losses = []
        for x, y in fresh_order(rest, 12, order):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        assert reported.losses == pytest.approx(losses, rel=1e-3)
        held = sum(F.cross_entropy(model(x), y).item() for x, y in learnable()[6:]) / 2
        assert reported.held_out == pytest.approx(held, rel=1e-3)


def test_orders_are_fresh_and_every_epoch_is_whole():
    orders = [fresh_order(range(6), 15, order) for order in (1, 2, 3)]
    assert all(sorted(order[:6]) == sorted(order[6:12]) == list(range(6)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert fresh_order(range(6), 15, 1) == orders[0]


class Recording:
    """A loss that notes which samples were seen, by their first feature, between marks."""

    def __init__(self):
        self.seen, self.mark = [set()], []

    def __call__(self, outputs, targets):
        self.seen[-1] |= set(targets.tolist())
        return outputs.square().mean() * 100


def test_what_the_proof_looks_at_took_no_part_before():
    loss = Recording()
    data = [(normal(4, 6, seed=i), torch.full((4,), i)) for i in range(8)]
    doing = [""]

    def progress(text, _):
        if text != doing[-1]:
            doing.append(text)
            loss.seen.append(set())

    treat(mlp(), data, loss, with_="unit-variance", progress=progress, **QUICK)
    assert doing[-1].startswith("proving")
    before, proof = set().union(*loss.seen[:-1]), loss.seen[-1]
    assert before == {0, 1, 2, 3}  # a diagnosis reads four batches
    assert proof == set(range(8))


def test_what_is_no_better_is_taken_back():
    model = case("mlp").model()
    before, drawn = state_of(model), randomness()
    found = treat(model, flat(), "cross_entropy", with_="unit-variance", optimizer="sgd", learning_rate=1e-12, steps=2)
    if found.treated.held_out >= found.untreated.held_out:
        assert not found.kept
        assert state_of(model) == before
        assert "as it was" in found.reason
    assert randomness() == drawn


@pytest.mark.sampled(4)
@pytest.mark.parametrize("c", SAMPLED, ids=lambda c: c.name)
@pytest.mark.parametrize("with_", ["lcw", "unit-variance"])
def test_kept_or_taken_back_for_every_network(c, with_):
    model = c.model()
    inner = unwrapped(model)
    for p in list(inner.parameters())[1::2]:
        if p.requires_grad and not isinstance(p, nn.UninitializedParameter):
            p.grad = torch.full_like(p, 0.5)
    inner.register_forward_hook(lambda *_: None)
    before, drawn = state_of(inner), randomness()
    if c.name == "lazy":
        with pytest.raises(ValueError, match="lazy"):
            treat(model, c.batches(), c.loss, with_=with_, **QUICK)
        return
    eager = torch.compiler.set_stance("force_eager") if c.name == "compiled inside" else nullcontext()
    with eager:  # the checks of signatures cannot be traced
        try:
            found = treat(model, c.batches(), c.loss, with_=with_, **QUICK | {"steps": 2})
        except ValueError:  # the one remedy asked for cannot be applied here
            found = None
    after = state_of(inner)
    assert randomness() == drawn
    if found is None or not found.kept:
        assert after == before
        return
    assert found.treated.held_out < found.untreated.held_out
    assert after["module "][1:4] == before["module "][1:4]  # class, mode and hooks
    if with_ == "unit-variance":
        assert list(after) == list(before)
        for name, value in after.items():
            same = (
                value[0] == before[name][0] and value[3:] == before[name][3:]
                if len(value) == 7
                else value == before[name]
            )
            assert same, name
    for name, value in before.items():  # gradients and requires_grad, whatever was parametrized
        if name in after and isinstance(value, tuple) and len(value) == 7:
            assert after[name][3:] == value[3:]


def test_ties_freezing_and_embeddings_under_lcw():
    model = case("tied").model()
    treat(model, case("tied").batches(), "cross_entropy", with_="lcw", **QUICK)
    assert model.head.weight is model.embed.weight
    assert not parametrize.is_parametrized(model.embed)
    frozen = case("frozen").model()
    weight = frozen[0].weight.clone()
    treat(frozen, flat(), "cross_entropy", with_="lcw", **QUICK)
    assert torch.equal(frozen[0].weight, weight)
    assert not frozen[0].weight.requires_grad


def test_a_fan_in_of_one_is_left_plain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    data = [(normal(16, 1, seed=i), normal(16, 1, seed=i).sin()) for i in range(4)]
    REMEDIES["lcw"](model, data)
    assert [is_linearly_constrained(model[i]) for i in (0, 2, 4)] == [False, True, False]


def test_a_parameter_that_was_never_drawn_is_drawn_and_its_neighbours_are_kept():
    model = deep(2, phi=nn.ReLU)
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    others = [p.clone() for n, p in model.named_parameters() if n != "2.weight"]
    found = treat(model, learnable(), "cross_entropy", **QUICK | {"steps": 30})
    assert found.kept, found.reason
    assert found.before.findings[0].code == "non-finite"
    if found.remedy == "redraw":
        assert all(
            torch.equal(p, q)
            for p, q in zip(others, [p for n, p in model.named_parameters() if n != "2.weight"], strict=True)
        )
    assert model[2].weight.isfinite().all()


def test_a_diverging_run_counts_as_infinite_and_is_not_kept():
    model = deep(2, phi=nn.Tanh)
    before = state_of(model)
    loud = [(100 * x, y) for x, y in learnable()]
    options = {"with_": "unit-variance", "optimizer": "sgd", "learning_rate": 1e6, "steps": 20}
    found = treat(model, loud, lambda o, t: o.square().sum() * 1e6, **options)
    assert found.treated.held_out == float("inf")
    assert not found.kept
    assert state_of(model) == before


class OutOfPatience(Exception):
    pass


class Interrupting:
    """A loss that raises, or returns NaN, at its n-th call."""

    def __init__(self, at, what):
        self.left, self.what = at, what

    def __call__(self, outputs, targets):
        self.left -= 1
        if self.left == 0 and isinstance(self.what, type):
            raise self.what
        value = F.cross_entropy(outputs, targets)
        return value * torch.nan if self.left == 0 else value


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 40),
    st.sampled_from([KeyboardInterrupt, SystemExit, OutOfPatience]),
    st.sampled_from(["lcw", "unit-variance"]),
)
def test_an_interrupt_at_any_call_restores_bit_for_bit(at, error, with_):
    model = deep(3)
    before, drawn = state_of(model), randomness()
    loss = Interrupting(at, error)
    try:
        found = treat(model, learnable(), loss, with_=with_, **QUICK)
    except (error, ValueError):
        assert state_of(model) == before
    else:
        assert loss.left > 0
        assert found.kept or state_of(model) == before
    assert randomness() == drawn


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.integers(1, 40))
def test_a_loss_that_is_not_finite_is_survived(at):
    model = deep(3)
    before, drawn = state_of(model), randomness()
    found = treat(model, learnable(), Interrupting(at, "nan"), with_="unit-variance", **QUICK)
    assert found.kept or state_of(model) == before
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert randomness() == drawn


@pytest.mark.parametrize("name", ["unit-variance", "lcw", "centre"])
def test_remedies_called_alone_restore_when_they_fail(name):
    model = mlp()
    nn.init.constant_(model[2].weight, torch.inf)
    before = state_of(model)
    with pytest.raises(ValueError, match="layer '2'"):
        REMEDIES[name](model, flat())
    assert state_of(model) == before


@pytest.mark.parametrize("name", ["unit-variance", "lcw", "centre"])
def test_zero_weights_are_left_as_they_are(name):
    model = case("zero head").model()
    REMEDIES[name](model, flat())
    assert not model[4].weight.any()


def test_repeatable_also_with_dropout_whatever_the_global_seed():
    def run(seed):
        random.seed(seed)
        torch.manual_seed(seed)
        model = case("norm and dropout").model()
        return treat(model, flat(), "cross_entropy", with_="unit-variance", **QUICK).treated.losses

    with torch.random.fork_rng():
        assert run(1) == run(2)


def test_only_remedies_that_apply_are_announced():
    """Vanishing gradients name long memory and recurrent weights too, of which a plain network has none."""
    told = []

    def progress(text, _):
        if text not in told[-1:]:
            told.append(text)

    found = treat(deep(), learnable(), "cross_entropy", progress=progress, **QUICK)
    assert "vanishing-gradients" in {f.code for f in found.before.findings}
    tried = [line.removeprefix("trying ") for line in told if line.startswith("trying ") and "rates" not in line]
    assert tried == [attempt.remedy for attempt in found.attempts]
    assert {"lcw", "unit-variance"} <= set(tried)
    assert not [line for line in told if "memory" in line or "recurrent" in line]


def test_an_initializer_with_a_result_of_its_own_is_one_line_in_the_table(monkeypatch):
    monkeypatch.setitem(REMEDIES, "plain", lambda m, b, loss, *, generator: Applied(unit_variance(m, b).skipped))
    model = deep(3, phi=nn.Tanh)
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=1e-3)
    found = treat(model, learnable(), "cross_entropy", with_="plain", **QUICK | {"steps": 30})
    assert found.kept, found.reason


@pytest.mark.slow
def test_a_remedy_that_needs_a_lower_rate_than_the_users_is_tried_at_lower_ones():
    """A dead start survives any rate; the remedy that wakes it diverges at this one and learns at a tenth."""
    torch.manual_seed(0)
    layers = [m for _ in range(20) for m in (nn.Linear(16, 16), nn.ReLU())]
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *layers, nn.Linear(16, 1))
    x = torch.randn(256, 8)
    y = x[:, :1] * x[:, 1:2] + 1
    told: list[str] = []
    data = list(zip(x.split(16), y.split(16), strict=True))
    done = treat(net, data, "mse", learning_rate=1.0, steps=60, progress=lambda text, share: told.append(text))
    lower = [line for line in told if line.endswith("at lower rates")]
    assert "trying unit-variance at lower rates" in lower
    assert len(lower) == len(set(lower)) or done.kept
    attempt = next(a for a in done.attempts if a.remedy == "unit-variance")
    assert attempt.run.rate < 1.0
    assert math.isfinite(attempt.run.held_out)


def test_an_optimizer_that_evaluates_the_loss_itself_is_replaced_by_sgd():
    model, batches = deep(2), learnable()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"with_": "unit-variance", "steps": 3, "generator": 0}
    found = treat(model, batches, "cross_entropy", optimizer=torch.optim.LBFGS(model.parameters()), **options)
    assert found.untreated.optimizer == "sgd"
    assert found.kept or all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
