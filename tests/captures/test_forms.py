"""What a step becomes: a batch and a named loss where a target file states it so, else the script's own step."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import theta0

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(16, 4, generator=GENERATOR)
T = torch.randn(16, 2, generator=GENERATOR)
Y = (X[:, 0] > 0).long()


class Own(nn.Module):
    """Returns its loss."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels):
        outputs = self.layer(x)
        return {"loss": F.cross_entropy(outputs, labels), "outputs": outputs}


class Pair(nn.Module):
    """Takes two inputs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, first, second):
        return self.layer(first * second)


def plain():
    return nn.Linear(4, 2)


def captured(net, loss, between=lambda: None):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with theta0.capture_steps(batches=3) as found:
        for _ in range(20):
            optimizer.zero_grad()
            loss(net).backward()
            optimizer.step()
            between()
    return found.steps[0]


AS_A_TARGET_FILE = {
    "by keyword": (plain, lambda net: F.mse_loss(input=net(X), target=T), "mse", (X, T)),
    "a module's": (plain, lambda net: nn.MSELoss()(net(X), T), "mse", (X, T)),
    "absolute": (plain, lambda net: F.l1_loss(net(X), T), "l1", (X, T)),
    "logits": (
        plain,
        lambda net: F.binary_cross_entropy_with_logits(net(X), T.sigmoid()),
        "bce",
        (X, T.sigmoid()),
    ),
    "labels": (plain, lambda net: nn.CrossEntropyLoss()(net(X), Y), "cross_entropy", (X, Y)),
    "two inputs": (Pair, lambda net: F.mse_loss(net(X, X), T), "mse", ((X, X), T)),
    "named inputs": (
        Pair,
        lambda net: F.mse_loss(net(first=X, second=X), T),
        "mse",
        ({"first": X, "second": X}, T),
    ),
    "the model's own": (Own, lambda net: net(x=X, labels=Y)["loss"], None, {"x": X, "labels": Y}),
}
WITH_A_LOSS_OF_ITS_OWN = {
    "smoothed labels": (plain, lambda net: F.cross_entropy(net(X), Y, label_smoothing=0.1)),
    "a sum": (plain, lambda net: F.mse_loss(net(X), T, reduction="sum")),
    "the target first": (plain, lambda net: F.mse_loss(T, net(X))),
    "a factor": (plain, lambda net: 10 * F.mse_loss(net(X), T)),
    "by hand": (plain, lambda net: -(net(X).log_softmax(-1) * T.softmax(-1)).sum(-1).mean()),
    "a slice": (plain, lambda net: F.mse_loss(net(X)[:, 0], T[:, 0])),
    "flattened": (plain, lambda net: F.huber_loss(net(X).view(-1), T.view(-1))),
    "class weights": (plain, lambda net: F.cross_entropy(net(X), Y, weight=torch.tensor([1.0, 3.0]))),
    "ignored labels": (
        plain,
        lambda net: F.cross_entropy(net(X), torch.where(torch.arange(16) % 3 == 0, 7, Y), ignore_index=7),
    ),
}
AS_A_STEP = {
    "samples that are compared": (plain, lambda net: F.cross_entropy(net(X) @ net(X).mT, torch.arange(16))),
    "samples of one batch": (plain, lambda net: (lambda z: F.cross_entropy(z @ z.mT, torch.arange(16)))(net(X))),
    "written into": (plain, lambda net: F.mse_loss(net(X).mul_(2), T)),
    "neighbors that are compared": (
        plain,
        lambda net: (lambda z: F.mse_loss(z[0::2] - z[1::2], T[0::2] - T[1::2]) + F.mse_loss(z, T))(net(X)),
    ),
    "halves that are compared": (
        plain,
        lambda net: (lambda z: F.mse_loss(torch.cat([z[:8] - z[8:], z[:8]]), T))(net(X)),
    ),
    "two targets": (plain, lambda net: F.mse_loss(net(X), T) + F.l1_loss(net(X), Y[:, None] + T)),
    "a part of the samples": (plain, lambda net: F.mse_loss(net(X)[:5], T[:5])),
    "inputs of both kinds": (Pair, lambda net: F.mse_loss(net(X, second=X), T)),
    "the model's own, by position": (Own, lambda net: net(X, labels=Y)["loss"]),
    "two calls": (plain, lambda net: F.mse_loss(net(X), net(2 * X).detach() + T)),
    "weights outside of the model": (plain, lambda net: F.mse_loss(net(X), T) + net.weight.square().sum()),
}


@pytest.mark.parametrize("name", AS_A_TARGET_FILE)
def test_a_call_and_a_standard_loss_are_stated_as_in_a_target_file(name):
    make, loss, expected, batch = AS_A_TARGET_FILE[name]
    found = captured(make(), loss)
    assert (found.loss, found.step) == (expected, None)
    torch.testing.assert_close(found.batches[0], batch, rtol=0, atol=0)


@pytest.mark.parametrize("name", WITH_A_LOSS_OF_ITS_OWN)
def test_a_call_and_a_loss_of_each_sample_are_inputs_targets_and_a_loss(name):
    make, loss = WITH_A_LOSS_OF_ITS_OWN[name]
    found = captured(make(), loss)
    assert found.step is None
    inputs, targets = found.batches[0]
    assert len(inputs) == len(targets) == 16
    value = found.loss(found.model(inputs), targets)
    assert float(value.detach()) == found.losses[0] == float(loss(found.model).detach())
    own, theirs = (torch.autograd.grad(v, list(found.model.parameters())) for v in (value, loss(found.model)))
    torch.testing.assert_close(own, theirs, rtol=0, atol=0)
    again = theta0.diagnose(**found.arguments, probe_steps=0)
    assert {r.quantity: r.value for r in again.records if not r.layer}["loss"] == pytest.approx(
        found.losses[0], rel=1e-5
    )
    found.loss(found.model.double()(inputs.double()), targets)


@pytest.mark.parametrize("name", AS_A_STEP)
def test_any_other_step_is_replayed_and_gives_the_loss_in_double_precision_too(name):
    make, loss = AS_A_STEP[name]
    found = captured(make(), loss)
    assert found.loss is None
    value = float(found.step(found.model, found.batches[0]).detach())
    assert value == found.losses[0] == pytest.approx(float(loss(found.model).detach()), rel=1e-6)
    again = theta0.diagnose(**found.arguments, probe_steps=0)
    assert {r.quantity: r.value for r in again.records if not r.layer}["loss"] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("drawn", [lambda z: z + torch.randn(16, 2), lambda z: F.dropout(z, 0.3)])
def test_a_loss_that_draws_stays_a_step(drawn):
    found = captured(nn.Linear(4, 2), lambda net: F.mse_loss(drawn(net(X)), T))
    assert found.loss is None


FACTORS = {
    "times": (lambda value: 10 * value, 10.0),
    "divided": (lambda value: value / 4, 0.25),
    "twice": (lambda value: 6 * value / 2, 3.0),
    "a tensor": (lambda value: value * torch.tensor(3.0), 3.0),
    "none": (lambda value: value + 1, 1.0),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_constant_factor_of_the_loss_is_seen(name):
    scaled, factor = FACTORS[name]
    found = captured(nn.Linear(4, 2), lambda net: scaled(F.mse_loss(net(X), T)))
    assert (found.factor.value, found.factor.reason) == (factor, "")


def test_a_layer_that_calls_itself_while_it_is_made_is_put_back_as_it_trains():
    """As `spectral_norm` does, whose vectors move on with every call."""

    def made():
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))
        return nn.Sequential(first, nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(8, 2)))

    with theta0.capture_steps(batches=3) as found:
        net = made()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(20):
            optimizer.zero_grad()
            (F.relu(1 - net(X)).mean() + F.relu(1 + net(-X)).mean()).backward()
            optimizer.step()
    (step,) = found.steps
    assert step.compared == len(list(net.parameters()))


def test_parts_that_no_module_owns_are_put_together_under_their_names():
    body, head, scale = nn.Linear(4, 8), nn.Linear(8, 2), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters(), scale], 0.1)
    with theta0.capture_steps(batches=3) as found:
        for _ in range(20):
            optimizer.zero_grad()
            F.mse_loss(scale * head(torch.tanh(body(X))), T).backward()
            optimizer.step()
    (step,) = found.steps
    names = {name for name, _ in step.model.named_parameters()}
    assert names == {"body.weight", "body.bias", "head.weight", "head.bias", "parameter"}
    assert step.compared == 5
    with pytest.raises(NotImplementedError, match="pass step="):
        step.model(X)


def test_parts_of_two_models_are_told_apart_by_their_names():
    one, other = nn.ModuleDict({"net": nn.Linear(4, 8)}), nn.ModuleDict({"net": nn.Linear(8, 2)})
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1)
    with theta0.capture_steps(batches=3) as found:
        for _ in range(20):
            optimizer.zero_grad()
            F.mse_loss(other["net"](torch.tanh(one["net"](X))), T).backward()
            optimizer.step()
    assert [name for name, _ in found.steps[0].model.named_children()] == ["net", "net_2"]


def test_weights_that_are_rewritten_between_steps_hold_the_loss_back():
    def clip():
        for p in net.parameters():
            p.data.clamp_(-0.01, 0.01)

    net = nn.Linear(4, 2)
    assert captured(net, lambda net: -net(X).mean(), clip).observed.opposed
    assert not captured(nn.Linear(4, 2), lambda net: -net(X).mean()).observed.opposed


def test_an_optimizer_that_never_steps_gets_nothing_of_the_gradient():
    body, head = nn.Linear(4, 8), nn.Linear(8, 2)
    first, second = torch.optim.SGD(body.parameters(), 0.1), torch.optim.Adam(head.parameters(), 1e-3)
    with theta0.capture_steps(batches=3) as found:
        for number in range(40):
            net, optimizer = ((body, first), (head, second))[number % 2]
            optimizer.zero_grad()
            net(X if net is body else torch.ones(16, 8)).square().mean().backward()
            if net is body:
                optimizer.step()
    assert [(type(step.optimizer).__name__, step.observed.gradient_kept) for step in found.steps] == [
        ("SGD", 1.0),
        ("Adam", 0.0),
    ]


def test_a_gradient_that_is_given_for_outputs_is_a_part_of_the_step():
    net, weights = nn.Linear(4, 2), torch.randn(16, 2, generator=GENERATOR)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with theta0.capture_steps(batches=3) as found:
        for _ in range(20):
            optimizer.zero_grad()
            net(X).backward(weights)
            optimizer.step()
    (step,) = found.steps
    (gradient,) = torch.autograd.grad(step.step(step.model, step.batches[0]), step.model.weight)
    expected = weights.double().T @ X.double()
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-5)
    assert step.losses[0] == pytest.approx(float((step.model(X) * weights).sum().detach()), rel=1e-5)


def test_a_sign_that_is_given_as_a_gradient_is_the_sign_of_the_loss():
    """As critics are often written: `loss.backward(minus_one)`."""
    found = {}
    for sign in (1.0, -1.0):
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with theta0.capture_steps(batches=3) as captured:
            for _ in range(20):
                optimizer.zero_grad()
                F.mse_loss(net(X), T).backward(torch.tensor(sign))
                optimizer.step()
        (found[sign],) = captured.steps
    assert found[-1.0].losses[0] == -found[1.0].losses[0]
    codes = {sign: {f.code for f in theta0.diagnose(**step.arguments).findings} for sign, step in found.items()}
    assert "does-not-train" not in codes[1.0]
    assert float(found[-1.0].step(found[-1.0].model, found[-1.0].batches[0]).detach()) == found[-1.0].losses[0]


class Half(torch.autograd.Function):
    """Passes half of the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 0.5 * gradient


