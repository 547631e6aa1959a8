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
from theta0.theory.descent import condition_number, population_error_bound, slowest_factor
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
from theta0.theory.perturbation_bounds import (
    JacobianMoments,
    class_probability_bounds,
    distance_tail_bound,
    distance_tail_bound_by_variances,
    largest_vertex_distance_floor,
    relu_jacobian_moments,
)
from theta0.theory.spectral_bounds import fourier_coefficient_bound
from theta0.theory.variance_factors import VarianceFactors, variance_factors

__all__ = [
    "GAUSSIAN_VARIANCE_PER_LAYER",
    "ExpectedPreactivation",
    "FisherBounds",
    "JacobianMoments",
    "LayerGain",
    "Moments",
    "VarianceFactors",
    "batch_norm_moments",
    "batch_norm_resnet_bounds",
    "class_probability_bounds",
    "common_mean_share",
    "condition_number",
    "distance_tail_bound",
    "distance_tail_bound_by_variances",
    "expected_preactivation",
    "fourier_coefficient_bound",
    "gradient_gain",
    "input_gradient_variance",
    "kept_layers",
    "largest_vertex_distance_floor",
    "layer_gain",
    "max_learning_rate",
    "population_error_bound",
    "preactivation_variance",
    "printed_stochastic_depth_moments",
    "relu_jacobian_moments",
    "relu_variances",
    "resnet_bounds",
    "resnet_moments",
    "slowest_factor",
    "stochastic_depth_bounds",
    "stochastic_depth_moments",
    "variance_factors",
]
