"""The suggestion has been tried, wherever a training step works; where nothing trains there is none."""

import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from curvature_cases import net
from states import state_of
from theta0._training import OptimizerSettings, make_optimizer
from theta0.experiments import suggest_learning_rate
from theta0.initializers import unit_variance_


def digits(seed: int, hidden: int, nonlinearity=nn.ReLU, *, raw: bool = True):
    """Plain networks on digits, 12 batches of 128."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    x = x if raw else (x - x.mean()) / x.std()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1536]
    widths = [64, *[128] * hidden, 10]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [part for i in range(hidden + 1) for part in (nn.Linear(widths[i], widths[i + 1]), nonlinearity())]
    return nn.Sequential(*layers[:-1]), [(x[part], torch.tensor(data.target)[part]) for part in order.split(128)]


def after(model, batches, optimizer, rate: float, steps: int, warm_up: int = 0) -> float:
    step_of = make_optimizer(OptimizerSettings(optimizer), model.parameters(), rate)
    for step in range(steps):
        step_of.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / max(1, warm_up))
        x, y = batches[step % len(batches)]
        step_of.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step_of.step()
    return sum(float(nn.functional.cross_entropy(model(x), y).detach()) for x, y in batches) / len(batches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize("name", ["mlp", "bn-resnet", "transformer"])
def test_the_suggestion_is_the_rate_of_a_run_that_trained(name, optimizer):
    model, x, y, loss = net(name)
    before = state_of(model)
    batches = [(x[: len(x) // 2], y[: len(x) // 2]), (x[len(x) // 2 :], y[len(x) // 2 :])]
    found = suggest_learning_rate(model, batches, loss, optimizer, generator=0)
    assert state_of(model) == before
    assert found.proven
    chosen = [run for run in found.runs if run.rate == found.value]
    assert [run.outcome for run in chosen] == ["trains"]
    assert sum(chosen[0].losses[-4:]) < sum(chosen[0].losses[:4])
    rates = [run.rate for run in found.runs]
    assert rates == sorted(rates)
    assert rates[1] / rates[0] == pytest.approx(3)
    assert found.cost >= sum(len(run.losses) for run in found.runs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
@pytest.mark.parametrize(("hidden", "nonlinearity"), [(4, nn.ReLU), (4, nn.Tanh)])
def test_plain_networks_whose_curvature_grows_reach_seven_tenths_of_chance(optimizer, hidden, nonlinearity):
    """Their λ grows sixtyfold in the first forty steps: at the curvature's own rate they diverge."""
    for seed in range(2):
        model, batches = digits(seed, hidden, nonlinearity, raw=False)
        found = suggest_learning_rate(model, batches, "cross_entropy", optimizer, generator=seed)
        assert found.cost <= 400
        assert after(model, batches, optimizer, found.value, 100) < 0.7 * math.log(10)


def test_where_no_rate_trains_there_is_no_rate_but_a_reason():
    """Constant inputs and balanced labels: no weights do better than chance."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    found = suggest_learning_rate(
        model, [(torch.ones(8, 3), torch.arange(8) % 2)], "cross_entropy", "adam", generator=0
    )
    assert found.value is None
    assert not found.proven
    assert "lowered the loss" in found.reason
    assert found.cost <= 400


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_plateau_of_forty_steps_is_waited_out(seed):
    """Raw pixels: for forty steps the rate that falls fastest is one that never leaves the plateau."""
    model, batches = digits(seed, 4)
    found = suggest_learning_rate(model, batches, "cross_entropy", "sgd", generator=seed)
    assert found.cost <= 400
    chosen = next(run for run in found.runs if run.rate == found.value)
    assert sum(chosen.losses[-8:]) / 8 < 0.8 * math.log(10)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_on_a_lasting_plateau_a_higher_rate_that_the_start_threw_back_goes_on(optimizer):
    """All low rates lie on the plateau at 80 steps; the one that leaves it first was behind them at ten."""
    model, batches = digits(1, 4, nn.Sigmoid, raw=False)
    unit_variance_(model, batches)
    found = suggest_learning_rate(model, batches, "cross_entropy", optimizer, generator=1)
    assert found.cost <= 400
    assert [run.rate for run in found.runs][-1] == found.value
    assert after(model, batches, optimizer, found.value, 200) < 0.7 * math.log(10)


def test_a_leader_that_stands_still_gives_way_to_a_lower_rate():
    """Units that a high rate kills reach the best constant first, and stay there."""
    _, batches = digits(0, 2)
    images = [(x, x) for x, _ in batches]
    with torch.random.fork_rng():
        torch.manual_seed(3)
        parts = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 32), nn.ReLU()]
        model = nn.Sequential(*parts, nn.Linear(32, 64), nn.Sigmoid())
    found = suggest_learning_rate(model, images, "mse", "momentum", generator=0)
    constant = float(torch.cat([x for x, _ in images]).var(0, correction=0).mean())
    chosen = next(run for run in found.runs if run.rate == found.value)
    assert sum(chosen.losses[-8:]) / 8 < 0.9 * constant


@pytest.mark.slow
def test_a_warm_up_helps_where_the_start_is_sharp():
    """Weights half as large again as He's: λ falls fiftyfold, and three times the rate diverges unless it is raised."""

    def sharp():
        _, batches = digits(0, 3, raw=False)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            linear = [nn.Linear(i, o) for i, o in ((64, 128), (128, 128), (128, 128), (128, 10))]
            for layer in linear:
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)
                layer.weight.data.mul_(1.5)
        return nn.Sequential(*[part for layer in linear for part in (layer, nn.ReLU())][:-1]), batches

    model, batches = sharp()
    found = suggest_learning_rate(model, batches, "cross_entropy", "sgd", generator=0, warm_up=True)
    assert found.growth < 0.1
    steps, rate = found.warm_up
    assert rate == pytest.approx(3 * found.value)
    raised = after(*sharp(), "sgd", rate, 200, warm_up=steps)
    assert raised < 0.5 * after(*sharp(), "sgd", found.value, 200)
    assert not after(*sharp(), "sgd", rate, 200) < math.log(10)  # it may be NaN