class Out(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Fields:
    first: torch.Tensor
    second: torch.Tensor


class Several(nn.Module):
    """Returns its outputs in a container, and takes them back from one."""

    def __init__(self, pack):
        super().__init__()
        self.layer, self.pack = nn.Linear(4, 2), pack

    def forward(self, x):
        outputs = self.layer(x if isinstance(x, torch.Tensor) else x[0] + x[1])
        return self.pack(outputs, outputs.square())


def of_fields(found):
    return F.mse_loss(found.first, T) + found.second.mean()


def penalty(net, mixed):
    return (torch.autograd.grad(net(mixed).sum(), mixed, create_graph=True)[0].norm(dim=1) - 1).square().mean()


def of_asked(net):
    """Derivatives by what the network itself made, for which a gradient is asked."""
    return penalty(net, (X * net(X).mean(1, keepdim=True).detach()).requires_grad_()) + net(X).sum()


def of_asked_by_attribute(net):
    mixed = X + net(X).detach().sum()
    mixed.requires_grad = True
    return penalty(net, mixed) + net(X).sum()


REPLAYED = {
    "derivatives by what was made": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()), of_asked),
    "derivatives by what was made, asked by attribute": (
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        of_asked_by_attribute,
    ),
    "a function of the script's own": (plain, lambda net: F.mse_loss(Half.apply(net(X)), T)),
    "a size taken without gradients": (plain, lambda net: F.mse_loss(of_unit_size(net(X)), T)),
    "lower precision": (plain, lambda net: in_lower_precision(net)),
    "named outputs": (lambda: Several(Out), lambda net: of_fields(net(X))),
    "named inputs and outputs": (lambda: Several(Out), lambda net: of_fields(net(Out(X, X)))),
    "outputs in fields": (lambda: Several(Fields), lambda net: of_fields(net(X))),
    "outputs in a mapping": (
        lambda: Several(lambda first, second: {"first": first, "second": second}),
        lambda net: F.mse_loss(net(X)["first"], T) + net(X)["second"].mean(),
    ),
}


