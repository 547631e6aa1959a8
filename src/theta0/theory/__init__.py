"""Closed forms: what a start is expected to do before anything is measured."""

from theta0.theory.activation_shift import (
    ExpectedPreactivation,
    LayerGain,
    common_mean_share,
    expected_preactivation,
    gradient_gain,
    input_gradient_variance,
    layer_gain,
    preactivation_variance,
    relu_variances,
)
from theta0.theory.fisher_bounds import (
    GAUSSIAN_VARIANCE_PER_LAYER,
    FisherBounds,
    Moments,
    batch_norm_moments,
    batch_norm_resnet_bounds,
    kept_layers,
    max_learning_rate,
    printed_stochastic_depth_moments,
    resnet_bounds,
    resnet_moments,
    stochastic_depth_bounds,
    stochastic_depth_moments,
)
from theta0.theory.variance_factors import VarianceFactors, variance_factors

__all__ = [
    "GAUSSIAN_VARIANCE_PER_LAYER",
    "ExpectedPreactivation",
    "FisherBounds",
    "LayerGain",
    "Moments",
    "VarianceFactors",
    "batch_norm_moments",
    "batch_norm_resnet_bounds",
    "common_mean_share",
    "expected_preactivation",
    "gradient_gain",
    "input_gradient_variance",
    "kept_layers",
    "layer_gain",
    "max_learning_rate",
    "preactivation_variance",
    "printed_stochastic_depth_moments",
    "relu_variances",
    "resnet_bounds",
    "resnet_moments",
    "stochastic_depth_bounds",
    "stochastic_depth_moments",
    "variance_factors",
]
