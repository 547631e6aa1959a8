import pytest
import torch
from layout_cases import LAYOUTS, built
from torch import nn

from theta0._state import twice_differentiable
from theta0.measurements.output_jacobian import detachment_loss, jacobian_norms


@pytest.mark.sampled(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [4, 8, 5])
def test_norms_are_those_of_one_call_a_sample(layout, length):
    model, inputs = built(layout, length, 4)
    with twice_differentiable(model):
        together = jacobian_norms(model, inputs).norms
        apart = torch.cat([jacobian_norms(model, x[None]).norms for x in inputs], 2)
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("samples", [1, 16, 17, 40])
def test_samples_are_told_apart_in_large_batches(samples):
    model, inputs = built("sequence first", 2, samples)
    with twice_differentiable(model):
        together = jacobian_norms(model, inputs, classes=(1,)).norms
        apart = torch.cat([jacobian_norms(model, x[None], classes=(1,)).norms for x in inputs], 2)
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)


class Positions(nn.Module):
    """The output of an embedding of positions is shared by all samples."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head((self.words(x) + self.places(torch.arange(x.shape[1]))).tanh().mean(1))


def test_what_samples_share_counts_for_each():
    model, inputs = Positions().double(), torch.arange(16).view(4, 4) % 9
    with twice_differentiable(model):
        together = jacobian_norms(model, inputs).norms
        apart = torch.cat([jacobian_norms(model, x[None]).norms for x in inputs], 2)
    torch.testing.assert_close(together, apart, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layout", ["batch norm", "attention, sequence first", "sequence first"])
def test_the_loss_has_the_derivative_of_finite_differences(layout):
    if layout == "batch norm":
        model = nn.Sequential(nn.Linear(8, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3)).double()
        inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    else:
        model, inputs = built(layout, 4, 4)
    parameters = list(model.parameters())
    generator = torch.Generator().manual_seed(1)
    steps = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    with twice_differentiable(model):
        gradients = torch.autograd.grad(
            detachment_loss(model, inputs), parameters, allow_unused=True, materialize_grads=True
        )
        ends = []
        with torch.no_grad():
            for size in (1e-6, -2e-6):
                for p, step in zip(parameters, steps, strict=True):
                    p.add_(size * step)
                ends.append(detachment_loss(model, inputs))
    slope = sum((g * step).sum() for g, step in zip(gradients, steps, strict=True))
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-7)
