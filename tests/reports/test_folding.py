import math

from hypothesis import given
from hypothesis import strategies as st

from theta0.reports.folding import extremes, folded

QUANTITIES = ["gradient_variance", "shift_share"]
ROWS = st.fixed_dictionaries(
    {}, optional={"gradient_variance": st.floats(min_value=0), "shift_share": st.floats(0, 1) | st.just(math.nan)}
)


@given(st.lists(ROWS, max_size=80), st.lists(st.integers(0, 90)), st.integers(5, 40))
def test_every_layer_appears_once_in_order_and_the_rows_fit(rows, begins, room):
    table = {f"l{i}": row for i, row in enumerate(rows)}
    folds = folded(table, QUANTITIES, [f"l{i}" for i in begins], room)
    assert [layer for fold in folds for layer in fold.layers] == list(table)
    assert len(folds) <= room
    if rows:
        assert folds[0].layers == ("l0",)
        assert folds[-1].layers == (f"l{len(rows) - 1}",)


def test_layers_that_matter_stay_visible():
    table = {f"l{i}": {"gradient_variance": 1.0 + 0.01 * i, "shift_share": 0.1} for i in range(60)}
    table["l30"]["gradient_variance"] = 1e9
    table["l45"]["shift_share"] = math.nan
    folds = folded(table, QUANTITIES, ["l7", "l8"], 12)
    alone = [fold.layers[0] for fold in folds if len(fold.layers) == 1]
    assert {"l0", "l7", "l8", "l30", "l45", "l59"} <= set(alone)
    assert all(fold.alike for fold in folds)


def test_a_steady_change_is_not_called_alike():
    table = {f"l{i}": {"gradient_variance": 10.0**-i} for i in range(60)}
    folds = [fold for fold in folded(table, QUANTITIES, [], 11) if len(fold.layers) > 1]
    assert folds
    assert not any(fold.alike for fold in folds)
    assert max(len(fold.layers) for fold in folds) <= 15  # the shown layers are spread over the run


def test_no_extremes_where_all_layers_are_alike():
    assert extremes({f"l{i}": {"gradient_variance": 1 + i / 100} for i in range(9)}, QUANTITIES) == []
