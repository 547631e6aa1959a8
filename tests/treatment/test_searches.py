"""Starts that a search finds, as remedies: all or nothing, for what they suit, told with their cost."""

from functools import partial

import pytest
import torch
from torch import nn

from cases import SAMPLED, case, flat, mlp, normal
from states import randomness, state_of
from theta0._errors import InapplicableError
from theta0._models import unwrapped
from theta0.diagnosis import RULES
from theta0.treatment import REMEDIES, treat
from theta0.treatment.searches import SEARCHES

FEW = {name: {"steps": 2} for name in SEARCHES} | {"mmd": {"steps": 2, "perturbations": 4}}
QUICK = {"optimizer": "momentum", "learning_rate": 0.1, "steps": 8}


class Watched(nn.Module):
    """A model that tells each forward pass."""

    def __init__(self, inner, told):
        super().__init__()
        self.inner, self.told = inner, told

    def forward(self, x):
        self.told()
        return self.inner(x)


class Countdown:
    def __init__(self, at, error):
        self.at, self.calls, self.error = at, 0, error

    def __call__(self):
        self.calls += 1
        if self.calls == self.at:
            raise self.error


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.last(torch.relu(self.first(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(1, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(x[..., None])[0][:, -1])


def ill():
    """Branches, a large head, a layer that was never drawn, copies, and two zero factors."""
    model = nn.Sequential(nn.Linear(6, 6), Block(), Block(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[5].weight.mul_(100)
        model[3].weight[1:] = model[3].weight[0]
        model[3].bias[1:] = model[3].bias[0]
    return model


def lost():
    model = nn.Sequential(nn.Linear(6, 6), nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    return model


def asleep():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    for layer in model[1:]:
        nn.init.zeros_(layer.weight)
    return model


BUILDERS = (ill, lost, asleep, Recurrent)


def watched(build, told):
    torch.manual_seed(0)
    return Watched(build(), told)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REMEDIES)
def test_every_remedy_that_is_broken_off_leaves_the_model_bit_for_bit(name):
    apply = partial(REMEDIES[name], **FEW.get(name, {}), generator=0)
    for build in BUILDERS:
        whole = Countdown(0, RuntimeError)
        model = watched(build, whole)
        before = state_of(model)
        try:
            apply(model, flat(), "cross_entropy")
        except ValueError:
            assert state_of(model) == before
        for at, error in (
            (1, KeyboardInterrupt),
            (whole.calls // 2 + 1, RuntimeError),
            (max(1, whole.calls), KeyboardInterrupt),
        ):
            broken = Countdown(at, error)
            model = watched(build, broken)
            before, drawn = state_of(model), randomness()
            try:
                apply(model, flat(), "cross_entropy")
            except (error, ValueError):
                assert state_of(model) == before
            else:
                assert error is RuntimeError or broken.calls < at, f"an interrupt at call {at} was swallowed"
            assert randomness() == drawn


@pytest.mark.sampled(4)
@pytest.mark.parametrize("c", SAMPLED, ids=lambda c: c.name)
@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_changes_values_only_or_nothing_at_all(c, name):
    if c.name == "lazy":
        pytest.skip("told by every remedy alike")
    model = c.model()
    inner = unwrapped(model)
    before, drawn = state_of(inner), randomness()
    frozen = {n: p.detach().clone() for n, p in inner.named_parameters() if not p.requires_grad}
    try:
        REMEDIES[name](model, c.batches(), c.loss, generator=0, **FEW[name])
    except ValueError:
        assert state_of(inner) == before
    after = state_of(inner)
    assert randomness() == drawn
    assert list(after) == list(before)
    assert all((v[0], v[3:]) == (before[n][0], before[n][3:]) for n, v in after.items() if len(v) == 7 and n != "keys")
    assert all(torch.equal(value, dict(inner.named_parameters())[n]) for n, value in frozen.items())


@pytest.mark.slow
def test_a_search_tells_what_it_cost_and_repeats_itself():
    for name in SEARCHES:
        models = [case("mlp").model(), case("mlp").model()]
        for model in models:
            done = REMEDIES[name](model, flat(), "cross_entropy", generator=1, **FEW[name])
            assert done.cost > 0
            assert done.kept or "the start is unchanged" in done.reason
        assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True))


@pytest.mark.parametrize("name", ["mmd", "random-labels"])
def test_what_spreads_classes_is_refused_where_there_are_none(name):
    model = mlp()
    before = state_of(model)
    numbers = [(normal(8, 6, seed=i), normal(8, 3, seed=i)) for i in range(4)]
    for loss, told in (
        ("mse", "the loss 'mse'"),
        (lambda o, t: (o - t).square().mean(), "targets of type torch.float"),
    ):
        with pytest.raises(InapplicableError, match=f"expected a classifier of two classes or more, got {told}"):
            REMEDIES[name](model, numbers, loss)
    single = nn.Sequential(nn.Linear(6, 1))
    with pytest.raises(ValueError, match="at least two logits"):
        REMEDIES[name](single, flat(), "cross_entropy")
    assert state_of(model) == before


@pytest.mark.parametrize("name", ["mmd", "random-labels"])
def test_what_a_loss_is_says_whether_there_are_classes(name):
    shares = [(x, nn.functional.one_hot(y, 3).float()) for x, y in flat()]
    for loss in (
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(torch.ones(3), label_smoothing=0.1),
        nn.functional.cross_entropy,
        "cross_entropy",
    ):
        model = mlp()
        assert REMEDIES[name](model, shares, loss, generator=0, **FEW[name]).kept
    for loss, told in (
        (nn.MSELoss(), r"MSELoss\(\)"),
        (nn.L1Loss(reduction="sum"), r"L1Loss\(\)"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), r"BCEWithLogitsLoss\(\)"),
        (nn.functional.mse_loss, "'mse'"),
    ):
        with pytest.raises(
            InapplicableError, match=f"expected a classifier of two classes or more, got the loss {told}"
        ):
            REMEDIES[name](mlp(), flat(), loss)


def test_mmd_needs_several_samples():
    with pytest.raises(ValueError, match="expected at least two samples, got 1"):
        REMEDIES["mmd"](mlp(), [(x[:1], y[:1]) for x, y in flat()], "cross_entropy")


def test_a_search_that_finds_nothing_better_is_no_error_of_the_users(monkeypatch):
    monkeypatch.setitem(REMEDIES, "nio", partial(SEARCHES["nio"], gradient_norm_cap=1e-6, steps=5))
    model = case("mlp").model()
    before = state_of(model)
    data = [(normal(16, 6, seed=i), torch.arange(16) % 3) for i in range(4)]
    found = treat(model, data, "cross_entropy", with_="nio", **QUICK)
    assert (found.remedy, found.kept, found.after, found.treated) == ("nio", False, None, None)
    assert found.reason.startswith("Not kept: nio: expected a gradient norm of at most ")
    assert found.reason.endswith("the start is unchanged.")
    assert found.cost > found.before.cost + 5
    assert state_of(model) == before


def test_auto_takes_no_search_where_something_cheap_answers():
    searches = {rule.code: [name for name in rule.remedies if name in SEARCHES] for rule in RULES}
    assert {code: names for code, names in searches.items() if names} == {"gradient-conflict": ["nio"]}


def test_lsuv_draws_orthogonal_weights_and_leaves_zeros():
    model, zeros = mlp(), case("zero head").model()
    REMEDIES["lsuv"](model, flat(), generator=0)
    weight = model[0].weight.detach().double()
    gram = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
    torch.testing.assert_close(gram, torch.eye(len(gram)).double() * gram.trace() / len(gram), atol=1e-5, rtol=0)
    assert model[0](torch.cat([x for x, _ in flat()])).std().item() == pytest.approx(1, rel=0.1)
    REMEDIES["lsuv"](zeros, flat(), generator=0)
    assert not zeros[4].weight.any()


def test_looking_for_zeros_moves_no_buffers():
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 3))
    nn.init.constant_(model[2].weight, torch.inf)
    before = state_of(model)
    for name in ("unit-variance", "lcw", "lsuv"):
        with pytest.raises(ValueError, match="layer"):
            REMEDIES[name](model, flat())
        assert state_of(model) == before
