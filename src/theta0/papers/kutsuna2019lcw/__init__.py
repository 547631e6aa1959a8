"""Figures and tables of kutsuna2019lcw: activation shift, and training under linearly constrained weights."""

from collections.abc import Callable

from theta0.papers.kutsuna2019lcw.absorbed_means import biases
from theta0.papers.kutsuna2019lcw.activations import fig2, fig3
from theta0.papers.kutsuna2019lcw.chains import fig4
from theta0.papers.kutsuna2019lcw.convolutional import fig6, table1
from theta0.papers.kutsuna2019lcw.deep_mlp import fig5, relu
from theta0.papers.kutsuna2019lcw.settings import settings
from theta0.papers.kutsuna2019lcw.stripes import fig1

ITEMS: dict[str, Callable[..., str]] = {
    "fig1": fig1,
    "fig2": fig2,
    "fig3": fig3,
    "fig4": fig4,
    "biases": biases,  # an ablation that section 2 reports without figures
    "fig5": fig5,
    "fig6": fig6,
    "table1": table1,
    "settings": settings,  # not in the source: its CWN, SL and WN in several readings at several rates
    "relu": relu,  # not in the source: thirty ReLU layers
}
