"""The user's model is sacred: bit-identical after every observation, also when something raises in the middle."""

import copy
import os
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import theta0
from cases import Case, case, each_diverse_case, flat, mlp, normal
from cases import unprobed as diagnose
from states import randomness, state_of
from theta0._models import unwrapped
from theta0._state import preserve_state, snapshot, tensor_files
from theta0.experiments import suggest_learning_rate
from theta0.measurements import activation_shift, gradients, neuron_shifts, signals


def _where_it_exists(measure, model, batches, loss):
    """Some networks have no per-sample gradients or no curvature: an explained refusal leaves no trace either."""
    with suppress(ValueError):
        measure(model, batches, loss)


OBSERVATIONS = {
    "diagnose": diagnose,
    "diagnose with a probe": lambda model, batches, loss: theta0.diagnose(model, batches, loss, probe_steps=12),
    "signals": signals,
    "activation_shift": lambda model, batches, loss: activation_shift(model, batches),
    "diagnose with a rate": lambda model, batches, loss: diagnose(
        model, batches, loss, optimizer="adam", learning_rate=1e-3
    ),
    "gradients": lambda model, batches, loss: _where_it_exists(gradients, model, batches, loss),
    "suggest_learning_rate": lambda model, batches, loss: _where_it_exists(suggest_learning_rate, model, batches, loss),
}
each_observation = pytest.mark.parametrize("observe", OBSERVATIONS.values(), ids=OBSERVATIONS.keys())


class Stop(Exception):
    pass


def prepared(c: Case) -> tuple[nn.Module, list[str]]:
    """A model with the user's own hooks and half of the gradients there; and what the hooks saw."""
    model, seen = c.model(), []
    inner = unwrapped(model)
    for number, p in enumerate(inner.parameters()):
        if number % 2 and p.requires_grad and not isinstance(p, nn.UninitializedParameter):
            p.grad = torch.full_like(p, 0.5)
    for module in list(inner.modules())[:2]:
        module.register_forward_hook(lambda *_: seen.append("forward"))
        module.register_forward_pre_hook(lambda *_: seen.append("before"))
        module.register_state_dict_post_hook(lambda *_: None)
    return model, seen


@pytest.mark.sampled(8)
@each_observation
@each_diverse_case
def test_every_observation_leaves_the_model_and_the_generators_as_they_came(case, observe):
    model, _ = prepared(case)
    batches = case.batches()
    before, drawn = state_of(model), randomness()
    observe(model, batches, case.loss)
    assert randomness() == drawn
    assert state_of(model) == before


@each_diverse_case
def test_also_when_the_loss_raises_in_the_middle(case):
    model, _ = prepared(case)
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        torch.rand(3)
        if len(calls) == 2:
            raise Stop
        output = outputs[0] if isinstance(outputs, tuple) else getattr(outputs, "logits", outputs)
        return output.float().square().mean()

    before, drawn = state_of(model), randomness()
    with pytest.raises(ValueError, match="the loss raised Stop") as caught:
        diagnose(model, case.batches(), loss)
    assert isinstance(caught.value.__cause__, Stop)
    assert state_of(model) == before
    assert randomness() == drawn


@each_diverse_case
def test_also_when_the_forward_raises(case):
    model, _ = prepared(case)
    last = [m for m in unwrapped(model).modules() if not list(m.children())][-1]
    calls = []

    def interrupt(*_):
        calls.append(1)
        torch.rand(3)
        if len(calls) == 2:
            raise KeyboardInterrupt

    (model if case.name.startswith("compiled") else last).register_forward_hook(interrupt)
    unwrapped(model).register_forward_pre_hook(interrupt)
    before, drawn = state_of(model), randomness()
    with pytest.raises(KeyboardInterrupt):
        diagnose(model, case.batches(), case.loss)
    assert state_of(model) == before
    assert randomness() == drawn


def test_probe_steps_are_taken_back():
    model = case("zero head").model()
    before = state_of(model)
    report = diagnose(model, flat(), "cross_entropy", optimizer="momentum", learning_rate=1.0)
    assert report.cost > len(flat())  # probe steps were taken
    assert state_of(model) == before


def test_the_users_hooks_still_run():
    model, seen = prepared(case("mlp"))
    diagnose(model, flat(), "cross_entropy")
    seen.clear()
    model(flat()[0][0])
    assert seen == ["before", "before", "forward", "forward"]


