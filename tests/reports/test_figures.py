import math
import xml.etree.ElementTree as ET

import matplotlib as mpl
import pytest
import report_cases as cases

from theta0.reports.canvas import scale_for
from theta0.reports.figures import box_panels, boxes, loss_panel, share_panel
from theta0.reports.wording import layers_of

SVG = "{http://www.w3.org/2000/svg}"


def panels(treatment):
    starts = [("as given", treatment.before), ("treated", treatment.after)]
    found = [*box_panels(starts, "preactivation"), *box_panels(starts, "gradient")]
    found += [share_panel(starts, "shift_share"), share_panel(starts, "sample_share")]
    return [*found, loss_panel([("as given", treatment.untreated), ("treated", treatment.treated)])]


def texts(panel):
    return [text.text for text in ET.fromstring(panel.svg).iter(f"{SVG}text")]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 20, 100])
def test_charts_are_well_formed_and_need_nothing_else(depth):
    for panel in panels(cases.kept(depth)):
        root = ET.fromstring(panel.svg)
        assert root.tag == f"{SVG}svg"
        assert set(root.attrib) == {"viewBox"}
        references = [value for e in root.iter() for key, value in e.attrib.items() if key.endswith("href")]
        identifiers = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
        assert {reference.removeprefix("#") for reference in references} <= set(identifiers)
        assert len(identifiers) == len(set(identifiers))
        assert not any(e.tag in {f"{SVG}script", f"{SVG}metadata", f"{SVG}image"} for e in root.iter())


@pytest.mark.slow
def test_definitions_of_two_charts_on_a_page_have_different_names():
    names = [e.attrib["id"] for p in panels(cases.kept()) for e in ET.fromstring(p.svg).iter() if "id" in e.attrib]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_the_same_result_gives_the_same_drawing_whatever_the_users_style():
    first = [panel.svg for panel in panels(cases.kept(3))]
    before = dict(mpl.rcParams)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "black", "lines.linewidth": 9}):
        assert [panel.svg for panel in panels(cases.kept(3))] == first
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_few_enough_names_to_read_and_the_ends_among_them():
    for panel in panels(cases.kept(100))[:-1]:
        names = [text for text in texts(panel) if text and ("hidden" in text or text == "output")]
        assert 5 <= len(names) <= 10
        assert {"hidden.0", "output"} <= set(names)


def test_names_stay_literal():
    (panel,) = box_panels([("as given", cases.hostile())], "preactivation")
    assert {"$\\frac{$", "a&b\"'", "[bold]x[/bold]", "{{ 7 * 7 }}"} <= set(texts(panel))


def test_layers_without_quantiles_are_left_out_and_broken_ones_are_marked():
    table = layers_of(cases.non_finite())
    assert boxes(table, "preactivation").layers == ("a", "b")
    (panel,) = box_panels([("as given", cases.non_finite())], "gradient")
    assert "not finite" in texts(panel)
    assert box_panels([("as given", cases.empty())], "gradient") == []
    assert share_panel([("as given", cases.empty())], "shift_share") is None
    assert loss_panel([("as given", None), ("treated", None)]) is None


@pytest.mark.slow
def test_before_and_after_share_one_axis():
    before, after = (texts(panel) for panel in panels(cases.kept())[2:4])
    ticks = [[text for text in some if text and text.lstrip("−")[:2] in {"0", "10"}] for some in (before, after)]
    assert ticks[0] == ticks[1]
    assert "10⁻²" in ticks[0]


def test_the_scale_is_logarithmic_only_over_decades_and_holds_every_value():
    near = scale_for([(-2.0, -1.0, 0.0, 1.0, 2.0), (-1.0, 0.0, 0.0, 0.0, 1.0)])
    assert near.threshold == 0
    far = scale_for([(-2.0, -1.0, 0.0, 1.0, 2.0), (-3e-9, 0.0, 0.0, 0.0, 1e-9), (math.nan, 0.0, 0.0, 0.0, math.inf)])
    assert far.threshold == pytest.approx(1e-9)
    assert far.low < -2 < 2 < far.high
    assert scale_for([(0.0,) * 5]) == scale_for([])
    constant = scale_for([(3.0,) * 5])
    assert constant.low < 3 < constant.high


@pytest.mark.slow
def test_a_diverged_run_is_drawn_up_to_where_it_stopped():
    panel = loss_panel([("as given", cases.not_kept().untreated), ("treated", cases.not_kept().treated)])
    assert "treated, held-out inf" in texts(panel)
    assert "treated: from 2.3 to inf in 4 steps, held-out inf" in panel.description