def test_a_sharp_start_is_said():
    """One layer of weights ten times too large: λ falls as the outputs do."""
    _, batches = digits(0, 1, raw=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        model[2].weight.data.mul_(10)
    found = suggest_learning_rate(model, batches, "cross_entropy", "sgd", generator=0)
    assert any("--warm-up" in sentence for sentence in found.advice) == (found.growth < 0.1)


def test_a_warm_up_is_not_suggested_where_it_does_not_help():
    """λ grows to the bound: what the rate is raised to at last is unstable all the same."""
    model, batches = digits(0, 4, raw=False)
    found = suggest_learning_rate(model, batches, "cross_entropy", "sgd", generator=0, warm_up=True)
    assert found.growth > 1
    assert found.warm_up is None
    assert not any("--warm-up" in sentence for sentence in found.advice)


def far_targets(seed: int):
    """Targets of mean 300 and deviation 50, as they come."""
    draws = torch.Generator().manual_seed(5)
    x = torch.randn(768, 8, generator=draws)
    smooth = torch.tanh(x @ torch.randn(8, 16, generator=draws) / 8**0.5) @ torch.randn(16, 1, generator=draws)
    y = 300 + 50 * smooth / smooth.std()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    return nn.Sequential(*parts), list(zip(x.split(64), y.split(64), strict=True))


@pytest.mark.slow
def test_targets_far_from_zero_get_a_rate_within_three_of_the_best():
    """In forty steps the rate that carries the outputs there first wins; only later is it seen which one trains."""
    model, batches = far_targets(0)
    found = suggest_learning_rate(model, batches, "mse", "adam", generator=0)
    assert found.cost <= 400
    losses = {}
    for factor in (1 / 9, 1 / 3, 1, 3, 9):
        model, _ = far_targets(0)
        step_of = torch.optim.Adam(model.parameters(), factor * found.value)
        for step in range(200):
            x, y = batches[step % len(batches)]
            step_of.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            step_of.step()
        losses[factor] = sum(float(nn.functional.mse_loss(model(x), y).detach()) for x, y in batches)
    assert 1 / 3 <= min(losses, key=losses.get) <= 3


def test_no_steps_give_what_the_curvature_says_and_say_that_it_is_unproven():
    model, x, y, loss = net("mlp")
    found = suggest_learning_rate(model, [(x, y)], loss, steps=0, generator=0)
    assert found.value == pytest.approx(found.bound / 4)
    assert not found.proven
    assert not found.runs
    assert "no run has tried it" in found.reason


class Slope(nn.Module):
    """u' + u = 0 by a derivative inside the forward pass."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        u = self.body(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return torch.cat([slope + u, self.body(torch.zeros(1, 1)).expand(len(x), 1) - 1], 1)


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.second(torch.relu(checkpoint(self.first, x.requires_grad_(), use_reentrant=True)))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 8, sparse=True), nn.Linear(8, 2)

    def forward(self, codes):
        return self.head(self.embedding(codes).mean(1))


X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
CODES = torch.randint(30, (64, 5), generator=torch.Generator().manual_seed(0))
HARD = {
    "gradients inside forward": (Slope, [(torch.linspace(0, 2, 32)[:, None], torch.zeros(32, 2))], "mse", "adam"),
    "re-entrant checkpointing": (Reentrant, [(X, X.sum(1, keepdim=True))], "mse", "sgd"),
    "an absolute error": (lambda: nn.Linear(4, 1), [(X, X.sum(1, keepdim=True))], "l1", "adam"),
    "sparse embeddings": (Words, [(CODES, (CODES[:, 0] > 14).long())], "cross_entropy", "sgd"),
    "large targets": (lambda: nn.Linear(4, 1), [(X, 1e4 * X.sum(1, keepdim=True))], "mse", "sgd"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", HARD)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_wherever_a_training_step_works(name):
    make, batches, loss, optimizer = HARD[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
    before = state_of(model)
    found = suggest_learning_rate(model, batches, loss, optimizer, generator=0)
    assert state_of(model) == before
    assert found.proven
    chosen = next(run for run in found.runs if run.rate == found.value)
    assert chosen.losses[-1] < 0.9 * chosen.losses[0]


@pytest.mark.slow
def test_large_targets_are_named():
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    found = suggest_learning_rate(model, [(X, 1e4 + X[:, :1])], "mse", "adam", generator=0)
    assert any("standardize the targets" in sentence for sentence in found.advice)
    plain = suggest_learning_rate(model, [(X, X[:, :1])], "mse", "adam", generator=0)
    assert not plain.advice


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_no_adaptive_rate_replaces_the_weights_in_one_step(optimizer):
    """Weights with next to no gradient make the preconditioned curvature anything."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Sigmoid(), nn.Linear(16, 2))
    with torch.no_grad():
        model[2].weight.mul_(1e-6)
    found = suggest_learning_rate(model, [(X, (X[:, 0] > 0).long())], "cross_entropy", optimizer, generator=0)
    assert all(run.rate <= 1 for run in found.runs)


def test_a_curvature_of_one_point_does_not_keep_a_rate_from_being_found():
    """The distance of two equal outputs: the root's slope there is cut at 1e-6, and its curvature is 1e9 or more."""

    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, x):
            a, b = self.net(x[:, 0]), self.net(x[:, 1])
            return ((a - b).square().sum(1) + 1e-12).sqrt()

    torch.manual_seed(0)
    x = torch.randn(64, 2, 4)
    x[0, 1] = x[0, 0]
    y = (x[:, 0] - x[:, 1]).norm(dim=1)
    found = suggest_learning_rate(Distances(), [(x, y)] * 4, "mse", "adam", generator=0)
    assert found.value is not None
    assert found.proven
    assert found.value > 1e-4