def of_unit_size(outputs):
    with torch.no_grad():
        size = outputs.square().mean().sqrt()
    return outputs / size


def in_lower_precision(net):
    with torch.autocast("cpu", torch.bfloat16):
        outputs = net(X)
    return F.mse_loss(outputs.float(), T)


@pytest.mark.parametrize("name", REPLAYED)
def test_a_step_is_replayed_with_the_gradients_that_it_had(name):
    make, loss = REPLAYED[name]
    torch.manual_seed(0)
    net = make()
    expected = torch.autograd.grad(loss(net), list(net.parameters()))
    found = captured(net, loss)
    value = found.step(found.model, found.batches[0])
    assert float(value.detach()) == found.losses[0]
    torch.testing.assert_close(torch.autograd.grad(value, list(net.parameters())), expected)


def test_a_critic_that_is_frozen_between_its_steps_is_replayed_with_its_penalty():
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(net.parameters(), 1e-3) for net in (generator, critic)]

    def critics_loss():
        made = generator(torch.randn(16, 3)).detach()
        mixed = torch.lerp(X, made, torch.rand(16, 1)).requires_grad_(True)
        return critic(made).mean() - critic(X).mean() + penalty(critic, mixed)

    with theta0.capture_steps(batches=3) as found:
        for _ in range(6):
            optimizers[1].zero_grad()
            critics_loss().backward()
            optimizers[1].step()
            critic.requires_grad_(False)
            optimizers[0].zero_grad()
            (-critic(generator(torch.randn(16, 3))).mean()).backward()
            optimizers[0].step()
            critic.requires_grad_(True)
    assert found.error is None
    assert len(found.steps) == 2
    for step in found.steps:
        losses = [float(step.step(step.model, batch).detach()) for batch in step.batches]
        assert losses[0] == pytest.approx(step.losses[0], rel=1e-6)
        assert all(p.requires_grad for p in critic.parameters())