@pytest.mark.parametrize("hook", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_users_backward_hooks_do_not_disturb(hook):
    model = mlp()
    getattr(model[2], hook)(lambda *_: None)
    before = state_of(model)
    found = {r.layer for r in signals(model, flat(), "cross_entropy") if r.quantity == "gradient_variance"}
    assert found == {"0", "2", "4"}
    assert state_of(model) == before


def test_a_lazy_model_stays_lazy():
    model = case("lazy").model()
    diagnose(model, flat(), "cross_entropy")
    assert isinstance(model[0], nn.LazyLinear)
    assert isinstance(model[0].weight, nn.UninitializedParameter)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_loaders_generator_stays_and_its_order_repeats(shuffle):
    data = TensorDataset(normal(20, 6), torch.arange(20) % 3)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(data, 5, shuffle=shuffle, generator=generator)
    before, drawn = generator.get_state(), randomness()
    first = diagnose(mlp_of_seed(), loader, "cross_entropy")
    assert torch.equal(generator.get_state(), before)
    assert randomness() == drawn
    assert diagnose(mlp_of_seed(), loader, "cross_entropy") == first


def test_a_loader_without_a_generator_does_not_move_the_global_one():
    loader = DataLoader(TensorDataset(normal(20, 6), torch.arange(20) % 3), 5, shuffle=True)
    drawn = randomness()
    diagnose(mlp_of_seed(), loader, "cross_entropy")
    assert randomness() == drawn


def mlp_of_seed():
    return case("mlp").model()


def test_dropout_draws_the_users_next_numbers_as_if_nothing_had_been():
    def trained(look):
        model = case("norm and dropout").model()
        torch.manual_seed(4)
        if look:
            diagnose(model, flat(), "cross_entropy")
        return model(flat()[0][0])

    with torch.random.fork_rng():
        assert torch.equal(trained(True), trained(False))


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_snapshot_restores_values_and_structure(value):
    model = case("norm and dropout").model()
    before = state_of(model)
    restore = snapshot(model)
    for _ in range(2):  # it may be called more than once
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.fill_(value if tensor.is_floating_point() else 3)
        nn.utils.parametrizations.orthogonal(model[0])
        model[0].requires_grad_(False)
        model.eval()
        model.register_buffer("more", torch.zeros(1))
        model.append(nn.Linear(3, 3))
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        restore()
        assert state_of(model) == before


def test_untouched_lets_the_exception_through():
    model = mlp()
    before = state_of(model)

    def fail():
        with preserve_state(model):
            model[0].weight.data.zero_()
            raise Stop

    with pytest.raises(Stop):
        fail()
    assert state_of(model) == before


def test_a_copy_cached_by_a_module_is_survived():
    """Modules that keep an activation cannot be deep-copied: the measurement must not try to."""

    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.last = None

        def forward(self, x):
            self.last = self.layer(x)
            return self.last

    model = Caching()
    model(flat()[0][0])
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)
    kept = model.last
    assert neuron_shifts(model, flat())
    diagnose(model, flat(), "cross_entropy")
    assert model.last is kept


def test_a_first_layer_that_works_in_place_does_not_reach_the_data():
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    before = x.clone()
    model = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 3))
    diagnose(model, [(x, y)], "cross_entropy")
    assert torch.equal(x, before)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_snapshot_in_a_file_puts_back_every_bit_and_as_often_as_asked(where, monkeypatch):
    monkeypatch.setenv("THETA0_SNAPSHOT", where)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2).to(torch.bfloat16), nn.Linear(2, 2))
    model[0].to(memory_format=torch.channels_last)  # no contiguous weights
    model[3].weight.data = torch.randn(2, 2).T
    model.register_buffer("phase", torch.randn(3, dtype=torch.cfloat))
    model.register_buffer("empty", torch.empty(0, 4))
    before = state_of(model)
    restore = snapshot(model)
    for _ in range(2):
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.zero_()
        assert state_of(model) != before
        restore()
        assert state_of(model) == before


def test_large_snapshots_are_files_that_are_gone_with_what_puts_them_back(monkeypatch, tmp_path):
    monkeypatch.setattr(tensor_files, "LIMIT", 1000)
    monkeypatch.setattr(tensor_files.tempfile, "tempdir", str(tmp_path))
    opened = len(os.listdir("/proc/self/fd"))
    restore = snapshot(nn.Linear(100, 100))
    assert len(os.listdir("/proc/self/fd")) == opened + 1
    assert not list(tmp_path.iterdir())  # a killed process leaves none
    del restore
    assert len(os.listdir("/proc/self/fd")) == opened
    in_memory = snapshot(nn.Linear(10, 10))
    assert len(os.listdir("/proc/self/fd")) == opened
    in_memory()
    monkeypatch.setenv("THETA0_SNAPSHOT", "somewhere")
    with pytest.raises(ValueError, match="expected auto, memory or disk"):
        snapshot(nn.Linear(1, 1))
