"""The closed forms of L_sd (lee2023mmd, equation 14) on three kinds of outputs, by an explicit float64 route."""

import math

import pytest
import torch

from theta0.measurements.degeneracy import degenerate_loss


def explicit(probabilities: torch.Tensor) -> float:
    """Equation 14 with a loop over vertices."""
    count = probabilities.shape[-1]
    values = []
    for outputs in probabilities.double():
        distances = [
            max(float((outputs - vertex).norm(dim=-1).mean()), 1 / math.sqrt(count))
            for vertex in torch.eye(count, dtype=torch.float64)
        ]
        values.append(max(distances) - 1 / math.sqrt(count))
    return sum(values) / len(values)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_with_more_than_two_classes_constant_outputs_have_less_than_a_balanced_classifier(classes):
    constant = torch.full((1, 4 * classes, classes), 1 / classes, dtype=torch.float64)
    balanced = torch.eye(classes, dtype=torch.float64).repeat(4, 1)[None]
    one_class = torch.eye(classes, dtype=torch.float64)[:1].expand(4 * classes, classes)[None]
    found = {
        name: float(degenerate_loss(p))
        for name, p in (("constant", constant), ("balanced", balanced), ("one", one_class))
    }
    floor = 1 / math.sqrt(classes)
    assert found["constant"] == pytest.approx(math.sqrt(1 - 1 / classes) - floor, abs=1e-12)
    assert found["balanced"] == pytest.approx(math.sqrt(2) * (1 - 1 / classes) - floor, abs=1e-12)
    assert found["one"] == pytest.approx(math.sqrt(2) - floor, abs=1e-12)
    assert (found["constant"] < found["balanced"] - 1e-9) is (classes > 2)


def test_it_agrees_with_a_loop_over_vertices():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.randn(7, 9, 4, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    assert float(degenerate_loss(probabilities)) == pytest.approx(explicit(probabilities), rel=1e-12)
