"""The public top eigenvalue agrees with the papers' exact one, which is the Gram matrix of one-output gradients."""

import pytest
import torch
from torch import nn

from theta0.curvature import top_eigenvalue
from theta0.papers.models import ThesisResNet, thesis_start_


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("depth", [1, 4])
def test_fisher_of_the_thesis_networks(batch_norm, depth):
    generator = torch.Generator().manual_seed(depth)
    x, y = torch.randn(60, 12, generator=generator), torch.randn(60, 1, generator=generator)
    model = thesis_start_(ThesisResNet(12, depth, batch_norm=batch_norm), generator=generator)
    found = top_eigenvalue(model, [(x, y)], "mse", matrix="fisher", tolerance=1e-4)

    reference = ThesisResNet(12, depth, batch_norm=batch_norm).double()
    reference.load_state_dict(model.state_dict())
    outputs = reference(x.double()).flatten()
    rows = [torch.autograd.grad(f, list(reference.parameters()), retain_graph=True) for f in outputs]
    jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    exact = torch.linalg.eigvalsh(jacobian @ jacobian.T)[-1].item() / len(x)
    # torch's mean squared error has no ½: its Fisher matrix is twice that of ½(f - y)².
    assert found.value == pytest.approx(2 * exact, rel=1e-3)


def test_the_bound_of_the_thesis_is_the_bound_of_gradient_descent():
    """η < 2/λ_max(F) for ½(f - y)² is 2/λ of the loss as torch defines it, twice as curved, at half the rate."""
    model = nn.Linear(3, 1, bias=False)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    top = torch.linalg.eigvalsh((x.T @ x).double())[-1].item() / len(x)
    found = top_eigenvalue(model, [(x, x[:, :1])], "mse", matrix="fisher", tolerance=1e-4)
    assert found.value == pytest.approx(2 * top, rel=1e-4)
