"""The top eigenvalue against dense float64 matrices."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import curvature_cases as dense
from theta0.curvature import top_eigenvalue

DENSE = {"ggn": dense.ggn, "fisher": dense.ggn, "hessian": dense.hessian}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
@pytest.mark.parametrize("name", dense.NETS)
def test_six_networks_agree_with_a_dense_reference(name, matrix):
    model, x, y, loss = dense.net(name)
    truth = dense.largest(DENSE[matrix](model, x, y, loss))[0]
    found = top_eigenvalue(model, [(x, y)], loss, matrix=matrix, tolerance=1e-3, generator=0)
    assert found.converged
    assert found.error <= 1e-3 / 3
    assert found.value == pytest.approx(truth, rel=1e-3)
    others = [top_eigenvalue(model, [(x, y)], loss, matrix=matrix, generator=seed) for seed in range(1, 4)]
    assert all(f.converged for f in others)
    assert max(abs(f.value / truth - 1) for f in others) <= 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
@pytest.mark.parametrize("name", dense.NETS)
def test_no_start_of_twenty_converges_to_something_else(name, matrix):
    model, x, y, loss = dense.net(name, seed=1)
    truth = dense.largest(DENSE[matrix](model, x, y, loss))[0]
    found = [top_eigenvalue(model, [(x, y)], loss, matrix=matrix, generator=seed) for seed in range(20)]
    assert all(f.converged for f in found)
    assert max(abs(f.value / truth - 1) for f in found) <= 1e-2


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 20), marks=pytest.mark.slow)])
def test_products_and_gradients_on_the_reference_problem(reference_problem, seeds):
    model, x, y = reference_problem
    for seed in seeds:
        found = top_eigenvalue(model, [(x, y)], "cross_entropy", generator=seed)
        assert found.converged
        assert found.value == pytest.approx(9.282816, rel=1e-2 / 3)
        assert found.products <= 10
        assert found.cost <= 15


@pytest.mark.slow
def test_cost_is_that_of_the_matrix_products_in_it(reference_problem):
    """Floating-point operations of matrix products, counted by torch, over those of a forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    model, x, y = reference_problem
    with FlopCounterMode(display=False) as one:
        F.cross_entropy(model(x), y).backward()
    model.zero_grad(set_to_none=True)
    for matrix in ("ggn", "hessian"):
        with FlopCounterMode(display=False) as all_of_it:
            found = top_eigenvalue(model, [(x, y)], "cross_entropy", matrix=matrix, generator=0)
        counted = all_of_it.get_total_flops() / one.get_total_flops()
        assert counted == pytest.approx(found.cost, rel=0.1)


def test_a_warm_start_needs_fewer_products(reference_problem):
    model, x, y = reference_problem
    cold = top_eigenvalue(model, [(x, y)], "cross_entropy", generator=0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.001 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))
    moved = top_eigenvalue(model, [(x, y)], "cross_entropy", generator=1)
    warm = top_eigenvalue(model, [(x, y)], "cross_entropy", generator=1, start=cold)
    assert warm.products < moved.products
    assert warm.cost < moved.cost
    assert warm.value == pytest.approx(moved.value, rel=1e-3)


