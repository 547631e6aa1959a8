"""Any source of data becomes the same batches for every measurement; what cannot be used is told in one sentence."""

from contextlib import closing
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from cases import case, flat, normal
from cases import unprobed as diagnose
from theta0._batches import Batch, endless, held_out, load_batches, with_shapes
from theta0._models import device_of, main_output, outputs_of, unwrapped

LINEAR = nn.Linear(6, 3)
X, Y = normal(4, 6), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    "source",
    [
        [(X, Y)],
        [[X, Y]],
        ((X, Y),),
        DataLoader(TensorDataset(X, Y), 4),
        type("Reiterable", (), {"__iter__": lambda self: iter([(X, Y)])})(),
        iter([(X, Y)]),
    ],
    ids=["list", "list of lists", "tuple", "loader", "re-iterable", "generator"],
)
def test_sources_of_pairs(source):
    (batch,) = load_batches(source, LINEAR)
    assert torch.equal(batch.inputs, X)
    assert torch.equal(batch.targets, Y)
    assert (batch.size, batch.number) == (4, 0)


def test_bare_inputs_and_dicts():
    bare, alone = load_batches([X, (X,)], LINEAR)
    assert bare.targets is None
    assert alone.targets is None
    (named,) = load_batches([{"x": X, "labels": Y}], LINEAR)
    assert torch.equal(named.targets, Y)
    assert set(named.inputs) == {"x", "labels"}
    assert load_batches([{"x": X}], LINEAR)[0].targets is None


def test_batches_already_materialised_pass():
    found = load_batches(flat(), LINEAR)
    assert load_batches(found, LINEAR) == found


def test_an_iterable_dataset():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from ((X[i], Y[i]) for i in range(4))

    assert [b.size for b in load_batches(DataLoader(Stream(), 3), LINEAR)] == [3, 1]


def test_floating_inputs_follow_the_models_dtype_and_targets_stay():
    (batch,) = load_batches([((X, Y), X)], nn.Linear(6, 3).double())
    assert batch.inputs[0].dtype == torch.float64
    assert batch.inputs[1].dtype == torch.int64
    assert batch.targets.dtype == torch.float32


def test_no_more_batches_are_drawn_than_asked():
    drawn = []

    def source():
        for number in range(9):
            drawn.append(number)
            yield X, Y

    assert len(load_batches(source(), LINEAR, max_batches=2)) == 2
    assert drawn == [0, 1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "expected at least one batch, got none"),
        (iter(()), "expected at least one batch, got none"),
        (5, "expected an iterable of .inputs, targets., got int"),
        ("data", "got str"),
        ([(X, Y, Y)], r"batch 0: expected \(inputs, targets\), got 3 items"),
        ([(X, Y), (X[:0], Y[:0])], "batch 1: .*at least one sample, got an empty one"),
        ([("text", Y)], "batch 0: .*holding a tensor"),
        (
            [(X, Y), (X.clone().index_fill_(0, torch.tensor([1]), float("nan")), Y)],
            r"batch 1, inputs: .*6 NaN or infinite of 24",
        ),
        ([(X, X / 0)], "batch 0, targets: .*finite"),
        ([{"x": X / 0, "labels": Y}], "batch 0, inputs"),
    ],
)
def test_data_that_cannot_be_used(source, message, unchecked):
    with pytest.raises(ValueError, match=message):
        load_batches(source, LINEAR)
    if not isinstance(source, (int, str)) and not hasattr(source, "__next__"):
        with pytest.raises(ValueError, match=message):
            diagnose(LINEAR, source, "cross_entropy")


