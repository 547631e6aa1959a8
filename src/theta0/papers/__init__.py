"""The sources' experiments, rebuilt on theta0's public functions."""