def test_a_warm_start_from_a_wrong_vector_still_finds_the_top(reference_problem):
    model, x, y = reference_problem
    second = torch.randn(sum(p.numel() for p in model.parameters()), generator=torch.Generator().manual_seed(0))
    found = top_eigenvalue(model, [(x, y)], "cross_entropy", generator=0, start=second)
    assert found.value == pytest.approx(9.282816, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_several_eigenvalues_and_the_eigenvector(matrix):
    model, x, y, loss = dense.net("group-norm")
    full = DENSE[matrix](model, x, y, loss)
    found = top_eigenvalue(model, [(x, y)], loss, matrix=matrix, k=3, tolerance=1e-3, generator=0)
    assert found.values == pytest.approx(dense.largest(full, 3), rel=1e-3)
    u = found.vector.double()
    assert float(u.norm()) == pytest.approx(1)
    assert float((full @ u - found.value * u).norm()) <= 2e-3 * found.value


@pytest.mark.sampled(1)
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
@pytest.mark.parametrize("recompute", [False, True])
def test_batches_are_averaged_by_their_sizes(matrix, recompute):
    model, x, y, loss = dense.net("mlp")
    parts = [(x[:10], y[:10]), (x[10:], y[10:])]
    truth = dense.largest(DENSE[matrix](model, x, y, loss))[0]
    found = top_eigenvalue(model, parts, loss, matrix=matrix, tolerance=1e-3, recompute=recompute, generator=0)
    assert found.value == pytest.approx(truth, rel=1e-3)


def test_recomputing_costs_more_and_changes_nothing():
    model, x, y, loss = dense.net("bn-resnet")
    kept = top_eigenvalue(model, [(x, y)], loss, tolerance=1e-3, generator=0)
    anew = top_eigenvalue(model, [(x, y)], loss, tolerance=1e-3, generator=0, recompute=True)
    assert anew.value == pytest.approx(kept.value, rel=1e-4)
    assert anew.cost / anew.products > kept.cost / kept.products


def soft(logits, targets):
    return F.cross_entropy(logits, targets, label_smoothing=0.1)


LOSSES = {
    "soft targets": (
        "cross_entropy",
        lambda: torch.rand(16, 4, generator=torch.Generator().manual_seed(0)),
        F.cross_entropy,
    ),
    "ignored labels": ("cross_entropy", lambda: torch.tensor([0, -100, 3, 1] * 4), F.cross_entropy),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), lambda: torch.tensor([0, 2, 3, 1] * 4), soft),
    "squared error": ("mse", lambda: torch.ones(16, 4), F.mse_loss),
    "binary": ("bce", lambda: torch.tensor([[0.0, 1, 1, 0]] * 16), F.binary_cross_entropy_with_logits),
    "huber": (F.huber_loss, lambda: torch.ones(16, 4), F.huber_loss),
    "sum": (lambda f, t: ((f - t) ** 2).sum(), lambda: torch.ones(16, 4), lambda f, t: ((f - t) ** 2).sum()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_as_given(name):
    loss, targets, plain = LOSSES[name]
    model, x, _, _ = dense.net("mlp")
    y = targets()
    truth = dense.largest(dense.ggn(model, x, y, plain))[0]
    found = top_eigenvalue(model, [(x, y)], loss, tolerance=1e-3, generator=0)
    assert found.value == pytest.approx(truth, rel=1e-3)


def test_class_axis_of_sequences():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 5, 3), nn.Tanh(), nn.Conv1d(5, 4, 1))  # N × classes × positions
    x, y = torch.randn(5, 3, 8), torch.randint(4, (5, 6))
    truth = dense.largest(dense.ggn(model, x, y, F.cross_entropy))[0]
    assert top_eigenvalue(model, [(x, y)], "cross_entropy", tolerance=1e-3, generator=0).value == pytest.approx(
        truth, rel=1e-3
    )


def test_gaussian_fisher_has_a_closed_form():
    """A linear map under torch's mse over C outputs: F = (2/C) E[x xᵀ] for each output (furusho2020thesis §2.4)."""
    torch.manual_seed(0)
    x = torch.randn(30, 5)
    model = nn.Linear(5, 3, bias=False)
    truth = 2 / 3 * torch.linalg.eigvalsh(x.double().T @ x.double() / 30)[-1].item()
    found = top_eigenvalue(model, [(x, torch.zeros(30, 3))], "mse", matrix="fisher", tolerance=1e-3, generator=0)
    assert found.value == pytest.approx(truth, rel=1e-3)


def test_frozen_parameters_do_not_count():
    model, x, y, loss = dense.net("mlp")
    model[0].requires_grad_(False)
    truth = dense.largest(dense.ggn(model, x, y, loss))[0]
    found = top_eigenvalue(model, [(x, y)], loss, tolerance=1e-3, generator=0)
    assert found.value == pytest.approx(truth, rel=1e-3)
    assert found.vector.numel() == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_preconditioned_matrix():
    model, x, y, loss = dense.net("mlp")
    full = dense.ggn(model, x, y, loss)
    inverse = 0.1 + torch.rand(len(full), generator=torch.Generator().manual_seed(0))
    root = inverse.double().sqrt()
    truth = dense.largest(root[:, None] * full * root)[0]
    for loss_as in (loss, F.cross_entropy, lambda f, t: F.cross_entropy(f, t)):
        found = top_eigenvalue(model, [(x, y)], loss_as, tolerance=1e-3, inverse_preconditioner=inverse, generator=0)
        assert found.value == pytest.approx(truth, rel=1e-3)


def test_certificate_holds(reference_problem):
    model, x, y = reference_problem
    found = top_eigenvalue(model, [(x, y)], "cross_entropy", certify=(0.1, 1e-3), generator=0)
    c = found.certificate
    assert found.products >= c.products
    bound = 1.648 * math.sqrt(c.size) * math.exp(-math.sqrt(c.epsilon) * (2 * c.products - 1))
    assert bound <= c.delta < bound * math.exp(2 * math.sqrt(c.epsilon))  # and one product fewer would not do
    assert c.size == 1280
    assert found.value * 1.000001 <= 9.282816 * 1.00001 <= found.value / (1 - c.epsilon)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
