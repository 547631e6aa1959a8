"""The gradient Gram matrix against one backward pass per sample, in double precision."""

import copy
from itertools import accumulate, pairwise
from unittest import mock

import pytest
import torch
from gram_cases import CASES, Calls, Case, half_square, random, reference, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from theta0._batches import Batch
from theta0.measurements import (
    GradientGram,
    fisher_eigenvalues,
    gradcosine,
    gradient_gram,
    gradient_noise,
    gradient_norms,
    gradients,
    gram_products,
    path_bound,
)
from theta0.measurements.sub_batches import overlapping


def made(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.make().double()


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_equal_to_one_backward_pass_per_sample(case: Case):
    model = made(case)
    state = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    result = gradient_gram(model, [(case.inputs, None)], half_square)
    assert distance(result.gram, reference(model, case.inputs, half_square)) < 1e-10
    assert {name for name, route in result.routes.items() if route == "per-sample"} == case.fallback
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("route", ["pairs", "slices"])
@pytest.mark.parametrize("workspace", [1, 300, 1 << 18])
@pytest.mark.parametrize(
    "name",
    [
        "positions",
        "called twice",
        "convolution",
        "convolution, depthwise and dilated",
        "tied embedding",
        "attention, cross",
    ],
)
def test_both_routes_and_any_blocking_agree(name: str, route: str, workspace: int):
    case = CASES[name]
    model = made(case)
    cheap, dear = (lambda *a: 0.0), (lambda *a: 1.0)
    costs = {"_pairs_cost": cheap if route == "pairs" else dear, "_slices_cost": dear if route == "pairs" else cheap}
    with (
        mock.patch.multiple(gram_products, **costs),
        mock.patch.multiple("theta0.measurements.gradients", _LEAST=workspace, _SHARE=1 << 60),
    ):
        result = gradient_gram(model, [(case.inputs, None)], half_square)
    assert route in result.routes.values()
    assert distance(result.gram, reference(model, case.inputs, half_square)) < 1e-10


def test_several_batches_of_different_lengths_are_one_set_of_samples():
    torch.manual_seed(0)
    parts = {"a": nn.Embedding(7, 4), "b": nn.Linear(4, 5), "c": nn.LayerNorm(5), "d": nn.Bilinear(5, 5, 3)}
    model = Calls(lambda m, x: m.d(m.c(m.b(m.a(x))).mean(1), m.a(x[:, 0]) @ m.b.weight.T), **parts).double()
    batches = [(tokens(4, 5), None), (tokens(3, 2), None), (tokens(1, 6), None)]
    rows = []
    for inputs, _ in batches:
        for x in inputs:
            found = torch.autograd.grad(half_square(model(x[None]), None), list(model.parameters()))
            rows.append(torch.cat([g.flatten() for g in found]))
    stacked = torch.stack(rows)
    assert distance(gradient_gram(model, batches, half_square).gram, stacked @ stacked.T) < 1e-10


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("cross_entropy", tokens(6, vocabulary=3)),
        ("mse", random(6, 3, seed=5)),
        ("l1", random(6, 3, seed=5)),
        ("bce", random(6, 3, seed=5).sigmoid()),
    ],
)
def test_named_losses_and_their_callables(name: str, targets: Tensor):
    functions = {
        "cross_entropy": F.cross_entropy,
        "mse": F.mse_loss,
        "l1": F.l1_loss,
        "bce": F.binary_cross_entropy_with_logits,
    }
    model, inputs = mlp(), random(6, 4)
    expected = reference(model, inputs, functions[name], targets)
    assert distance(gradient_gram(model, [(inputs, targets)], name).gram, expected) < 1e-10
    assert distance(gradient_gram(model, [(inputs, targets)], functions[name]).gram, expected) < 1e-10


def test_a_summed_loss_has_the_same_sample_losses():
    model, inputs = mlp(), random(6, 4)
    summed = gradient_gram(model, [(inputs, None)], lambda outputs, targets: outputs.square().sum())
    assert distance(summed.gram, reference(model, inputs, lambda outputs, targets: outputs.square().sum())) < 1e-10


def test_ignored_labels_weigh_as_in_the_batch():
    model, inputs = mlp(), random(6, 4)
    targets = torch.tensor([0, -100, 2, 1, -100, 0])
    gram = gradient_gram(model, [(inputs, targets)], "cross_entropy").gram
    whole = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
    assert float(gram[1].abs().max()) == 0
    assert float(gram.sum()) / 36 == pytest.approx(sum(float(g.square().sum()) for g in whole), rel=1e-10)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.sampled_from(sorted(CASES)), st.integers(2, 6), st.integers(0, 1000))
