"""The summands of a loss, however the sum is written, and the gradient that each brings."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from theta0._batches import load_batches
from theta0._trace.interpreter import trace
from theta0.measurements.loss_terms import loose_summand, scaled_norms, terms_handler

GENERATOR = torch.Generator().manual_seed(0)
X, T = torch.randn(16, 4, generator=GENERATOR), torch.randn(16, 2, generator=GENERATOR)
TWO = torch.tensor(2.0)


def error(net):
    return F.mse_loss(net(X), T)


def penalty(net):
    return net.weight.square().sum()


SUMS = {
    "plus": lambda net: error(net) + 0.5 * penalty(net),
    "factor behind": lambda net: error(net) + penalty(net) * 0.5,
    "tensor as factor": lambda net: error(net) + torch.tensor(0.5) * penalty(net),
    "quotient": lambda net: error(net) + penalty(net) / 2,
    "minus": lambda net: error(net) - (-0.5 * penalty(net)),
    "stacked": lambda net: torch.stack([error(net), 0.5 * penalty(net)]).sum(),
    "concatenated": lambda net: torch.cat([error(net)[None], 0.5 * penalty(net)[None]]).sum(),
    "factor of the whole": lambda net: TWO * (0.5 * error(net) + 0.25 * penalty(net)),
    "quotient of the whole": lambda net: (2 * error(net) + penalty(net)) / TWO,
}


@pytest.mark.parametrize("name", SUMS)
def test_each_summand_has_the_gradient_of_its_own(name):
    torch.manual_seed(0)
    net, handler = nn.Linear(4, 2), terms_handler()
    parameters = list(net.parameters())
    with torch.enable_grad(), trace(net, handler) as interpreter:
        value = SUMS[name](net)
    terms = interpreter.note_of(value, handler)
    found = scaled_norms(value, terms, parameters)
    net.double()
    double = [F.mse_loss(net(X.double()), T.double()), 0.5 * penalty(net)]
    expected = []
    for summand in double:
        gradients = torch.autograd.grad(summand, list(net.parameters()), allow_unused=True)
        expected.append(float(torch.cat([g.flatten() for g in gradients if g is not None]).norm()))
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_number_beside_the_loss_has_no_gradient_and_is_found_where_it_differs():
    torch.manual_seed(0)
    net = nn.Linear(4, 2)

    def step(model, batch):
        return F.mse_loss(model(batch), T) + float(batch.square().mean())

    def same(model, batch):
        return F.mse_loss(model(batch), T) + 3.0

    for loss, there in ((step, True), (same, False)):
        data = load_batches([X, 2 * X], net, step=loss)
        assert (loose_summand(net, data, None) is not None) is there
        assert loose_summand(net, data[:1], None) is None
