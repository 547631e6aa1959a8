"""Curvature of the loss at the starting point: its top eigenvalue, and the learning rate that it allows."""

from theta0.curvature.learning_rate import LearningRate, RateRun, curvature_rate
from theta0.curvature.problem import Curvature
from theta0.curvature.products import curvature_products
from theta0.curvature.self_test import SelfTest
from theta0.curvature.top_eigenvalue import Certificate, TopEigenvalue, top_eigenvalue

__all__ = [
    "Certificate",
    "Curvature",
    "LearningRate",
    "RateRun",
    "SelfTest",
    "TopEigenvalue",
    "curvature_products",
    "curvature_rate",
    "top_eigenvalue",
]
