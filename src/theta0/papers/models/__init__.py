"""The networks of the sources' experiments."""

from theta0.papers.models.thesis import ThesisResNet, draw_kept_layers, thesis_start_

__all__ = ["ThesisResNet", "draw_kept_layers", "thesis_start_"]
