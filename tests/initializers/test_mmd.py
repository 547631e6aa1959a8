import json
import math

import pytest
import torch
from torch import multiprocessing, nn
from torch.utils.data import DataLoader, TensorDataset

from cases import case, normal
from states import randomness, state_of
from theta0._checkpoints import read_tensors, write_tensors
from theta0._state import twice_differentiable
from theta0.initializers import mmd_
from theta0.initializers.mmd import Weights, mmd, mmd_terms
from theta0.measurements import neighbours
from theta0.measurements.perturbed_outputs import neighbourhood

QUICK = {"perturbations": 12, "learning_rate": 1e-2, "generator": 3}


@pytest.fixture
def short_windows(monkeypatch):
    monkeypatch.setattr("theta0.initializers.mmd.WINDOW", 10)
    monkeypatch.setattr("theta0.initializers.mmd_checkpoint.WINDOW", 10)


def classifier(seed=0, classes=3):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, classes))


def batches(count=3, size=8):
    return [normal(size, 6, seed=i) for i in range(count)]


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def reported(model, data, **options):
    return mmd(model, data, **(QUICK | options))


@pytest.mark.slow
def test_it_makes_neighbours_more_uniform(short_windows):
    model = classifier()
    with torch.no_grad():
        model[4].bias.copy_(torch.tensor([4.0, 0.0, 0.0]))  # nearly every neighbour prefers the first class
    before = {r.quantity: r.value for r in neighbours(model, batches(), perturbations=64, generator=0)}
    result = reported(model, batches(), steps=60, perturbations=24, learning_rate=3e-2)
    after = {r.quantity: r.value for r in neighbours(model, batches(), perturbations=64, generator=0)}
    assert after["uniformity"] < 0.5 * before["uniformity"]
    assert after["degenerate_softmax_share"] < before["degenerate_softmax_share"]
    assert result.after.loss < result.before.loss
    assert result.after.detachment < result.before.detachment
    assert result.steps == 60
    assert len(result.losses) == 6
    assert result.best_step == 10 * (1 + min(range(6), key=lambda i: result.losses[i]))
    assert result.cost > 60 * 24


def test_labels_play_no_part():
    bare, labelled = classifier(), classifier()
    mmd_(bare, batches(), steps=4, **QUICK)
    mmd_(labelled, [(x, torch.zeros(len(x), dtype=torch.long)) for x in batches()], steps=4, **QUICK)
    assert torch.equal(weights_of(bare), weights_of(labelled))


def test_the_same_seed_repeats_and_another_does_not():
    models = [mmd_(classifier(), batches(), steps=3, **(QUICK | {"generator": seed})) for seed in (1, 1, 2)]
    one, two, other = (weights_of(model) for model in models)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["norm and dropout", "tied", "frozen", "transformer, batch first", "cnn", "lstm"])
