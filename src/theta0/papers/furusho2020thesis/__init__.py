"""Figures of furusho2020thesis: section 3, penalties and spectra; section 4, curvature at the start and its rate."""

from collections.abc import Callable

from theta0.papers.furusho2020thesis.activation_rates import fig15, fig20
from theta0.papers.furusho2020thesis.convergence_speed import fig19, fig24
from theta0.papers.furusho2020thesis.fisher_eigenvalues import fig16, fig21
from theta0.papers.furusho2020thesis.penalized_digits import fig11, fig12, fig13
from theta0.papers.furusho2020thesis.penalized_sines import fig8, fig9, fig10
from theta0.papers.furusho2020thesis.rate_maps import fig17, fig18, fig22, fig23

ITEMS: dict[str, Callable[..., str]] = {
    "fig8": fig8,
    "fig9": fig9,
    "fig10": fig10,
    "fig11": fig11,
    "fig12": fig12,
    "fig13": fig13,
    "fig15": fig15,
    "fig16": fig16,
    "fig17": fig17,
    "fig18": fig18,
    "fig19": fig19,
    "fig20": fig20,
    "fig21": fig21,
    "fig22": fig22,
    "fig23": fig23,
    "fig24": fig24,
}
