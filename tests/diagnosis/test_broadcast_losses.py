"""Outputs (N, 1) and targets (N,) that a loss, a step or a script stretches against each other."""

import pytest
import torch
from held_out_ill import Net, mlp
from torch import nn
from torch.nn import functional as F

import theta0
from cases import normal
from cases import unprobed as diagnose

X = normal(32, 6)
FLAT, COLUMN = X.sum(1), X.sum(1, keepdim=True)


def stretched(model, data, loss=None, **options):
    return [f for f in diagnose(model, data, loss, **options).findings if f.code == "broadcast-loss"]


def squares(outputs, targets):
    return ((outputs - targets) ** 2).mean()


FORMS = {
    "sub": squares,
    "rsub": lambda outputs, targets: (targets - outputs).square().mean(),
    "sub_": lambda outputs, targets: outputs.sub(targets).abs_().mean(),
    "add": lambda outputs, targets: (outputs + (-targets)).square().mean(),
    "mul": lambda outputs, targets: F.softplus(-outputs * targets).mean(),
    "div": lambda outputs, targets: (outputs / (targets + 100)).square().mean(),
    "eq": lambda outputs, targets: outputs.square().mean() + (outputs.detach() == targets).float().mean(),
    "maximum": lambda outputs, targets: torch.maximum(outputs, targets).square().mean(),
    "where": lambda outputs, targets: torch.where(targets > 0, outputs, 0.0).square().mean(),
    "broadcast_tensors": lambda outputs, targets: squares(*torch.broadcast_tensors(outputs, targets)),
    "poisson": lambda outputs, targets: F.poisson_nll_loss(outputs, targets.abs()),
    "mse": lambda outputs, targets: F.mse_loss(outputs, targets) + 0.1 * outputs.square().mean(),
    "normal": lambda outputs, targets: -torch.distributions.Normal(outputs, 1.0).log_prob(targets).mean(),
}


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_with_its_line(name, step):
    form = FORMS[name]
    for model, targets, ill in (
        (mlp(6, 8, 1), FLAT, True),
        (Net(lambda s, x: s.f(x)[:, 0], f=mlp(6, 8, 1)), COLUMN, True),
        (mlp(6, 8, 1), COLUMN, False),
    ):
        data = [(X, targets)]
        found = (
            stretched(model, data, step=lambda model, batch: form(model(batch[0]), batch[1]))
            if step
            else stretched(model, data, form)
        )
        assert len(found) == ill
        if ill:
            assert (found[0].severity, found[0].value) == ("error", 32)
            assert "test_broadcast_losses.py" in found[0].source_line
            assert "outputs" in found[0].source_line


def contrastive(model, batch):
    z = model(batch[0])  # all pairs of samples
    return (z - z[:, 0]).square().mean() + (z[:, None] - z[None]).square().mean()


def masked(model, batch):
    wide = torch.cat([model(batch[0])] * 3, 1)
    return (wide * (batch[1][:, None] > 0)).square().mean()


def crossed(model, batch):
    return (model(batch[0]) - batch[1][None]).square().amin(1).mean()  # the axes are put there


def beside(model, batch):
    outputs = model(batch[0])
    float((outputs.detach() - batch[1]).abs().mean())  # a number that the loss does not contain
    return (outputs[:, 0] - batch[1]).square().mean()


def scaled(model, batch):
    return (model(batch[0])[:, 0] - batch[1]).square().mean() * torch.ones(1)


@pytest.mark.parametrize("step", [contrastive, masked, crossed, beside, scaled])
def test_pairs_that_are_meant_are_no_mistake(step):
    assert stretched(mlp(6, 8, 1), [(X, FLAT)], step=step) == []


def test_one_sample_and_pairs_inside_the_model_are_no_mistake():
    def step(model, batch):
        return squares(model(batch[0])[:, 0], batch[1])

    def outer(self, x):
        h = self.f(x)
        return h + (h * torch.arange(len(x))).mean(1, keepdim=True)

    assert stretched(mlp(6, 8, 1), [(X[:1], FLAT[:1])], step=lambda model, b: squares(model(b[0]), b[1])) == []
    assert stretched(Net(outer, f=mlp(6, 8, 1)), [(X, FLAT)], step=step) == []


def test_a_reward_beside_the_value_of_the_next_state():
    def step(model, batch):
        with torch.no_grad():
            wanted = batch[1] + 0.9 * model(batch[0])[:, 0]
        return (model(batch[0]) - wanted).square().mean()

    (found,) = stretched(mlp(6, 8, 1), [(X, COLUMN)], step=step)
    assert "wanted = batch[1] + 0.9" in found.source_line


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 6)
y = x.sum(1)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(8):
    part = slice(16 * step % 64, 16 * step % 64 + 16)
    outputs = net(x[part])
    error = outputs - y[part]
    loss = (error ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("ill", [True, False])
def test_a_script(ill, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT if ill else SCRIPT.replace("y[part]", "y[part, None]"))
    captured = theta0.capture(path).arguments
    model, batches = captured.pop("model"), captured.pop("batches")
    found = stretched(model, batches, **captured)
    assert [f.source_line for f in found] == (["script.py:12: error = outputs - y[part]"] if ill else [])


class Factors(nn.Module):
    """A score of two parts, and a constant; the parts are put together by `join`."""

    def __init__(self, join):
        super().__init__()
        self.join, self.a, self.b, self.one = join, nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 1)

    def forward(self, x):
        return self.join(self.one(x), (self.a(x) * self.b(x)).sum(-1), self.a(x))


INSIDE = {
    "a sum without its axis": (lambda one, dot, _: one + dot, COLUMN, True),
    "a product": (lambda one, dot, _: dot * one, COLUMN, True),
    "a difference, flat targets": (lambda one, dot, _: one - dot, FLAT, True),
    "with its axis": (lambda one, dot, _: one + dot[:, None], COLUMN, False),
    "all pairs, compared with pairs": (lambda one, dot, _: one + dot, COLUMN @ COLUMN.T, False),
    "distances": (lambda one, dot, h: torch.cdist(h, h).mean(1, keepdim=True) + one, COLUMN, False),
    "distances by their squares": (
        lambda one, dot, h: (h.square().sum(1)[:, None] + h.square().sum(1) - 2 * h @ h.T).mean(1, keepdim=True) + one,
        COLUMN,
        False,
    ),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [squares, F.mse_loss], ids=["written", "torch's"])
@pytest.mark.parametrize("name", INSIDE)
def test_what_the_model_itself_stretches_counts_where_it_is_compared_with_one_target_a_sample(name, loss):
    join, targets, ill = INSIDE[name]
    found = stretched(Factors(join), [(X, targets)], loss)
    assert len(found) == ill
    if ill:
        assert "lambda one, dot" in found[0].source_line