def test_symmetric_positive_semidefinite_and_sums_to_the_whole_gradient(name: str, samples: int, seed: int):
    case = CASES[name]
    torch.manual_seed(seed)
    model = case.make().double()
    inputs = case.inputs[torch.randperm(len(case.inputs))[:samples]]
    gram = gradient_gram(model, [(inputs, None)], half_square).gram
    assert torch.equal(gram, gram.T)
    assert float(torch.linalg.eigvalsh(gram).min()) >= -1e-12 * float(gram.trace())
    leaves = [p for p in model.parameters() if p.requires_grad]
    whole = torch.autograd.grad(half_square(model.eval()(inputs), None), leaves, allow_unused=True)
    square = sum(float(g.square().sum()) for g in whole if g is not None)
    assert float(gram.sum()) / samples**2 == pytest.approx(square, rel=1e-8, abs=1e-12 * float(gram.trace()))


def test_vanishing_gradients_do_not_underflow_in_single_precision():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    for layer in model:
        layer.weight.data = random(*layer.weight.shape).float() * 1e-12
    inputs = random(5, 4).float()
    gram = gradient_gram(model, [(inputs, None)], half_square).gram
    exact = reference(copy.deepcopy(model).double(), inputs.double(), half_square)
    assert distance(gram, exact) < 1e-5


def test_closed_forms_of_what_follows_from_the_matrix():
    model = nn.Linear(2, 1, bias=False)
    inputs = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    gram = gradient_gram(model, [(inputs, None)], lambda outputs, targets: outputs.sum())
    assert gram.gram.tolist() == [[1, 1], [1, 2]]
    assert gradient_norms(gram).tolist() == pytest.approx([1, 2**0.5])
    assert gradcosine(gram) == pytest.approx((2 + 2 * 0.5**0.5) / 4)
    assert gradient_noise(gram) == pytest.approx(0.5 / 1.25)  # variances 0 and 1/2, mean gradient (1, 1/2)
    # The longest path squared times two paths times (its ratio to the shortest minus the mean cosine).
    assert path_bound(gram) == pytest.approx(2 * 2 * (2**0.5 - (2 + 2 * 0.5**0.5) / 4))
    assert fisher_eigenvalues(gram).tolist() == pytest.approx([(3 + 5**0.5) / 4, (3 - 5**0.5) / 4])


def test_records():
    records = {r.quantity: r for r in gradients(mlp(), [(random(6, 4), None)], half_square)}
    aligned = {"gradcosine", "gradient_noise", "gradient_norm_mean", "gradient_norm_max", "path_bound"}
    assert set(records) == aligned | {"top_fisher_eigenvalue", "output_rms", "output_sample_std"}
    assert {r.layer for r in records.values()} == {""}
    assert 0 < records["gradcosine"].value <= 1


def test_a_network_without_gradient_has_no_noise_and_no_alignment():
    model = mlp()
    for p in model.parameters():
        p.data.zero_()
    records = {r.quantity: r.value for r in gradients(model, [(random(6, 4), torch.zeros(6, 3))], "mse")}
    norms = {"gradient_norm_mean": 0, "gradient_norm_max": 0, "top_fisher_eigenvalue": 0}
    assert records == {"gradcosine": 0, **norms, "output_rms": 0, "output_sample_std": 0}


def test_sub_batches_under_batch_statistics():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    state = copy.deepcopy(model.state_dict())
    inputs = random(13, 4)
    result = gradient_gram(model, [(inputs[:7], None), (inputs[7:], None)], half_square, sub_batches=3)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(half_square(model(part), None), list(model.parameters()))])
        for part in inputs[:12].split(4)
    ]
    assert distance(result.gram, torch.stack(rows) @ torch.stack(rows).T) < 1e-10
    assert (result.size, result.gram.shape) == (4, (3, 3))


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(0, 1000))
def test_the_bound_on_paths_bounds_what_the_proof_says(samples: int, seed: int):
    """Squared distances between all pairs of one-step optima, the left side of the proof's first line."""
    rows = random(samples, 3, seed=seed)
    gram = GradientGram(rows @ rows.T, {}, 1, 0.0)
    pairs = torch.cdist(rows, rows).square().sum() / (2 * samples)
    assert float(pairs) <= path_bound(gram) * (1 + 1e-12)


@pytest.mark.parametrize(("parts", "overlap", "size"), [(2, 0.6, 91), (4, 0.2, 37), (2, 0.0, 64), (128, 0.0, 1)])
def test_sub_batches_are_equal_and_cover_the_batch(parts: int, overlap: float, size: int):
    cut = [part.inputs.tolist() for part in overlapping(Batch(torch.arange(128), None, 128), parts, overlap)]
    assert len(cut) == parts
    assert {len(part) for part in cut} == {size}
    assert set().union(*cut) == set(range(128))
    shared = [len(set(a) & set(b)) / size for a, b in pairwise(cut)]
    assert shared == pytest.approx([overlap] * (parts - 1), abs=2 / size)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 200), st.integers(2, 8), st.floats(0, 0.99))