@pytest.mark.parametrize("name", dense.NETS)
def test_self_test_passes(name, matrix):
    model, x, y, loss = dense.net(name)
    test = top_eigenvalue(model, [(x, y)], loss, matrix=matrix, check=True, generator=0).test
    assert test.asymmetry < 1e-4
    assert test.difference < 1e-3


@pytest.mark.parametrize("name", dense.NETS)
def test_the_model_is_left_as_it_was(name):
    model, x, y, loss = dense.net(name)
    apply = dense.LOSSES[loss]
    apply(model(x), y).backward()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    dropouts = [getattr(m, "dropout", None) for m in model.modules()]
    random = torch.get_rng_state()
    for matrix in ("ggn", "hessian"):
        top_eigenvalue(model, [(x, y)], loss, matrix=matrix, generator=0)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert modes == [m.training for m in model.modules()]
    assert dropouts == [getattr(m, "dropout", None) for m in model.modules()]
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


def test_same_seed_same_result():
    model, x, y, loss = dense.net("lstm")
    first, second = (top_eigenvalue(model, [(x, y)], loss, generator=7) for _ in range(2))
    assert first.value == second.value


def test_half_precision_is_measured_in_single():
    model, x, y, loss = dense.net("mlp")
    truth = top_eigenvalue(model.bfloat16().float(), [(x.bfloat16().float(), y)], loss, generator=0)
    found = top_eigenvalue(model.bfloat16(), [(x, y)], loss, generator=0)
    assert found.value == pytest.approx(truth.value, rel=1e-5)
    assert next(model.parameters()).dtype == torch.bfloat16


def tall(seed: int, nonlinearity=nn.Tanh):
    """Small plain networks on batches that are large enough for a start from an eighth of them."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 6, generator=draws) * torch.logspace(0, -1, 6)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts = [nn.Linear(6, 12), nonlinearity(), nn.Linear(12, 12), nonlinearity(), nn.Linear(12, 4)]
    return nn.Sequential(*parts), x, torch.randint(4, (64,), generator=draws)


SEEDS = [range(4), pytest.param(range(4, 24), marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("nonlinearity", [nn.Tanh, nn.ReLU])
def test_starts_from_an_eighth_of_the_samples_agree_with_a_dense_reference(nonlinearity, seeds):
    costs = []
    for seed in seeds:
        model, x, y = tall(seed, nonlinearity)
        truth = dense.largest(dense.ggn(model, x, y, F.cross_entropy))[0]
        found = top_eigenvalue(model, [(x, y)], "cross_entropy", generator=seed)
        assert found.value == pytest.approx(truth, rel=1e-2)
        costs.append(found.cost)
    assert sum(costs) / len(costs) <= 10


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seeds", SEEDS)
def test_hessians_agree_with_torchs_own(seeds):
    """`torch.autograd.functional.hessian` in float64, over the flat parameters."""
    for seed in seeds:
        model, x, y = tall(seed)
        named = {name: p.detach().double() for name, p in model.named_parameters()}
        sizes = [p.numel() for p in named.values()]

        def loss(flat, model=model, x=x, y=y, named=named, sizes=sizes):
            parts = zip(named, torch.split(flat, sizes), strict=True)
            values = {name: part.view(named[name].shape) for name, part in parts}
            return F.cross_entropy(torch.func.functional_call(model.double(), values, x.double()), y)

        together = torch.cat([p.flatten() for p in named.values()])
        truth = float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, together))[-1])
        found = top_eigenvalue(model.float(), [(x, y)], "cross_entropy", matrix="hessian", generator=seed)
        assert found.value == pytest.approx(truth, rel=1e-2)


class Mixing(nn.Module):
    """A graph network: its inputs cannot be cut."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
        self.register_buffer("mixing", torch.eye(64) + torch.diag(torch.ones(63), 1))

    def forward(self, x):
        return self.second(torch.tanh(self.mixing @ self.first(x)))


def test_what_cannot_be_cut_starts_at_the_gradient():
    _, x, y = tall(0)
    torch.manual_seed(0)
    model = Mixing()
    found = top_eigenvalue(model, [(x, y)], "cross_entropy", tolerance=1e-3, generator=0)
    truth = dense.largest(dense.ggn(model, x, y, F.cross_entropy))[0]
    assert found.value == pytest.approx(truth, rel=1e-3)
