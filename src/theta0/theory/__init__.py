"""Closed forms: what a start is expected to do before anything is measured."""

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
from theta0.theory.variance_factors import VarianceFactors, variance_factors

__all__ = [
    "GAUSSIAN_VARIANCE_PER_LAYER",
    "FisherBounds",
    "JacobianMoments",
    "Moments",
    "VarianceFactors",
    "batch_norm_moments",
    "batch_norm_resnet_bounds",
    "class_probability_bounds",
    "distance_tail_bound",
    "distance_tail_bound_by_variances",
    "kept_layers",
    "largest_vertex_distance_floor",
    "max_learning_rate",
    "printed_stochastic_depth_moments",
    "relu_jacobian_moments",
    "resnet_bounds",
    "resnet_moments",
    "stochastic_depth_bounds",
    "stochastic_depth_moments",
    "variance_factors",
]
