"""Tables and figures of lee2023mmd: a start from which nearby parameters solve many classification tasks."""

from collections.abc import Callable

from theta0.papers.lee2023mmd.accuracies import table1, table2
from theta0.papers.lee2023mmd.convolutional import cnn
from theta0.papers.lee2023mmd.degeneracies import table3, table4
from theta0.papers.lee2023mmd.grid import fig3, table5
from theta0.papers.lee2023mmd.neighbourhoods import fig1, fig2

ITEMS: dict[str, Callable[..., str]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "fig1": fig1,
    "fig2": fig2,
    "fig3": fig3,
    "cnn": cnn,  # not in the source
}
