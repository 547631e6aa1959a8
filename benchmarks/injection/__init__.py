"""Faults injected into small networks that train, and how often theta0 names them."""
