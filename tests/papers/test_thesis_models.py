"""The thesis's networks against the equations written out in numpy, and their start's moments."""

import numpy as np
import pytest
import torch

from theta0.papers.models import ThesisResNet, draw_kept_layers, thesis_start_


def by_hand(model, x, kept=None, batch_norm=False):
    weights = [w.detach().double().numpy() for w in model.parameters()]
    h = x.numpy() @ weights[0].T
    for layer, weight in enumerate(weights[1:]):
        u = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5) if batch_norm else h
        h = h + (1.0 if kept is None else kept[layer]) * np.maximum(u, 0) @ weight.T
    return h.sum(1, keepdims=True)


def build(depth=3, batch_norm=False):
    model = ThesisResNet(5, depth, batch_norm=batch_norm)
    return thesis_start_(model, generator=torch.Generator().manual_seed(1)).double()


X = torch.randn(11, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("kept", [None, [1.0, 0.0, 1.0], [0.5, 0.5, 0.5]])
def test_forward_is_equations_12_to_14(batch_norm, kept):
    model = build(batch_norm=batch_norm)
    output = model(X, None if kept is None else torch.tensor(kept, dtype=torch.float64))
    np.testing.assert_allclose(output.detach().numpy(), by_hand(model, X, kept, batch_norm), atol=1e-12)
    assert model.hidden(X)[-1].shape == (11, 5)


def test_the_batch_s_own_statistics_change_nothing_and_free_the_samples():
    model = build(batch_norm=True)
    statistics = model.batch_statistics(X)
    torch.testing.assert_close(model(X, None, statistics), model(X))
    torch.testing.assert_close(model(X[:2], None, statistics), model(X)[:2])
    assert build().batch_statistics(X) is None


def test_start_has_the_variances_of_equation_26():
    model = thesis_start_(ThesisResNet(200, 2), generator=torch.Generator().manual_seed(0))
    variances = [w.detach().double().var().item() * 200 for w in model.parameters()]
    np.testing.assert_allclose(variances, [1.0, 2.0, 2.0], rtol=0.03)


def test_kept_layers():
    generator = torch.Generator().manual_seed(0)
    exact = torch.stack([draw_kept_layers(6, 0.5, exactly=True, generator=generator) for _ in range(50)])
    assert (exact.sum(1) == 3).all()
    free = torch.stack([draw_kept_layers(6, 0.25, generator=generator) for _ in range(4000)])
    assert abs(free.mean().item() - 0.25) < 0.015
    with pytest.raises(ValueError, match="whole product"):
        draw_kept_layers(5, 0.5, exactly=True)
    with pytest.raises(ValueError, match="probability"):
        draw_kept_layers(5, 1.5)


def test_a_network_needs_a_size():
    with pytest.raises(ValueError, match="depth 0"):
        ThesisResNet(4, 0)
