"""A data set whose stored values change each time they are read."""

import pytest

import theta0

SCRIPT = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
torch.manual_seed(0)
class Images(Dataset):
    def __init__(self):
        self.images, self.noise = {stored}, torch.zeros(1, 8)
        self.labels = torch.randint(0, 3, (96,))
        self.reads = torch.zeros(())
    def __len__(self):
        return 96
    def __getitem__(self, i):
        x = {read}
        {change}
        return x, self.labels[i]
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(4):
    for x, y in DataLoader({data}, batch_size=16, num_workers=0):
        {batch}
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
"""
TENSOR, ARRAY = "torch.randn(96, 8) * 2 + 3", "np.random.randn(96, 8).astype('float32')"


def observed(tmp_path, **parts):
    given = {"stored": TENSOR, "read": "self.images[i]", "change": "pass", "data": "Images()", "batch": "pass"} | parts
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(**given))
    found = theta0.capture(path)
    assert found.error is None
    return found.steps[0]


@pytest.mark.parametrize(
    "parts",
    [
        {"change": "x = x.sub_(3.0).div_(2.0)"},
        {"change": "x -= 3.0"},
        {"stored": ARRAY, "read": "torch.from_numpy(self.images)[i]", "change": "x.mul_(0.5)"},
        {"stored": "list(torch.randn(96, 8).unbind())", "change": "x += 0.1 * torch.randn(8)"},
        {"data": "Subset(Images(), range(80))", "change": "x /= 2.0"},
    ],
)
def test_values_changed_as_they_are_read_are_an_error_with_the_line(tmp_path, parts):
    step = observed(tmp_path, **parts)
    assert step.observed.data_changed.startswith("train.py:16: ")
    found = theta0.diagnose(**step.arguments, probe_steps=0)
    assert [(f.code, f.severity) for f in found.findings if f.source_line] == [("input-scale", "error")]


@pytest.mark.parametrize(
    "parts",
    [
        {"change": "x = x.sub(3.0).div(2.0)"},
        {"read": "self.images[i].clone()", "change": "x.sub_(3.0)"},
        {"change": "x.clamp_(0, 6)"},  # reading again changes nothing
        {"change": "self.noise.normal_(); x = x + self.noise[0]"},
        {"stored": "torch.zeros(96, 8)", "change": "self.images[i] = torch.ones(8)"},  # a cache that fills
        {"batch": "x.sub_(3.0).div_(2.0)"},  # a batch is a copy
        {"stored": ARRAY, "read": "torch.tensor(self.images[i])", "change": "x.mul_(0.5)"},
    ],
)
def test_copies_caches_and_batches_are_no_stored_data(tmp_path, parts):
    assert observed(tmp_path, **parts).observed.data_changed == ""