def test_sub_batches_of_any_batch(samples: int, parts: int, overlap: float):
    batch = Batch(torch.arange(samples), None, samples)
    if samples < parts:
        with pytest.raises(ValueError, match="larger batches or fewer parts"):
            overlapping(batch, parts, overlap)
        return
    if samples / (1 + (parts - 1) * (1 - overlap)) >= samples - parts + 2 - 1e-9:  # no place of its own for each
        with pytest.raises(ValueError, match="pass larger batches, a smaller overlap"):
            overlapping(batch, parts, overlap)
        return
    cut = [set(part.inputs.tolist()) for part in overlapping(batch, parts, overlap)]
    assert len({len(part) for part in cut}) == 1
    assert len({min(part) for part in cut}) == parts  # no two are the same
    assert all(max(part) - min(part) + 1 == len(part) for part in cut)
    shared = [len(a & b) for a, b in pairwise(cut)]
    if overlap:
        assert set().union(*cut) == set(range(samples))
        assert max(shared) - min(shared) <= 1
        assert all(abs(count - overlap * len(cut[0])) < 3 for count in shared)
    else:
        assert not any(shared)


@pytest.mark.parametrize(("samples", "parts"), [(8, 4), (4, 4), (3, 3)])
def test_sub_batches_that_would_be_the_same_are_refused(samples: int, parts: int):
    message = (
        rf"expected parts that differ.*{samples} samples in batch 0.*larger batches, a smaller overlap \(now 0.9\)"
    )
    with pytest.raises(ValueError, match=message):
        overlapping(Batch(torch.arange(samples), None, samples), parts, 0.9)
    with pytest.raises(ValueError, match=message):
        gradient_gram(mlp(), [(random(samples, 4), None)], half_square, sub_batches=parts, overlap=0.9)


def test_a_small_overlap_leaves_no_gaps():
    cut = [part.inputs.tolist() for part in overlapping(Batch(torch.arange(8), None, 8), 3, 0.1)]
    assert cut == [[0, 1, 2], [2, 3, 4], [5, 6, 7]]


def test_overlapping_sub_batches():
    model, inputs = mlp(), random(7, 4)
    result = gradient_gram(model, [(inputs, None)], half_square, sub_batches=2, overlap=0.6)
    assert distance(result.gram, reference_of_parts(model, [inputs[:5], inputs[2:]])) < 1e-10
    assert result.size == 5
    with pytest.raises(ValueError, match="overlap"):
        gradient_gram(model, [(inputs, None)], half_square, sub_batches=2, overlap=1.0)


def reference_of_parts(model: nn.Module, parts: list[Tensor]) -> Tensor:
    rows = [torch.autograd.grad(half_square(model(part), None), list(model.parameters())) for part in parts]
    stacked = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    return stacked @ stacked.T


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda: (nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)).double(), half_square, {}),
            r"layer '1'.*sub_batches=D",
        ),
        (lambda: (mlp(), lambda outputs, targets: outputs.max(), {}), "mean or the sum of one loss per sample"),
        (
            lambda: (Calls(lambda m, x: m.f(x - x.mean(0)), f=mlp()), half_square, {}),
            "mean or the sum of one loss per sample",
        ),
        (lambda: (mlp().requires_grad_(False), half_square, {}), "trainable parameter"),
        (
            lambda: (mlp(), lambda outputs, targets: outputs.detach().mean() * 1.0, {}),
            "depends on a trainable parameter",
        ),
        (lambda: (mlp(), lambda outputs, targets: (outputs * 0).sqrt().sum(), {}), "finite gradient"),
        (lambda: (mlp(), lambda outputs, targets: (outputs / 0).sum(), {}), "finite loss"),
        (lambda: (mlp(), half_square, {"sub_batches": 1}), "at least 2 parts"),
        (lambda: (mlp(), half_square, {"sub_batches": 7}), "from 2 parts"),
        (lambda: (mlp(), lambda outputs, targets: (outputs * 0).sqrt().sum(), {"sub_batches": 2}), "finite gradients"),
    ],
)
def test_clear_errors(change, message):
    model, loss, options = change()
    with pytest.raises(ValueError, match=message):
        gradient_gram(model, [(random(6, 4), None)], loss, **options)


def test_one_sample_is_not_enough():
    with pytest.raises(ValueError, match="at least two samples"):
        gradient_gram(mlp(), [(random(1, 4), None)], half_square)


def test_an_mlp_takes_at_most_four_gradients_and_a_quarter_of_the_memory():
    torch.manual_seed(0)
    hidden = [part for i, o in pairwise((64, 256, 256, 256)) for part in (nn.Linear(i, o), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(256, 10))
    batch = (torch.randn(128, 64), tokens(128))
    gradient_gram(model, [batch], "cross_entropy")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = gradient_gram(model, [batch], "cross_entropy")
    changes = [e.nbytes() for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert 1e5 < max(accumulate(changes)) <= 0.25 * 128 * 4 * sum(p.numel() for p in model.parameters())
    assert result.cost <= 4
    assert set(result.routes.values()) == {"pairs", "entries"}
