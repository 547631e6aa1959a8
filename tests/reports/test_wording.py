import math
from dataclasses import replace

import pytest
import report_cases as cases
from hypothesis import given
from hypothesis import strategies as st

from theta0._progress import ENDED
from theta0._records import Record
from theta0.reports.wording import (
    counted,
    diagnosis_verdict,
    extent,
    fate,
    finding_verdict,
    network_facts,
    number,
    printable,
    share,
    shortened,
    treatment_verdict,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (64.0, "64"),
        (0.6171, "0.617"),
        (0.1, "0.1"),
        (0.0012345, "0.00123"),
        (1.3e-9, "1.3e-9"),
        (5e-324, "4.94e-324"),
        (12345.6, "12346"),
        (99999.4, "1e5"),
        (0.9999, "0.9999"),
        (0.99991, "0.99991"),
        (1 - 1e-9, "1"),
        (-2.345, "-2.35"),
        (1e20, "1e20"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_short_and_plain(value, text):
    assert number(value) == text


@given(st.floats(-1e300, 1e300))
def test_a_number_in_words_is_the_number_to_three_figures(value):
    assert float(number(value)) == pytest.approx(value, rel=5.1e-3, abs=0)
    assert len(number(value)) <= 10


@pytest.mark.parametrize(("value", "text"), [(0.924, "0.92"), (1.0, "1.00"), (3.1e-9, "3e-9"), (math.nan, "nan")])
def test_shares_line_up(value, text):
    assert share(value) == text


@given(st.text())
def test_printable_text_cannot_steer_a_terminal(text):
    assert printable(text).isprintable()
    assert len(printable(text)) == len(text)


def test_shortened_names_keep_their_end():
    assert shortened("encoder.layers.11.self_attn.out_proj", 12) == "…tn.out_proj"
    assert shortened("short", 12) == "short"


def test_amounts_agree_with_their_noun():
    assert [counted(n, "layer") for n in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]


def test_verdicts():
    assert diagnosis_verdict(cases.deep_sigmoid()) == (
        "Not ready to train: 3 errors, 1 note. Fix first: activation-shift at hidden.1; 2 others follow from it."
    )
    assert diagnosis_verdict(cases.healthy()) == "No problem was found (1 note)."
    assert diagnosis_verdict(cases.empty()) == "Nothing was measured."
    assert "can train" in diagnosis_verdict(cases.hostile())
    assert treatment_verdict(cases.kept()) == (
        "lcw was kept: held-out loss 0.172 after 100 steps, where the start as given is at 2.31."
    )
    proofs = tuple((cases.short_run(2.3, 2.0 + i), cases.short_run(0.1, 0.2 + i / 10)) for i in range(3))
    assert treatment_verdict(replace(cases.kept(), confirmations=proofs)) == (
        "lcw was kept: held-out loss 0.3 after 100 steps on average over 3 data orders, "
        "where the start as given is at 3."
    )
    assert treatment_verdict(cases.not_kept()).endswith("unit-variance was no better.")
    ended = replace(cases.not_kept(), reason=f"Not kept: {ENDED} while trying unit-variance.")
    assert treatment_verdict(ended).endswith("the time given ended before unit-variance was proven.")
    assert treatment_verdict(cases.untried()) == "Nothing to fix: no error and no warning was found."


def test_a_verdict_says_what_is_undecided():
    open_ = "Whether it trains is undecided: in 40 steps of sgd at 0.1 the loss goes from 2 to 1.9."
    healthy, ill = (replace(one, not_measured=(open_,)) for one in (cases.healthy(), cases.deep_sigmoid()))
    assert diagnosis_verdict(healthy) == "No problem was found (1 note); whether it trains is undecided."
    assert "can train" not in diagnosis_verdict(replace(cases.hostile(), not_measured=(open_,)))
    assert "undecided" not in diagnosis_verdict(ill)


def test_what_became_of_a_finding():
    at = cases.finding("dead-units", "a", 0.9, 0.5)

    def after(*findings):
        return cases.Diagnosis((), findings, 1.0)

    assert fate(at, None) == "untreated"
    assert fate(at, after()) == "gone"
    assert fate(at, after(at)) == "remains"
    assert fate(at, after(cases.finding("dead-units", "b", 0.9, 0.5))) == "remains at b"
    assert fate(at, after(cases.finding("dead-units", "a", 0.6, 0.5, "warning"))) == "remains as a warning"


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((), ""),
        (("a", "a.weight", "a.bias"), ""),
        (("a", "a.weight", "b.weight", "b.bias"), "and b"),
        (("a", "b.weight_hh_l0", "c.in_proj_bias", "c"), "and 2 further layers"),
        (("a", "b", "c"), "and 2 further layers"),
    ],
)
def test_an_extent_counts_layers_not_their_parameters(layers, text):
    assert extent(cases.finding("gradient-cut", "a", 0.5, 0.5, layers=layers)) == text


@pytest.mark.parametrize(
    ("layer", "value", "threshold", "quantity", "text"),
    [
        ("", 32.0, 1.0, "terms for each output", "error x: terms for each output 32 (threshold 1)"),
        ("a.b", 3.0, 0.0, "tensors", "error x at a.b: tensors 3"),  # any is too many
        ("", 0.5, 0.25, "", "error x: 0.5 (threshold 0.25)"),
    ],
)
def test_a_finding_names_its_number_and_its_place_where_it_has_one(layer, value, threshold, quantity, text):
    assert finding_verdict(cases.finding("x", layer, value, threshold, quantity=quantity)) == text


def test_a_constant_prediction_without_a_least_loss_is_none():
    records = (Record("", "loss", 0.7), Record("", "loss_constant", -math.inf), Record("", "output_rms", math.inf))
    facts = dict(network_facts(replace(cases.healthy(), records=records)))
    assert facts == {"loss": "0.7", "best constant prediction": "none", "output size": "inf"}
