"""Curvature of the loss at the starting point: its top eigenvalue, and the learning rate that it can bear."""

from theta0.curvature.learning_rate import LearningRate, suggest_learning_rate
from theta0.curvature.problem import Curvature
from theta0.curvature.products import curvature_products
from theta0.curvature.self_test import SelfTest
from theta0.curvature.top_eigenvalue import Certificate, TopEigenvalue, top_eigenvalue
from theta0.curvature.verification import verify_learning_rate

__all__ = [
    "Certificate",
    "Curvature",
    "LearningRate",
    "SelfTest",
    "TopEigenvalue",
    "curvature_products",
    "suggest_learning_rate",
    "top_eigenvalue",
    "verify_learning_rate",
]
