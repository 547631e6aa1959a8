"""The standardization layer against numpy in float64: any number of axes, training and evaluation, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cases import normal
from theta0.layers import Standardization
from theta0.measurements import neuron_shifts

SHAPES = [(7, 3), (6, 3, 4), (5, 3, 4, 2), (4, 3, 2, 3, 2)]


def by_numpy(a: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standardised activations, means and unbiased variances, one unit after the other."""
    out, means, variances = np.empty_like(a), [], []
    for unit in range(a.shape[1]):
        values = a[:, unit]
        mean = values.sum() / values.size
        squares = ((values - mean) ** 2).sum()
        out[:, unit] = (values - mean) / np.sqrt(squares / values.size + eps)
        means.append(mean)
        variances.append(squares / (values.size - 1))
    return out, np.array(means), np.array(variances)


@pytest.mark.parametrize("shape", SHAPES)
def test_training_and_evaluation_are_the_closed_form(shape):
    layer = Standardization(3, eps=0.01, momentum=0.25).double()
    mean, variance = np.zeros(3), np.ones(3)
    for seed in range(3):
        a = torch.sigmoid(normal(*shape, seed=seed).double() + seed)
        expected, m, v = by_numpy(a.numpy(), 0.01)
        np.testing.assert_allclose(layer(a).numpy(), expected, rtol=1e-12, atol=1e-12)
        mean, variance = 0.75 * mean + 0.25 * m, 0.75 * variance + 0.25 * v
    per_unit = (1, 3) + (1,) * (len(shape) - 2)
    a = normal(*shape, seed=9).double()
    expected = (a.numpy() - mean.reshape(per_unit)) / np.sqrt(variance.reshape(per_unit) + 0.01)
    np.testing.assert_allclose(layer.eval()(a).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_passes_through_the_statistics(shape):
    layer = Standardization(3).double()
    assert torch.autograd.gradcheck(layer, normal(*shape).double().requires_grad_())


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 100), st.floats(-100, 100))
def test_scale_and_offset_of_a_unit_do_not_matter(scale, offset):
    layer = Standardization(2, eps=1e-30).double()
    a = torch.tanh(normal(9, 2, 3).double())
    torch.testing.assert_close(layer(scale * a + offset), layer(a), rtol=0, atol=1e-9)


def test_it_has_no_parameters_unless_asked():
    assert list(Standardization(3).state_dict()) == ["running_mean", "running_var", "num_batches_tracked"]
    affine = Standardization(3, affine=True)
    assert affine.weight.tolist() == [1, 1, 1]
    assert affine.bias.tolist() == [0, 0, 0]
    assert list(Standardization(3, track_running_stats=False).state_dict()) == []


def test_momentum_none_averages_all_batches():
    layer = Standardization(2, momentum=None).double()
    batches = [normal(8, 2, seed=seed).double() for seed in range(3)]
    for batch in batches:
        layer(batch)
    torch.testing.assert_close(layer.running_mean, torch.stack([b.mean(0) for b in batches]).mean(0))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (1, 3, 1, 1)])
def test_a_batch_of_one_value_is_an_error_in_training_only(shape):
    layer = Standardization(3)
    before = layer.running_mean.clone()
    with pytest.raises(ValueError, match=r"more than one value for each unit.*model\.eval\(\)"):
        layer(normal(*shape))
    assert torch.equal(layer.running_mean, before)
    layer.eval()(normal(*shape))
    with pytest.raises(ValueError, match="more than one value"):
        Standardization(3, track_running_stats=False).eval()(normal(*shape))


def test_one_sample_with_several_positions_is_enough():
    z = Standardization(3)(normal(1, 3, 6))
    torch.testing.assert_close(z.mean(2), torch.zeros(1, 3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [(5,), (5, 4), (5, 4, 3), (2, 3, 1, 1, 1, 1)])
def test_other_shapes_are_an_error_that_says_where_units_belong(shape):
    with pytest.raises(ValueError, match=r"\[batch, 3, positions …\].*axis 1"):
        Standardization(3)(torch.zeros(shape))


def test_behind_sigmoids_it_removes_the_activation_shift():
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for fan_in in (6, 16, 16):
        parts += [nn.Linear(fan_in, 16), nn.Sigmoid(), Standardization(16)]
    model = nn.Sequential(*parts, nn.Linear(16, 3)).double()
    shifts = neuron_shifts(model, [normal(200, 6).double() + 1])
    assert shifts["0"].input_mean_norm.min() > 2
    for path in ("3", "6", "9"):
        assert shifts[path].input_mean_norm.max() < 1e-10


def test_torch_takes_it_for_batch_normalization():
    layer = Standardization(3)
    layer(normal(8, 3))
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(layer))[0]
    assert isinstance(synchronised, nn.SyncBatchNorm)
    assert torch.equal(synchronised.running_var, layer.running_var)
    model = nn.Sequential(nn.Linear(6, 3), Standardization(3))
    torch.func.replace_all_batch_norm_modules_(model)
    assert model[1].running_mean is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtype_and_device_are_passed_on(dtype):
    layer = Standardization(3, dtype=dtype, device="cpu")
    assert layer.running_mean.dtype == dtype
    assert layer(normal(8, 3).to(dtype)).dtype == dtype
