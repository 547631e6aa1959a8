"""Pairs of contrastive losses that belong together are told from those that do not."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from states import state_of
from theta0._batches import load_batches
from theta0.diagnosis import diagnose
from theta0.experiments.mismatched_pairs import pairing
from theta0.experiments.optimizers import optimizer_kind
from theta0.measurements.pair_ranks import is_pairing, pair_ranks

ROWS = 64


class Towers(nn.Module):
    """Two encoders of two views of the same latent numbers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16))
        self.other = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x, y):
        return F.normalize(self.one(x), dim=1) @ F.normalize(self.other(y), dim=1).T / 0.07


def batches(permuted, rows=ROWS, count=4):
    g = torch.Generator().manual_seed(2)
    mixes = torch.randn(8, 20, generator=g), torch.randn(8, 12, generator=g)
    found = []
    for _ in range(count):
        z = torch.randn(rows, 8, generator=g)
        order = torch.randperm(rows, generator=g) if permuted else torch.arange(rows)
        found.append(((z @ mixes[0], (z @ mixes[1])[order]), torch.arange(rows)))
    return found


def both_ways(outputs, targets):
    return (F.cross_entropy(outputs, targets) + F.cross_entropy(outputs.T, targets)) / 2


@pytest.mark.parametrize("permuted", [True, False])
def test_pairs_that_are_permuted_within_batches_carry_no_signal(permuted):
    model = Towers()
    before = state_of(model)
    found = diagnose(model, batches(permuted), both_ways, optimizer="adam", learning_rate=3e-3)
    assert state_of(model) == before
    said = [f for f in found.findings if f.code == "no-signal"]
    assert [f.severity for f in said] == (["warning"] if permuted else [])
    assert all("pairs" in f.message for f in said)
    assert found.cost <= 120


@pytest.mark.parametrize("permuted", [True, False])
def test_a_step_of_the_users_own(permuted):
    def step(model, batch):
        (x, y), _ = batch
        return both_ways(model(x, y), torch.arange(len(x)))

    found = diagnose(Towers(), batches(permuted), step=step, optimizer="adam", learning_rate=3e-3)
    assert ("no-signal" in {f.code for f in found.findings}) == permuted


def test_two_views_by_one_encoder_are_found_before_training():
    def step(model, batch):
        z = F.normalize(torch.cat([model(batch), model(batch + 0.01)]), dim=1)
        scores = (z @ z.T / 0.2).fill_diagonal_(-math.inf)
        return F.cross_entropy(scores, (torch.arange(2 * ROWS) + ROWS) % (2 * ROWS))

    model, x = nn.Linear(8, 8), torch.randn(2, ROWS, 8)
    data = load_batches(list(x), model, step=step)
    found = pairing(model, data, None, optimizer_kind("adam", model), 1e-3, most=100)
    assert found.before == pytest.approx(math.sqrt(12 * 4 * ROWS) / 2, rel=0.05)  # partners are the most alike
    assert (found.learnt, found.held_out, found.steps) == (None, None, 0)


def test_the_ranks_of_drawn_partners_have_a_standard_deviation_of_one():
    model, found = nn.Identity(), []
    for seed in range(200):
        scores = torch.randn(32, 32, generator=torch.Generator().manual_seed(seed))
        data = load_batches([(scores, torch.arange(32))], model)
        found.append(pair_ranks(model, data, "cross_entropy").separation)
    assert torch.tensor(found).mean().abs() < 0.2
    assert float(torch.tensor(found).std()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("scores", "targets", "pairs"),
    [
        (torch.zeros(8, 8), torch.arange(8), True),
        (torch.zeros(8, 8), torch.arange(8).roll(4), True),
        (torch.zeros(8, 8), torch.zeros(8, dtype=torch.long), False),
        (torch.zeros(8, 100), torch.arange(8), False),
        (torch.zeros(8, 8, 4), torch.zeros(8, 4).long(), False),
        (torch.zeros(8, 8), torch.eye(8), False),
    ],
)
def test_what_is_a_pairing(scores, targets, pairs):
    assert is_pairing(scores, targets) == pairs


def test_nothing_is_asked_where_there_are_too_few_gradients_or_no_pairs():
    model, kind = Towers(), optimizer_kind("adam", Towers())
    data = load_batches(batches(True), model)
    assert pairing(model, data, both_ways, kind, 3e-3, most=30) is None
    classes = load_batches([(torch.randn(8, 4), torch.zeros(8).long())], nn.Linear(4, 3))
    assert pairing(nn.Linear(4, 3), classes, "cross_entropy", kind, 1e-3, most=100) is None