def test_a_loop_without_an_optimizer_is_captured_without_one():
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    with theta0.capture_steps(batches=3) as found:
        for _ in range(40):
            (3 * F.mse_loss(net(X), T)).backward()
            for p in net.parameters():
                p.data -= 0.1 * p.grad
                p.grad = None
    (step,) = found.steps
    assert (step.optimizer, step.learning_rate, step.observed.gradient_kept, step.observed.opposed) == (
        None,
        None,
        None,
        False,
    )
    assert step.factor.value == 3.0
    assert "no optimizer" in repr(step)


def test_an_error_in_the_block_goes_on_after_what_was_seen_is_kept():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train():
        for number in range(20):
            optimizer.zero_grad()
            F.mse_loss(net(X), T).backward()
            optimizer.step()
            if number == 1:
                raise KeyError("of the loop")

    with pytest.raises(KeyError, match="of the loop"), theta0.capture_steps(batches=5) as found:
        train()
    assert len(found.steps[0].batches) == 2


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(theta0.CaptureError, match="found no such file"):
        theta0.capture(tmp_path / "train.py")


class Clamped(nn.Linear):
    """Rewrites its weights whenever it is called."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


def test_a_call_that_writes_to_weights_is_refused():
    with pytest.raises(theta0.CaptureError, match="writes to weights outside of its optimizer"):
        captured(Clamped(4, 2), lambda net: F.mse_loss(net(X), T))


class FromFirstBatch(nn.Linear):
    """Sets its scale from the first batch that it sees, as an ActNorm layer does."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if not self.ready:
            with torch.no_grad():
                self.weight.div_(super().forward(x).std())
                self.ready.fill_(True)
        return super().forward(x)


def test_weights_set_from_the_first_batch_are_set_in_what_is_captured():
    net = FromFirstBatch(4, 2)
    plain = net.weight.detach().clone()
    step = captured(net, lambda net: F.mse_loss(net(X), T))
    assert bool(net.ready)
    assert not torch.equal(net.weight, plain)
    assert step.compared == 2
    weights = net.weight.detach().clone()
    theta0.diagnose(**step.arguments, probe_steps=0)
    assert torch.equal(net.weight, weights)


def test_a_part_of_the_loss_that_was_made_before_is_refused():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD([net.bias], 0.1)
    before = net.weight.square().sum()

    def train():
        for _ in range(20):
            optimizer.zero_grad()
            torch.autograd.backward([F.mse_loss(net(X), T), before], retain_graph=True)
            optimizer.step()

    with (
        pytest.raises(theta0.CaptureError, match="a part of the loss was made where it cannot be seen"),
        theta0.capture_steps(batches=3),
    ):
        train()
