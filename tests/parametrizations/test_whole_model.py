"""`parametrize_` and `remove_` over whole models: ties, frozen and unfit layers, optimizers, failures."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import theta0
from cases import CASES
from states import state_of
from theta0._batches import load_batches
from theta0._models import main_output, outputs_of, unwrapped
from theta0.measurements import activation_shift
from theta0.parametrizations import (
    has_zero_sums,
    is_linearly_constrained,
    parametrize_,
    remove_,
    reparametrize,
    whole_model,
)

METHODS = ["lcw", "cwn", "weight-norm", "spectral-norm"]
each_method = pytest.mark.parametrize("method", METHODS)


def mixed():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(4, 4, 1, groups=4),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, 8),
        nn.Linear(8, 2),
    )
    net[6].weight.requires_grad_(False)
    nn.init.zeros_(net[7].weight)
    return net


EXPECTED = {
    "lcw": ({"0.weight", "2.weight", "4.weight", "7.weight"}, {"1.weight": "fan-in 1", "6.weight": "frozen"}),
    "cwn": (
        {"0.weight", "2.weight", "4.weight"},
        {"1.weight": "fan-in 1", "6.weight": "frozen", "7.weight": "equal weights"},
    ),
    "weight-norm": (
        {"0.weight", "1.weight", "2.weight", "4.weight"},
        {"6.weight": "frozen", "7.weight": "zero weights"},
    ),
    "spectral-norm": (
        {"0.weight", "1.weight", "2.weight", "4.weight"},
        {"6.weight": "frozen", "7.weight": "weights zero"},
    ),
}


@each_method
def test_what_is_taken_and_what_is_left_with_a_reason(method):
    net = mixed()
    frozen = net[6].weight.clone()
    done = reparametrize(net, method)
    weights, reasons = EXPECTED[method]
    assert set(done.weights) == weights
    assert done.skipped.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in done.skipped[name]
    assert torch.equal(net[6].weight, frozen)
    assert not net[6].weight.requires_grad
    x = torch.randn(5, 3, 8, 8)
    assert net.eval()(x).isfinite().all()


def test_a_failure_or_a_warning_that_raises_leaves_the_model_as_it_was(monkeypatch):
    def refuse(_):
        raise RuntimeError("refused")

    net = nn.Sequential(nn.Linear(4, 4))
    before = state_of(net)
    with monkeypatch.context() as broken:
        broken.setattr("theta0.parametrizations.whole_model.read_weights_when_called_", refuse)
        with pytest.raises(RuntimeError, match="refused"):
            parametrize_(net, "lcw")
    assert state_of(net) == before
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with pytest.raises(UserWarning, match="optimizer made before"):  # warnings are errors here
        parametrize_(net, "cwn")
    assert state_of(net) == before
    del optimizer
    parametrize_(net, "cwn")
    before, optimizer = state_of(net), torch.optim.SGD(net.parameters(), 0.1)
    with pytest.raises(UserWarning, match="optimizer made before"):
        remove_(net)
    assert state_of(net) == before
    assert optimizer.param_groups


@pytest.mark.parametrize("name", [c.name for c in CASES if c.name not in ("lazy",)])
def test_every_network_of_the_suite_there_and_back(name):
    c = next(c for c in CASES if c.name == name)
    model = c.model()
    inner = unwrapped(model)
    inner.eval()
    batch = load_batches(c.batches(), inner, max_batches=1)[0]
    keys = list(inner.state_dict())
    already = [m for m in inner.modules() if parametrize.is_parametrized(m)]
    try:
        parametrize_(model, "lcw")
    except ValueError as error:
        assert "got none" in str(error)  # noqa: PT017 - networks of embeddings, frozen or bare parameters
        return
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # the suite's type checks cannot be traced
        before = main_output(outputs_of(inner, batch.inputs))
        remove_(model)
        after = main_output(outputs_of(inner, batch.inputs))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    if not already:
        assert list(inner.state_dict()) == keys


class Tied(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.embed = nn.Embedding(6, 4) if embedding else nn.Linear(4, 6)
        self.middle, self.head = nn.Linear(4, 4), nn.Linear(4, 6)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.embed(x) + self.head(self.middle(x))


def test_a_tie_to_an_embedding_is_refused_with_a_reason():
    net = Tied(embedding=True)
    done = reparametrize(net, "lcw")
    assert done.weights == ("middle.weight",)
    assert "'embed.weight'" in done.skipped["head.weight"]
    assert net.head.weight is net.embed.weight


@each_method
def test_a_tie_between_layers_whose_units_differ_is_refused(method):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.ConvTranspose2d(8, 3, 3))
    net[2].weight = net[0].weight
    done = reparametrize(net, method)
    assert done.weights == ("1.weight",)
    assert "units lie along another axis" in done.skipped["0.weight"]
    assert "tied to '0.weight'" in done.skipped["2.weight"]


@each_method
def test_tied_layers_are_parametrized_jointly_and_stay_tied(method):
    torch.manual_seed(0)
    net = Tied(embedding=False).eval()
    names, count = list(net.state_dict()), len(list(net.parameters()))
    parametrize_(net, method)
    extra = {"lcw": 0, "spectral-norm": 0}.get(method, 2)
    assert len(list(net.parameters())) == count + extra
    x = torch.randn(3, 4)
    twin = copy.deepcopy(net)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    twin(x).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(twin.embed.weight, twin.head.weight, rtol=0, atol=0)
    assert not torch.equal(twin.embed.weight, net.embed.weight)
    before = net(x)
    remove_(net)
    assert net.embed.weight is net.head.weight
    assert list(net.state_dict()) == names
    torch.testing.assert_close(net(x), before, rtol=0, atol=1e-6)


@each_method
def test_an_optimizer_made_before(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if method in ("cwn", "weight-norm"):
        with pytest.warns(UserWarning, match="an optimizer made before"):
            parametrize_(net, method)
        return
    parametrize_(net, method)
    before = net[0].weight.detach().clone()
    net(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(net[0].weight, before)
    remove_(net)
    assert optimizer.param_groups[0]["params"][0] is net[0].weight


def test_optimizers_of_other_models_are_not_warned_of():
    other = nn.Linear(4, 5)
    optimizer = torch.optim.Adam(other.parameters())
    net = parametrize_(nn.Sequential(nn.Linear(4, 5)), "cwn")
    own = torch.optim.Adam(net.parameters())
    with pytest.warns(UserWarning, match="an optimizer made before"):
        remove_(net)
    assert optimizer is not own


@each_method
def test_a_failure_half_way_leaves_the_model_as_it_was(method, monkeypatch):
    net = mixed()
    before, calls, real = state_of(net), [], whole_model._METHODS[method]

    def failing(layer, name):
        calls.append(name)
        if len(calls) == 3:
            raise RuntimeError("interrupted")
        return real(layer, name)

    monkeypatch.setitem(whole_model._METHODS, method, failing)
    with pytest.raises(RuntimeError, match="interrupted"):
        parametrize_(net, method)
    assert state_of(net) == before


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "method", "skip", "message"),
    [
        (mixed, "polar", (), "method: expected one of 'lcw', 'cwn', 'weight-norm', 'spectral-norm', got 'polar'"),
        (mixed, "lcw", ["nowhere"], r"skip: .*\['nowhere'\]"),
        (mixed, "lcw", "0", r"skip: expected a collection"),
        (mixed, "lcw", None, r"skip: expected a collection"),
        (mixed, "lcw", (entry for entry in ["0"]), r"skip: expected a collection"),  # else used up by its check
        (mixed, "lcw", [0, nn.ReLU()], r"skip: expected a collection"),
        (mixed, ["lcw"], (), "method: expected one of"),
        (lambda: nn.Sequential(nn.ReLU()), "lcw", (), "it has no such layer"),
        (lambda: nn.Sequential(nn.Linear(1, 3)), "lcw", (), "0.weight: fan-in 1"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "lcw", (), "run one forward pass first"),
        (lambda: parametrize_(nn.Linear(3, 3), "lcw"), "cwn", (), "parametrized already"),
    ],
)
def test_errors_change_nothing(make, method, skip, message):
    net = make()
    before = None if any(nn.parameter.is_lazy(p) for p in net.parameters()) else state_of(net)
    with pytest.raises(ValueError, match=message):
        parametrize_(net, method, skip=skip)
    assert before is None or state_of(net) == before


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "verb", [lambda m: parametrize_(m, "lcw"), remove_, lambda m: activation_shift(m, [torch.ones(1, 2)])]
)
@pytest.mark.parametrize("model", [nn.Linear, [nn.Linear(2, 2)]])
def test_what_is_no_module_is_refused(verb, model):
    with pytest.raises(ValueError, match=r"model: expected a torch.nn.Module"):
        verb(model)


@each_method
def test_random_numbers_are_left_alone(method):
    torch.manual_seed(3)
    expected = torch.rand(1)
    net = nn.Linear(4, 4)
    torch.manual_seed(3)
    parametrize_(net, method)
    assert torch.equal(torch.rand(1), expected)


def test_other_parametrizations_stay():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    parametrize.register_parametrization(net[0], "weight", nn.Tanh())
    parametrize_(net, "lcw")
    assert has_zero_sums(net[1])
    assert not has_zero_sums(net[0])
    assert remove_(remove_(net)) is net
    assert parametrize.is_parametrized(net[0])
    assert not is_linearly_constrained(net[1])


def test_the_one_weight_of_a_bare_layer():
    layer = nn.Linear(4, 4)
    done = reparametrize(layer, "lcw")
    assert done.weights == ("weight",)
    assert type(theta0.remove_(layer)) is nn.Linear


def test_a_weight_frozen_afterwards_is_a_frozen_parameter_after_removal():
    net = parametrize_(nn.Sequential(nn.Linear(4, 4)), "cwn")
    net.requires_grad_(False)
    remove_(net)
    assert isinstance(net[0].weight, nn.Parameter)
    assert not net[0].weight.requires_grad
    assert list(net.state_dict()) == ["0.weight", "0.bias"]
