"""Figures of furusho2020thesis, section 4: curvature at the start and the learning rate it bears."""

from collections.abc import Callable

from theta0.papers.furusho2020thesis.rate_maps import fig17, fig18, fig22, fig23

ITEMS: dict[str, Callable[..., str]] = {
    "fig17": fig17,
    "fig18": fig18,
    "fig22": fig22,
    "fig23": fig23,
}