def test_everything_but_trained_values_is_left_as_it_was(name):
    model, data = case(name).model(), case(name).batches()
    next(p for p in model.parameters() if p.requires_grad).grad = (
        torch.ones(1).expand_as(next(p for p in model.parameters() if p.requires_grad)).clone()
    )
    before, random_before = state_of(model), randomness()
    mmd_(model, data, steps=2, **(QUICK | {"perturbations": 4}))
    after = state_of(model)
    assert randomness() == random_before
    assert before.keys() == after.keys()
    trained = {n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    for key in before:
        if key in trained:
            assert before[key][2] != after[key][2]
            assert before[key][:2] + before[key][3:] == after[key][:2] + after[key][3:]
        else:
            assert before[key] == after[key], key


@pytest.mark.slow
def test_an_interrupt_keeps_the_best_so_far_and_an_error_the_start(short_windows):
    straight, interrupted, failed = classifier(), classifier(), classifier()
    mmd_(straight, batches(), steps=10, **QUICK)
    found = mmd(interrupted, batches(), steps=30, progress=stop_at(15, KeyboardInterrupt()), **QUICK)
    assert torch.equal(weights_of(interrupted), weights_of(straight))
    assert found.interrupted
    assert (found.steps, found.best_step) == (15, 10)
    with pytest.raises(KeyboardInterrupt):
        mmd_(classifier(), batches(), steps=30, progress=stop_at(15, KeyboardInterrupt()), **QUICK)
    with pytest.raises(RuntimeError, match="disk"):
        mmd_(failed, batches(), steps=30, progress=stop_at(2, RuntimeError("disk")), **QUICK)
    assert torch.equal(weights_of(failed), weights_of(classifier()))


@pytest.mark.slow
def test_a_run_goes_on_from_its_checkpoint(tmp_path, short_windows):
    data = TensorDataset(normal(30, 6))
    loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    straight, resumed, file = classifier(), classifier(), tmp_path / "progress.safetensors"
    whole = reported(straight, loader, steps=20)

    def stop(done):
        if done.step == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mmd_(resumed, loader, steps=20, checkpoint=file, progress=stop, **QUICK)
    fresh = classifier()
    rest = reported(fresh, loader, steps=20, checkpoint=file)
    assert rest.losses == pytest.approx(whole.losses, rel=1e-5)
    torch.testing.assert_close(weights_of(fresh), weights_of(straight))
    with pytest.raises(ValueError, match="progress of mmd_ on this model"):
        mmd_(classifier(classes=5), loader, steps=20, checkpoint=file, **QUICK)


def stop_at(step, error):
    def progress(done):
        if done.step == step:
            raise error

    return progress


@pytest.mark.slow
def test_a_loaders_own_generator_plays_no_part_and_is_left_as_it_was(tmp_path, short_windows):
    own = torch.Generator().manual_seed(8)
    loader = DataLoader(TensorDataset(normal(30, 6)), batch_size=8, shuffle=True, drop_last=True, generator=own)
    options, file = {"steps": 20, **QUICK}, tmp_path / "progress.safetensors"
    before, first = own.get_state(), mmd_(classifier(), loader, **options)
    assert torch.equal(own.get_state(), before)
    own.manual_seed(9)
    with pytest.raises(KeyboardInterrupt):
        mmd_(classifier(), loader, checkpoint=file, progress=stop_at(13, KeyboardInterrupt()), **options)
    with pytest.raises(RuntimeError) as kept:
        mmd_(classifier(), loader, progress=stop_at(3, RuntimeError("disk")), **options)
    assert torch.equal(own.get_state(), torch.Generator().manual_seed(9).get_state()), kept
    torch.rand(5, generator=own)
    resumed, second = mmd_(classifier(), loader, checkpoint=file, **options), mmd_(classifier(), loader, **options)
    assert torch.equal(weights_of(first), weights_of(second))
    assert torch.equal(weights_of(first), weights_of(resumed))


def halved(model):
    with torch.no_grad():
        model[2].bias.mul_(0.5)
    return model


@pytest.fixture(scope="module")
def progress_file(tmp_path_factory):
    """Progress of four steps, the last with other memory: that and the number of steps may change."""
    file = tmp_path_factory.mktemp("mmd") / "progress.safetensors"
    mmd_(classifier(), batches(), steps=3, checkpoint=file, **QUICK)
    mmd_(classifier(), batches(), steps=4, checkpoint=file, memory=2**10, **QUICK)
    return file


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"perturbations": 13}, r"perturbations: expected 12, .*progress.* got 13; pass the same to go on, or name"),
        ({"scale": 0.5}, "scale: expected 0.707.* got 0.5"),
        ({"uniformity": 0.5}, "uniformity: expected 1.0.* got 0.5"),
        ({"degenerate": 0.0}, "degenerate: expected 0.4.* got 0.0"),
        ({"detachment": 0.0}, "detachment: expected 1.0.* got 0.0"),
        ({"learning_rate": 2e-2}, "learning_rate: expected 0.01.* got 0.02"),
        ({"generator": 99}, r"generator: expected \d+ \(the seed drawn from it\), .* got \d+"),
        ({"model": classifier(1)}, "model: expected the start of the run .*, got other values"),
        ({"model": halved(classifier())}, "model: expected the start of the run"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_start_or_setting_is_refused(change, message, progress_file):
    file = progress_file
    options, kept = QUICK | {"steps": 5} | change, file.read_bytes()
    model = options.pop("model", None) or classifier()
    before = weights_of(model)
    with pytest.raises(ValueError, match=message):
        mmd_(model, batches(), checkpoint=file, **options)
    assert torch.equal(weights_of(model), before)
    assert file.read_bytes() == kept


@pytest.mark.slow
def test_frozen_values_and_buffers_belong_to_the_start_and_old_files_are_refused(tmp_path):
    def model(mean, bias):
        found = classifier().insert(1, nn.BatchNorm1d(16)).eval()
        found[1].running_mean.fill_(mean)
        with torch.no_grad():
            found[0].bias.requires_grad_(False).fill_(bias)
        return found

    file = tmp_path / "progress.safetensors"
    mmd_(model(0.0, 0.0), batches(), steps=1, checkpoint=file, **QUICK)
    mmd_(model(0.0, 0.0), batches(), steps=2, checkpoint=file, **QUICK)
    for other in (model(1.0, 0.0), model(0.0, 1.0)):
        with pytest.raises(ValueError, match="expected the start of the run"):
            mmd_(other, batches(), steps=2, checkpoint=file, **QUICK)
    tensors, metadata = read_tensors(file)
    old = {"seed": 3, "step": 2, "kept": 2, "losses": [1.0]}
    write_tensors(file, tensors, metadata | {"progress": json.dumps(old)})
    with pytest.raises(ValueError, match="older version"):
        mmd_(model(0.0, 0.0), batches(), steps=2, checkpoint=file, **QUICK)


@pytest.mark.slow
def test_more_steps_go_on_from_a_file_as_if_the_run_had_not_ended(tmp_path, short_windows):
    file, steps = tmp_path / "progress.safetensors", []
    straight, longer = classifier(), classifier()
    whole = reported(straight, batches(), steps=27, progress=lambda done: steps.append(done.terms.loss))
    means = [sum(steps[:10]) / 10, sum(steps[10:20]) / 10, sum(steps[20:]) / 7]
    short = reported(classifier(), batches(), steps=7, checkpoint=file)
    assert short.losses == pytest.approx([sum(steps[:7]) / 7])
    assert short.best_step == 7
    assert reported(classifier(), batches(), steps=7, checkpoint=file) == short  # all done already
    first = reported(classifier(), batches(), steps=13, checkpoint=file)
    assert first.losses == pytest.approx(means[:1])
    rest = reported(longer, batches(), steps=27, checkpoint=file)
    assert rest.losses == whole.losses == pytest.approx(means)
    assert rest.best_step == whole.best_step == (10, 20, 27)[means.index(min(means))]
    assert torch.equal(weights_of(longer), weights_of(straight))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("steps", "stop", "ends"), [(16, None, [10, 16]), (15, None, [10]), (9, None, [9]),
                                                     (30, 16, [10, 16]), (30, 15, [10]), (30, 6, [6]), (30, 5, []),
                                                     (8, 5, [5])])  # fmt: skip
