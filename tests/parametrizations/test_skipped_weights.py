"""Which weights `parametrize_` leaves plain: those that are named, and those that a hook makes or that are silent."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from theta0.parametrizations import parametrize_, reparametrize


def test_skip_takes_paths_and_names():
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.LSTM(4, 3), nn.Linear(4, 4))
    done = reparametrize(net, "lcw", skip=["0", "1.weight_ih_l0"])
    assert done.weights == ("1.weight_hh_l0", "2.weight")
    assert set(done.skipped.values()) == {"skipped as asked"}


class Halves(nn.Module):
    """Two layers of one weight, and one layer under two paths."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.third = self.again = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        (["second.weight"], {"first.weight", "second.weight"}),  # a tie's name that `named_parameters` leaves out
        (["again"], {"third.weight"}),
        (["again.weight", "third.bias"], {"third.weight"}),
    ],
)
def test_skip_takes_every_name_of_what_is_shared(skip, left):
    done = reparametrize(Halves(), "lcw", skip=skip)
    assert set(done.skipped) == left


def test_skip_takes_a_weight_that_is_parametrized_already():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    done = reparametrize(parametrize_(net, "lcw", skip=["1"]), "cwn", skip=["0.weight"])
    assert done.weights == ("1.weight",)


def test_a_weight_that_a_hook_makes_is_left_with_a_reason():
    net = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 3), nn.Linear(4, 4))
    prune.random_unstructured(net[0], "weight", 0.5)
    prune.random_unstructured(net[1], "weight_hh_l0", 0.5)
    done = reparametrize(net, "lcw")
    assert done.weights == ("1.weight_ih_l0", "2.weight")
    assert done.skipped.keys() == {"0.weight", "1.weight_hh_l0"}
    assert all("hook" in reason for reason in done.skipped.values())


@pytest.mark.parametrize(("axis", "taken"), [(0, True), (1, False)])
def test_weight_norm_leaves_a_transposed_convolution_whose_output_is_silent(axis, taken):
    torch.manual_seed(0)
    net = nn.Sequential(nn.ConvTranspose2d(4, 4, 2), nn.Conv2d(4, 2, 1))
    with torch.no_grad():
        net[0].weight.select(axis, 1).zero_()
    x = torch.randn(2, 4, 3, 3)
    expected = net(x)
    done = reparametrize(net, "weight-norm")
    assert ("0.weight" in done.weights) == taken
    assert (net(x) - expected).abs().max() < 1e-6
