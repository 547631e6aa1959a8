"""Residual streams that grow: the growth is the cause, branch scaling the advice, wherever the damage shows."""

import pytest
import torch
from held_out_ill import Net, mlp, tokens, transformer
from torch import nn
from torch.nn import functional as F

from cases import labels, normal
from cases import unprobed as diagnose
from states import state_of

WIDTH = 32
X, Y = normal(64, 6), labels(64, classes=4, seed=3)
ADVICE = "theta0 treat TARGET --with branch-scale --out start.safetensors"


class Branch(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), scale

    def forward(self, x):
        return x + self.scale * self.last(F.relu(self.first(F.relu(x))))


def stack(depth, *end, scale=1.0, out=4):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, WIDTH), *(Branch(scale) for _ in range(depth)), nn.ReLU(), nn.Linear(WIDTH, out), *end
    )
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def serious(model, data, loss="cross_entropy"):
    return [f for f in diagnose(model, data, loss).findings if f.severity != "note"]


@pytest.mark.parametrize("depth", [12, 24])
def test_growth_comes_before_the_first_loss_that_it_makes(depth):
    """At 12 blocks no preactivation is past 100 times the first layer's; the stream has grown all the same."""
    model = stack(depth)
    before = state_of(model)
    cause, *others = serious(model, [(X, Y)])
    assert state_of(model) == before
    assert (cause.code, cause.cause, cause.severity, cause.remedy) == ("exploding-activations", "", "error", ADVICE)
    initial = next(f for f in others if f.code == "initial-loss")
    assert (initial.cause, initial.remedy) == ("exploding-activations", ADVICE)
    assert all(f.cause for f in others)


def test_the_factor_is_that_of_the_blocks_outputs():
    model, sizes, x = stack(12), [], X
    for layer in model.double():
        x = layer(x.double())
        if isinstance(layer, Branch):
            sizes.append(x.square().mean().sqrt().item())
    found = serious(model.float(), [(X, Y)])[0]
    assert found.value == pytest.approx(max(sizes) / sizes[0], rel=1e-4)
    factor = (max(sizes) / sizes[0]) ** (1 / sizes.index(max(sizes)))
    assert f"by a factor of {factor:.2f} a branch" in found.message
    assert "1/√12" in found.message
    passed = next(i for i, size in enumerate(sizes) if size > 10 * sizes[0])
    assert found.layer == f"{passed + 1}.last"


def test_saturation_at_the_end_of_a_stream_is_a_consequence_and_at_its_beginning_is_not():
    data = [(X, X[:, :1].tanh())]
    found = serious(stack(14, nn.Tanh(), out=1), data, "mse")
    assert [f.code for f in found[:2]] == ["exploding-activations", "saturated-units"]
    assert found[1].cause == "exploding-activations"
    early = stack(14, out=1)
    early[0] = nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh())
    nn.init.normal_(early[0][0].weight, std=30.0)
    saturated = next(f for f in serious(early, data, "mse") if f.code == "saturated-units")
    assert saturated.remedy != ADVICE


def test_what_overflows_in_half_precision_had_grown_before():
    found = serious(stack(40).half(), [(X.half(), Y)])
    assert [f.code for f in found[:2]] == ["exploding-activations", "non-finite"]
    assert found[0].remedy == ADVICE
    assert found[1].cause == "exploding-activations"


def test_streams_that_do_not_grow_are_left_alone():
    assert serious(stack(24, scale=1 / 24), [(X, Y)]) == []
    torch.manual_seed(0)
    assert serious(transformer(), tokens()()) == []


def test_growth_that_is_not_the_streams_keeps_its_own_advice():
    loud_head = stack(12, scale=12**-0.5)
    with torch.no_grad():
        loud_head[-1].weight.mul_(1e3)
    plain = mlp(6, *[32] * 6, 4)
    with torch.no_grad():
        for layer in plain[::2]:
            layer.weight.mul_(12)
    recurrent = Net(lambda s, x: s.head(s.cell(x[:, None].expand(-1, 30, -1))[0][:, -1]),
                    cell=nn.RNN(6, 6, nonlinearity="relu", batch_first=True), head=nn.Linear(6, 4))  # fmt: skip
    nn.init.normal_(recurrent.cell.weight_hh_l0, std=2.0)
    for model in (loud_head, plain, recurrent):
        found = serious(model, [(X, Y)])
        assert found
        assert all(f.remedy != ADVICE for f in found)


def test_a_forward_pass_that_differentiates_is_followed():
    def slope(s, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(s.net(x).sum(), x, create_graph=True)[0][:, :4]

    found = serious(Net(slope, net=stack(24)), [(X, Y)])
    assert found[0].code in ("exploding-activations", "exploding-gradients", "initial-loss")


def test_the_stream_costs_no_further_pass():
    assert diagnose(stack(24), [(X, Y)], "cross_entropy").cost == pytest.approx(1 + 2 * 8 / len(X) / 3)
    assert diagnose(mlp(6, 32, 4), [(X, Y)], "cross_entropy").cost == pytest.approx(1 + 2 * 8 / len(X) / 3)
