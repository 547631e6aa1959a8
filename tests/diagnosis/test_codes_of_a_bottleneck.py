"""A decoder that is fed looked-up codes: whether its error reaches the encoder, and what only resembles that."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import normal
from cases import unprobed as diagnose

X = normal(32, 6)


class Codes(nn.Module):
    """An encoder, a table of codes and a decoder; `look_up` says what of them is decoded, `terms` what else is lost."""

    def __init__(self, look_up):
        super().__init__()
        self.look_up = look_up
        self.encoder, self.decoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 6)
        self.codes, self.gate = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, 5)

    def forward(self, x):
        z = self.encoder(x)
        return self.look_up(self, z, x)


def nearest(net, z):
    return net.codes[torch.cdist(z, net.codes).argmin(1)]


def plain(net, z, x):
    q = nearest(net, z)
    return net.decoder(q), 0.25 * F.mse_loss(z, q.detach())


def through(net, z, x):
    q = nearest(net, z)
    return net.decoder(z + (q - z).detach()), F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())


def by_embedding(net, z, x):
    q = F.embedding((z @ net.codes.T).argmax(1), net.codes)
    return net.decoder(q), z.square().mean()


def soft(net, z, x):
    return net.decoder(net.gate(z).softmax(1) @ net.codes), z.square().mean()


def weighed(net, z, x):
    chance, place = net.gate(z).softmax(1).max(1)
    return net.decoder(chance[:, None] * net.codes[place]), z.square().mean()


def beside_the_data(net, z, x):
    q = nearest(net, z)
    return net.decoder(q + F.pad(x, (0, 2))), 0.25 * F.mse_loss(z, q.detach())


def apart(net, z, x):
    with torch.no_grad():
        place = torch.cdist(z, net.codes).argmin(1)
    return net.decoder(z), F.cross_entropy(net.gate(net.codes[place].detach()), place)


ILL = {"looked up": plain, "looked up in an embedding": by_embedding}
HEALTHY = {
    "straight through": through,
    "soft": soft,
    "weighed by its probability": weighed,
    "beside the data": beside_the_data,
    "codes that are predicted": apart,
}


def cuts(look_up):
    torch.manual_seed(0)

    def step(model, batch):
        decoded, other = model(batch)
        return F.mse_loss(decoded, batch) + other

    found = diagnose(Codes(look_up), [X] * 2, step=step).findings
    return [f for f in found if f.code == "gradient-cut" and "whole numbers that are made" in f.message]


@pytest.mark.parametrize("name", ILL)
def test_an_encoder_that_gets_nothing_of_what_its_codes_are_decoded_to_is_named_with_the_look_up(name):
    (found,) = cuts(ILL[name])
    assert found.severity == "error"
    assert "encoder.0.weight" in found.layers
    assert "arg" in found.source_line


@pytest.mark.parametrize("name", HEALTHY)
def test_codes_that_the_gradient_passes_or_that_nothing_is_missed_by_are_none(name):
    assert cuts(HEALTHY[name]) == []