@given(st.integers(2, 40))
def test_the_last_quarter_of_the_batches_is_held_out(count):
    found = [Batch(X, Y, 4, number) for number in range(count)]
    train, verify = held_out(found)
    assert train + verify == found
    assert len(verify) == max(1, count // 4)
    assert train


@given(st.integers(2, 40))
def test_the_last_quarter_of_the_samples_of_a_single_batch(size):
    x = torch.arange(size)
    batch = Batch({"x": x[:, None], "scale": torch.ones(3, 2)}, x, size)
    if size == 3:
        batch = Batch({"x": x[:, None]}, x, size)
    (train,), (verify,) = held_out([batch])
    assert torch.equal(torch.cat([train.targets, verify.targets]), x)
    assert torch.equal(torch.cat([train.inputs["x"], verify.inputs["x"]])[:, 0], x)
    assert (train.size + verify.size, verify.size) == (size, max(1, size // 4))


def test_one_sample_cannot_be_split():
    with pytest.raises(ValueError, match="at least two samples"):
        held_out([Batch(X[:1], Y[:1], 1)])


def test_inputs_reach_forward_as_it_takes_them():
    class One(nn.Module):
        def forward(self, pair):
            return pair[0] + pair[1]

    class Two(nn.Module):
        def forward(self, a, b):
            return a + b

    class Any(nn.Module):
        def forward(self, *parts):
            return sum(parts)

    class Optional(nn.Module):
        def forward(self, a, b=None):
            return a if b is None else a + b

    for model in (One(), Two(), Any(), Optional()):
        assert torch.equal(outputs_of(model, (X, X)), 2 * X)
    assert torch.equal(outputs_of(Two(), {"b": X, "a": X}), 2 * X)
    assert torch.equal(outputs_of(Optional(), X), X)


def test_labels_reach_only_a_forward_that_has_a_place_for_them():
    class Without(nn.Module):
        def forward(self, x):
            return x

    class With(Without):
        def forward(self, x, labels):
            return labels

    class Anything(Without):
        def forward(self, x, **named):
            return sorted(named)

    inputs = {"x": X, "labels": Y}
    assert torch.equal(outputs_of(Without(), inputs), X)
    assert torch.equal(outputs_of(With(), inputs), Y)
    assert outputs_of(Anything(), inputs) == ["labels"]


def test_the_main_output():
    assert main_output(X) is X
    assert main_output((Y, X)) is X
    assert main_output({"logits": Y, "x": X}) is Y
    assert main_output({"loss": X.mean(), "deep": [X]}) is X
    assert main_output(case("own loss").model()(X)).shape == (4, 3)
    assert main_output("text") is None


def test_wrappers_are_taken_off():
    assert unwrapped(nn.DataParallel(LINEAR)) is LINEAR
    assert unwrapped(torch.compile(nn.DataParallel(torch.compile(LINEAR, backend="eager")), backend="eager")) is LINEAR
    assert unwrapped(LINEAR) is LINEAR


def test_lazy_models_are_copied_and_others_are_not():
    (batch,) = load_batches([(X, Y)], LINEAR)
    assert with_shapes(LINEAR, batch) is LINEAR
    lazy = case("lazy").model()
    copy = with_shapes(lazy, batch)
    assert copy is not lazy
    assert copy[0].weight.shape == (8, 6)


def test_a_model_without_parameters_is_on_the_cpu():
    assert device_of(nn.ReLU()) == torch.device("cpu")


def test_a_meta_model_holds_no_values():
    with pytest.raises(ValueError, match=r"meta device.*to_empty"):
        diagnose(nn.Linear(6, 3, device="meta"), [(X, Y)], "cross_entropy")


def test_two_devices_are_named():
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3, device="meta"))
    with pytest.raises(ValueError, match="meta"):
        device_of(model)


def loader_with_a_generator(kind="loader"):
    """Shuffled from a generator of its own, which the loader, its sampler or its batch sampler holds."""
    generator, data = torch.Generator().manual_seed(5), TensorDataset(torch.arange(12.0)[:, None])
    if kind == "loader":
        return generator, DataLoader(data, 2, shuffle=True, generator=generator)
    sampler = RandomSampler(data, generator=generator)
    if kind == "sampler":
        return generator, DataLoader(data, 2, sampler=sampler)
    return generator, DataLoader(data, batch_sampler=BatchSampler(sampler, 2, drop_last=False))


@pytest.mark.parametrize("kind", ["loader", "sampler", "batch sampler"])
def test_a_loaders_own_generator_follows_the_seeds_and_is_put_back(kind):
    generator, loader = loader_with_a_generator(kind)
    before, found = generator.get_state(), []
    with torch.random.fork_rng():
        for skip in (0, 0, 7):
            torch.manual_seed(skip)
            torch.rand(skip + 1, generator=generator)  # where either generator stands does not matter
            stood = generator.get_state()
            with closing(endless(loader, LINEAR, lambda number: 40 + number, skip=skip)) as source:
                found.append([batch.inputs.flatten().tolist() for batch in islice(source, 15 - skip)])
            assert torch.equal(generator.get_state(), stood)
            generator.set_state(before)
    whole, again, resumed = found
    assert whole == again
    assert whole[7:] == resumed
    assert sorted(value for batch in whole[:6] for value in batch) == list(range(12))
    assert whole[:6] != whole[6:12]
