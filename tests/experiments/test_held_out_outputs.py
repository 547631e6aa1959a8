"""Labels that carry nothing, and labels that are learnt slowly: single features, and outputs on samples held out."""

import pytest
import torch
from torch import nn

from theta0._batches import load_batches
from theta0.diagnosis import diagnose
from theta0.diagnosis.evidence import Evidence
from theta0.experiments.held_out import outputs_after_training
from theta0.experiments.optimizers import optimizer_kind
from theta0.measurements.dependence import CLEAR, dependence, distances, separation

GENERATOR = torch.Generator().manual_seed(0)
TOKENS = torch.randint(2, 8, (256, 24), generator=GENERATOR)
PLACES = torch.stack([torch.randperm(24, generator=GENERATOR)[:2] for _ in range(256)])
TOKENS = TOKENS.scatter(1, PLACES[:, :1], 0).scatter(1, PLACES[:, 1:], 1)
ORDER = (PLACES[:, 0] < PLACES[:, 1]).long()
PERMUTED = ORDER[torch.randperm(256, generator=GENERATOR)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(8, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[1][0])


def split(labels):
    return list(zip(TOKENS.split(64), labels.split(64), strict=True))


@pytest.mark.slow
def test_targets_that_depend_on_one_place_of_a_sequence_are_seen_by_single_features():
    one_place = (TOKENS[:, 5] > 4).long()
    moved = one_place[torch.randperm(256, generator=GENERATOR)]
    seen, unseen = (dependence(load_batches(split(y), Net()), [None] * 4) for y in (one_place, moved))
    assert CLEAR < 2 * separation(distances(TOKENS), distances(one_place)) < seen
    assert unseen < CLEAR


@pytest.mark.slow
def test_a_network_that_learns_slowly_is_left_alone_and_permuted_labels_are_named():
    torch.manual_seed(0)
    model = Net()
    codes = [
        [f.code for f in diagnose(model, split(labels), "cross_entropy", optimizer="adam", learning_rate=3e-3).findings]
        for labels in (ORDER, PERMUTED)
    ]
    assert ["no-signal" in found for found in codes] == [False, True]


def test_outputs_on_samples_held_out_follow_what_is_learnt():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)), torch.randn(256, 8)
    batches = load_batches([(x[i : i + 64], x[i : i + 64, :1]) for i in range(0, 256, 64)], model)
    before = [p.clone() for p in model.parameters()]
    kind = optimizer_kind("adam", model)
    found = outputs_after_training(model, batches[:2], batches[2:], "mse", kind, 0.01, steps=30)
    assert dependence(batches[2:], found, of_inputs=False) > CLEAR
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    evidence = Evidence(model, batches, "mse", optimizer=kind, rate=0.01, probe_steps=60)
    assert evidence.learnt_dependence > CLEAR
