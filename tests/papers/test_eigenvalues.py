"""Fisher eigenvalues of the thesis's networks against the layer-wise Gram matrix and a dense Jacobian."""

import pytest
import torch

from theta0.papers.furusho2020thesis import eigenvalues
from theta0.papers.furusho2020thesis.activation_rates import signals
from theta0.papers.furusho2020thesis.eigenvalues import mean_eigenvalue, output_gradients, top_eigenvalue_of
from theta0.papers.models import ThesisResNet, thesis_start_
from theta0.theory import resnet_bounds

X = torch.randn(15, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def build(batch_norm, width=6, depth=3, seed=0):
    model = ThesisResNet(width, depth, batch_norm=batch_norm)
    return thesis_start_(model, generator=torch.Generator().manual_seed(seed)).double()


def jacobian(model, kept=None):
    outputs = model(X, kept)
    rows = [torch.autograd.grad(outputs[i, 0], list(model.parameters()), retain_graph=True) for i in range(len(X))]
    return torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("kept", [None, torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)])
def test_gradients_and_eigenvalues_equal_the_dense_fisher_matrix(batch_norm, kept):
    model = build(batch_norm)
    gradients, expected = output_gradients(model, X, kept), jacobian(model, kept)
    torch.testing.assert_close(gradients, expected, atol=1e-12, rtol=1e-10)
    spectrum = torch.linalg.eigvalsh(expected.T @ expected / len(X))
    assert top_eigenvalue_of(gradients) == pytest.approx(float(spectrum[-1]), rel=1e-10)
    assert mean_eigenvalue(gradients) == pytest.approx(float(spectrum.mean()), rel=1e-10)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_gram_matrix_is_the_sum_of_forward_times_backward_products(batch_norm):
    model = build(batch_norm)
    gradients = output_gradients(model, X, constant_statistics=True)
    forward, backward = signals(model, X)
    states = model.hidden(X, None, model.batch_statistics(X))
    first = torch.autograd.grad(states[-1].sum(), states[0])[0]
    gram = (X @ X.T) * (first @ first.T)
    for u, d in zip(forward, backward, strict=True):
        gram = gram + (u @ u.T) * (d @ d.T)
    torch.testing.assert_close(gradients @ gradients.T, gram, atol=1e-10, rtol=1e-10)


def test_the_iterative_route_equals_the_dense_one(monkeypatch):
    gradients = output_gradients(build(False), X)
    dense = top_eigenvalue_of(gradients)
    monkeypatch.setattr(eigenvalues, "_DENSE", 1)
    assert top_eigenvalue_of(gradients) == pytest.approx(dense, rel=1e-4)
    assert top_eigenvalue_of(torch.cat([gradients] * 20)) == pytest.approx(dense, rel=1e-4)


def test_the_mean_eigenvalue_of_wide_nets_is_theorem_6():
    width, depth = 40, 2
    x = torch.randn(60, width, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    means = [mean_eigenvalue(output_gradients(build(False, width, depth, seed), x)) for seed in range(30)]
    expected = resnet_bounds(depth, width).mean
    assert sum(means) / len(means) == pytest.approx(expected, rel=0.12)
