"""Data read from a fixed seed: the same batches each time, every generator left as it was."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from cases import normal
from states import randomness
from theta0.comparison import compare, winning_start_
from theta0.comparison.reading import read, seeded

X = normal(128, 4)
DATA = TensorDataset(X, (X[:, 0] > 0).long())


def shuffled():
    return DataLoader(DATA, batch_size=8, shuffle=True)


def own(seed=3):
    return DataLoader(DATA, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(seed))


def sampled(seed=3):
    sampler = RandomSampler(DATA, generator=torch.Generator().manual_seed(seed))
    return DataLoader(DATA, batch_size=8, sampler=sampler)


class Drawn:
    def __iter__(self):
        for _ in range(16):
            yield torch.from_numpy(np.random.standard_normal((8, 4))).float(), torch.randint(2, (8,))


@pytest.mark.parametrize("source", [shuffled, own, sampled, Drawn])
def test_a_source_is_read_the_same_way_wherever_the_generators_stand(source):
    model = nn.Linear(4, 2)
    first = read(source(), model, max_batches=4)
    torch.rand(7), np.random.rand(7)
    other = source()
    if isinstance(other, DataLoader):
        list(other)  # an epoch of the user's moves its generator
    before = randomness()
    second = read(other, model, max_batches=4)
    assert randomness() == before
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.targets, b.targets)
    if isinstance(other, DataLoader):
        assert not torch.equal(first[0].inputs, X[:8])  # shuffled all the same


def test_generators_are_put_back_also_after_an_error():
    loader = own()
    before, state = randomness(), loader.generator.get_state()

    def failing():
        with seeded(loader):
            next(iter(loader))
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert randomness() == before
    assert torch.equal(loader.generator.get_state(), state)


@pytest.mark.parametrize("source", [shuffled, own, sampled])
def test_a_race_over_shuffled_data_is_found_again(source, tmp_path):
    path = tmp_path / "runs.jsonl"
    options = {"starts": ["default"], "rates": [0.03, 0.1], "steps": 8, "seeds": 1, "store": path}
    first = compare(lambda: nn.Linear(4, 2), source(), "cross_entropy", **options)
    done = path.read_bytes()
    torch.rand(7)
    other = source()
    list(other)
    again = compare(lambda: nn.Linear(4, 2), other, "cross_entropy", **options)
    assert path.read_bytes() == done
    assert again.standings == first.standings
    model = winning_start_(lambda: nn.Linear(4, 2), other, "cross_entropy", first)
    assert isinstance(model, nn.Linear)
