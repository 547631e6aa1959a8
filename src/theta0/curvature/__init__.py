"""Curvature of the loss at the starting point: its top eigenvalue, and the learning rate that it can bear."""

from theta0.curvature.top_eigenvalue import Certificate, TopEigenvalue, top_eigenvalue

__all__ = ["Certificate", "TopEigenvalue", "top_eigenvalue"]
