"""Samples whose outputs are the same to the last bit: how many, and since which operation."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from theta0 import diagnose
from theta0._batches import load_batches
from theta0.measurements.alike_outputs import alike_outputs

N = 16
GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = torch.cat([torch.tensor([9]), torch.randint(2, 8, (N - 1,), generator=GENERATOR)])
X = torch.randn(N, 9, 5, generator=GENERATOR) * (torch.arange(9) < LENGTHS[:, None])[..., None]
Y = torch.arange(N) % 3


class Recurrent(nn.Module):
    """Takes one of the steps of a padded sequence."""

    def __init__(self, last):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head, self.drop, self.last = nn.GRU(5, 8, batch_first=True), nn.Linear(8, 3), nn.Dropout(), last

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]
        return self.head(self.drop(self.last(out, lengths)))


class Pooled(nn.Module):
    """Keeps only what passes a mask."""

    def __init__(self, kept):
        super().__init__()
        torch.manual_seed(0)
        self.head, self.kept = nn.Linear(5, 3), kept

    def forward(self, x):
        return self.head((x * self.kept[:, None, None]).sum(1))


def padding(out, lengths):
    return out[:, -1]


def own(out, lengths):
    return out[torch.arange(len(out)), lengths - 1]


def of(model, inputs):
    model.train()
    return alike_outputs(model, load_batches([(inputs, Y)], model)[0])


def test_the_last_step_of_padded_sequences_is_the_same_for_all_but_the_longest():
    found = of(Recurrent(padding), (X, LENGTHS))
    assert (found.alike, found.samples) == (N - 1, N)
    assert "out[:, -1]" in found.operation.line


@pytest.mark.parametrize("share", [4, 12])
def test_samples_that_a_factor_leaves_out_are_counted(share):
    found = of(Pooled((torch.arange(N) >= share).float()), X)
    assert (found.alike, found.samples) == (share, N)
    assert "self.kept" in found.operation.line


def test_what_is_told_apart_and_what_is_the_same_for_all_is_nothing_here():
    assert of(Recurrent(own), (X, LENGTHS)) is None
    assert of(Pooled(torch.zeros(N)), X) is None
    assert of(Pooled(torch.ones(N)), X[:4].repeat(4, 1, 1)) is None  # samples that are the same
    tokens = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(8, 3))
    assert of(tokens, torch.randint(0, 3, (N, 2), generator=GENERATOR)) is None


def test_the_finding_names_the_line_and_training_mode_stays():
    model, trained = Recurrent(padding), {"optimizer": "adam", "learning_rate": 3e-3}
    first = diagnose(model, [((X, LENGTHS), Y)], "cross_entropy", **trained).findings[0]
    assert (first.code, first.severity) == ("constant-output", "error")
    assert first.message.startswith("15 of 16 samples")
    assert "out[:, -1]" in first.source_line
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    healthy = diagnose(Recurrent(own), [((X, LENGTHS), Y)], "cross_entropy", **trained)
    assert "constant-output" not in {f.code for f in healthy.findings}
