"""Distance covariance tells targets that depend on the inputs from those that were permuted."""

import math
from itertools import product

import pytest
import torch

from theta0._batches import Batch
from theta0.measurements.dependence import dependence, distances, separation

G = torch.Generator().manual_seed(0)
X = torch.randn(96, 5, generator=G)
NOISE = torch.randn(96, 1, generator=G)


def batches(x, t):
    return [Batch(a, b, len(b), n) for n, (a, b) in enumerate(zip(x.split(32), t.split(32), strict=True))]


def distance_covariance(a, b):
    """Székely, Rizzo & Bakirov (2007), equation 2.8 written out: S₁ + S₂ - 2 S₃ over all pairs and triples."""
    n = len(a)
    pairs = list(product(range(n), repeat=2))
    first = sum(a[i][j] * b[i][j] for i, j in pairs) / n**2
    second = sum(a[i][j] for i, j in pairs) * sum(b[i][j] for i, j in pairs) / n**4
    third = sum(a[i][j] * b[i][k] for i, j, k in product(range(n), repeat=3)) / n**3
    return first + second - 2 * third


def test_it_is_the_covariance_of_distances_over_its_spread_under_permutations():
    x, y = X[:12, :2].double(), X[:12, :1].double().square() + 0.1 * NOISE[:12].double()
    one, other = torch.cdist(x, x), torch.cdist(y, y)
    g = torch.Generator().manual_seed(0)
    null = []
    for _ in range(30):
        order = torch.randperm(12, generator=g)
        null.append(distance_covariance(one.tolist(), other[order][:, order].tolist()))
    mean = sum(null) / 30
    spread = math.sqrt(sum((v - mean) ** 2 for v in null) / 29)
    expected = (distance_covariance(one.tolist(), other.tolist()) - mean) / spread
    assert separation(one, other, permutations=30) == pytest.approx(expected, rel=1e-9)


def test_distances_of_amounts_are_scaled_and_those_of_classes_count_differences():
    x = torch.tensor([[0.0, 0.0, 7.0], [1.0, 1000.0, 7.0], [2.0, 2000.0, 7.0]])
    unit = math.sqrt(2 / 3)
    expected = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]).double() * math.sqrt(2) / unit
    torch.testing.assert_close(distances(x), expected.float(), rtol=1e-5, atol=1e-5)
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 9, 9], [1, 2, 3, 4]])
    assert distances(tokens).tolist() == [[0.0, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.0]]


@pytest.mark.parametrize(
    "targets",
    [X[:, :3].argmax(1), X.square().sum(1, keepdim=True), torch.stack([X[:, 0] > 0, X[:, 1] > 0], 1)],
    ids=["classes", "without correlation", "truth values"],
)
def test_a_dependence_is_seen_and_is_gone_after_a_permutation(targets):
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1))
    found = dependence(batches(X, targets), [None] * 3)
    shuffled = dependence(batches(X, targets[order]), [None] * 3)
    assert found > 4.0
    assert shuffled < 2.5


def test_it_may_show_in_the_outputs_alone_and_needs_rows_for_each_sample():
    data = batches(NOISE, X[:, :1])
    assert dependence(data, [None] * 3) < 2.5
    assert dependence(data, list(X[:, :1].split(32))) > 4.0
    assert dependence([Batch(NOISE, torch.zeros(3), 96, 0)], [None]) is None
    assert dependence([Batch(NOISE, torch.zeros(96), 96, 0)], [None]) is None


def test_targets_that_count_the_samples_of_a_batch_are_not_asked():
    assert dependence(batches(X, torch.arange(32).repeat(3)), [None] * 3) is None
    assert dependence(batches(X, torch.randperm(96, generator=torch.Generator().manual_seed(2))), [None] * 3) is None