def test_the_last_steps_count_if_they_are_more_than_half_a_window(steps, stop, ends, short_windows):
    losses, values, model = [], [weights_of(classifier())], classifier()

    def remember(done):
        losses.append(done.terms.loss)
        values.append(weights_of(model))
        if done.step == stop:
            raise KeyboardInterrupt

    found = mmd(model, batches(), steps=steps, progress=remember, **QUICK)
    assert found.interrupted == bool(stop)
    means = [sum(losses[start:end]) / (end - start) for start, end in zip([0, *ends], ends, strict=False)]
    assert found.losses == pytest.approx(means)
    assert found.best_step == (ends[means.index(min(means))] if ends else 0)
    assert torch.equal(weights_of(model), values[found.best_step])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("driver")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stop", [None, 13])
@pytest.mark.parametrize("at", [1, 4], ids=["first batch", "last batch"])
def test_what_is_trained_outlives_whatever_ends_the_judgement(error, stop, at, monkeypatch, short_windows):
    straight, model, calls = mmd_(classifier(), batches(4), steps=10, **QUICK), classifier(), []

    def terms(*arguments, **options):
        calls.append(not torch.is_grad_enabled())
        if sum(calls) == 4 + at:  # four judged batches before, four after
            raise error
        return mmd_terms(*arguments, **options)

    monkeypatch.setattr("theta0.initializers.mmd.mmd_terms", terms)
    progress = stop_at(stop, KeyboardInterrupt("first"))
    with pytest.raises(type(error)) as told:
        mmd_(model, batches(4), steps=20 if stop else 10, progress=progress, **QUICK)
    assert told.value is error
    assert sum(calls) == 4 + at
    assert torch.equal(weights_of(model), weights_of(straight))


def test_zero_steps_change_nothing_and_report_the_start():
    model = classifier()
    result = reported(model, batches(), steps=0)
    assert torch.equal(weights_of(model), weights_of(classifier()))
    assert result.before == result.after
    assert result.best_step == 0


@pytest.mark.slow
def test_beyond_ten_classes_sampled_ones_give_the_same_expectation():
    model, x = classifier(classes=13).double(), normal(5, 6).double()
    with twice_differentiable(model):
        around = neighbourhood(model, x, 0.5)
        only = Weights(0.0, 0.0, 1.0)
        found = [
            float(mmd_terms(around, x, only, seed, perturbations=2, memory=2**20).detachment) for seed in range(40)
        ]
    logits = model(x)
    full = torch.autograd.functional.jacobian(lambda rows: model(rows), x)
    assert logits.shape == (5, 13)
    norms = {0: torch.stack([full[n, :, n] for n in range(5)]).norm(dim=-1)}
    for cut in (1, 3):
        hidden, rest = model[:cut](x), model[cut:]
        part = torch.autograd.functional.jacobian(rest, hidden)
        norms[cut] = torch.stack([part[n, :, n] for n in range(5)]).norm(dim=-1)
    expected = float(torch.stack([(1 - n).square() for n in norms.values()]).amax(0).mean())
    spread = torch.tensor(found).std() / math.sqrt(len(found))
    assert abs(sum(found) / len(found) - expected) < 4 * float(spread)