def test_a_leader_far_above_its_bound_gives_way_to_the_next_lower_rate_that_trains():
    """One batch of eight has larger inputs: a rate at which it alone would diverge is ahead, and not suggested."""
    draws = torch.Generator().manual_seed(0)
    x = [(2.0 if number == 0 else 1.0) * torch.randn(16, 4, generator=draws) for number in range(8)]
    torch.manual_seed(0)
    found = suggest_learning_rate(nn.Linear(4, 1), [(b, b.sum(1, keepdim=True)) for b in x], "mse", generator=0)
    unstable = [run for run in found.runs if run.outcome == "unstable"]
    bound = 2 / float(torch.linalg.eigvalsh(2 * x[0].double().T @ x[0].double() / 16)[-1])
    assert [run.rate > 1.5 * bound for run in unstable] == [True]
    assert found.value == pytest.approx(unstable[0].rate / 3)
    assert found.reason.endswith("of the rates below the bound at the end")


def test_a_warm_up_is_not_tried_beyond_the_rate_that_replaces_the_weights():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(1e-3)
        model.bias.fill_(1e-3)
    options = {"generator": 0, "warm_up": True}
    found = suggest_learning_rate(model, [(X, X.sum(1, keepdim=True))], "mse", "adam", **options)
    assert found.warm_up is None or found.warm_up[1] <= 1


def test_a_model_that_returns_its_own_loss_gets_no_advice_on_targets():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": nn.functional.mse_loss(self.layer(x), labels)}

    torch.manual_seed(0)
    batches = [{"x": X, "labels": 1e4 * X.sum(1, keepdim=True)}]
    found = suggest_learning_rate(Own(), batches, None, "sgd", generator=0)
    assert found.proven
    assert found.advice == ()