class CutOff(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


def half_frozen():
    """The one parameter that could be trained is not used."""
    model = nn.Linear(6, 3).requires_grad_(False)
    model.register_parameter("spare", nn.Parameter(torch.zeros(3)))
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"perturbations": 1}, "perturbations: expected a whole number of at least 2, got 1"),
        ({"perturbations": 2.5}, "perturbations: expected a whole number of at least 2, got 2.5"),
        ({"steps": 1.5}, "steps: expected a whole number of at least 0, got 1.5"),
        ({"memory": math.nan}, "memory: expected a whole number"),
        ({"uniformity": math.nan}, "uniformity: expected a number of at least 0.* got nan"),
        ({"detachment": math.inf}, "detachment: expected a number of at least 0, and finite, got inf"),
        ({"degenerate": -1.0}, "degenerate: expected a number of at least 0.* got -1.0"),
        ({"scale": "wide"}, "scale: expected a positive number, got wide"),
        ({"model": nn.Flatten()}, "requires a gradient"),
        ({"model": CutOff(6, 3)}, "outputs that depend on a parameter that requires a gradient, got ones cut off"),
        ({"model": half_frozen()}, "unfreeze a parameter that it uses"),
        ({"scale": 0.0}, "scale: expected a positive number"),
        ({"learning_rate": math.nan}, "learning_rate: expected a positive number"),
        ({"steps": -1}, "steps: expected"),
        ({"model": nn.Linear(6, 1)}, "at least two logits"),
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.Flatten(0))}, "at least two logits"),
        ({"model": nn.LazyLinear(3)}, "lazy"),
        ({"loss": "mse"}, "expected a classifier of two classes or more, got the loss 'mse'"),
        ({"loss": nn.HuberLoss(), "batches": [(normal(8, 6), normal(8, 3))]}, "a classifier .* got the loss HuberLoss"),
        ({"batches": [(normal(8, 6), normal(8, 3))]}, "a classifier .* got targets of type torch.float32"),
        ({"model": nn.Linear(6, 3).requires_grad_(False)}, "requires a gradient"),
        ({"batches": [normal(1, 6)]}, "at least two samples"),
        ({"batches": [*batches(4), normal(1, 6)], "steps": 5}, "batch 4: expected at least two"),
        ({"batches": [normal(8, 6) / 0]}, "finite"),
        ({"batches": []}, "at least one batch"),
        ({"batches": iter(batches(5)), "steps": 4}, "read only once"),
        ({"batches": iter(batches())}, "no length"),
    ],
)  # fmt: skip
def test_bad_input_is_told_and_changes_nothing(change, message, unchecked):
    options = QUICK | {"steps": 2} | change
    if "no length" in message:
        options["steps"] = None
    model, data = options.pop("model", None) or classifier(), options.pop("batches", batches())
    before = [p.detach().clone() for p in model.parameters() if not isinstance(p, nn.UninitializedParameter)]
    with pytest.raises(ValueError, match=message):
        mmd_(model, data, **options)
    for one, other in zip(before, model.parameters(), strict=False):
        assert torch.equal(one, other)


def test_exploding_weights_are_told():
    model = classifier()
    with torch.no_grad():
        model[0].weight.fill_(1e30)
    with pytest.raises(ValueError, match="finite"):
        mmd_(model, batches(), steps=1, **QUICK)


def _loss_and_gradient(rank, folder, world):
    torch.set_num_threads(1)
    if world > 1:
        store = f"file://{folder}/store"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    from theta0._ranks import summed

    model, x = classifier().double(), normal(6, 6).double()
    with twice_differentiable(model):
        around = neighbourhood(model, x, 0.7)
        terms = mmd_terms(around, x, Weights(1.0, 0.4, 1.0), 5, perturbations=9, memory=2**30)
        terms.loss.backward()
        gradient = torch.cat([summed(p.grad).flatten() for p in model.parameters()])
    trained = classifier()
    mmd_(trained, batches(), steps=3, **(QUICK | {"perturbations": 9, "generator": 3 + rank}))
    torch.save((terms.loss.detach(), gradient, weights_of(trained)), f"{folder}/{world}-{rank}.pt")
    if world > 1:
        message = "none"
        try:
            mmd_(trained, [normal(6, 6, seed=rank)], steps=1, **QUICK)
        except ValueError as error:
            message = str(error)
        assert "same batch on every rank" in message
        torch.distributed.barrier()  # gloo aborts where a peer leaves first
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_loss_and_gradient_of_one(tmp_path):
    _loss_and_gradient(0, tmp_path, 1)
    multiprocessing.start_processes(_loss_and_gradient, args=(tmp_path, 2), nprocs=2, start_method="fork")
    alone = torch.load(tmp_path / "1-0.pt")
    for rank in range(2):
        together = torch.load(tmp_path / f"2-{rank}.pt")
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
