"""A race on a terminal, on a page and as data."""

import io
import json
import math

import pytest
from rich.console import Console

from theta0.comparison import Candidate, Comparison, Standing, TuningRun
from theta0.reports import comparison_document, comparison_report, write_page
from theta0.reports.comparison import comparison_verdict
from theta0.treatment import Run


def run(held_out, losses=(2.0, 1.0)):
    return Run("adam", 0.01, losses, held_out, 2.3, 5.0)


def race(*standings, complete=True):
    names = [standing.start for standing in standings]
    candidates = [Candidate(name, 0.02, (0.01, 0.1), 0.4, 12.5 if name == "lcw" else None, "") for name in names]
    candidates.append(Candidate("re\x1bcurrent", None, (), 0.0, None, "expected a recurrent layer, got <none>"))
    heats = (TuningRun("default", 0.01, 5, run(1.9)),)
    return Comparison(standings, tuple(candidates), heats, "adam", 20, True, complete, 123.0, 4.2)


def standing(start, *held_out):
    return Standing(start, 0.01, tuple(map(run, held_out)), tuple(range(len(held_out))), 1.0)


FAR = race(standing("lcw", 0.5, 0.52), standing("default", 1.5, 1.6))
CLOSE = race(standing("lcw", 0.5, 0.9), standing("default", 0.6, 1.0))
DEFAULT = race(standing("default", 0.5, 0.52), standing("lcw", math.inf, 0.9))
NONE = race(standing("default", math.inf))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (FAR, "lcw at rate 0.01 trains best: held-out loss 0.51 ± 0.014 after 20 steps of adam, where the default"),
        (CLOSE, "within the spread of the seeds."),
        (
            DEFAULT,
            "default at rate 0.01 trains best: held-out loss 0.51 ± 0.014 after 20 steps of adam, next lcw with inf",
        ),
        (NONE, "No start trained"),
        (race(), "No start trained"),
    ],
)
def test_the_verdict(found, said):
    assert said in comparison_verdict(found)
    assert ("within the spread" in comparison_verdict(found)) == (found is CLOSE)


def shown(found, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(comparison_report(found, target="t\x1barget.py"))
    return console.export_text()


@pytest.mark.parametrize("found", [FAR, CLOSE, DEFAULT, NONE, race(), race(standing("default", 1.0), complete=False)])
def test_the_screen(found):
    text = shown(found)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "not raced: expected a recurrent layer" in text
    assert ("time ran out before" in text.replace("\n", " ")) == (not found.complete)


def test_the_leaderboard_has_a_row_for_each_start_best_first():
    assert next(line for line in shown(FAR).splitlines() if line.startswith("start ")).split() == (
        ["start", "held-out", "spread", "seeds", "rate", "suggested", "first", "loss", "made", "in"]
    )
    lines = [line.split() for line in shown(FAR).splitlines() if line.startswith(("lcw ", "default "))]
    assert [line[:5] for line in lines] == [
        ["lcw", "0.51", "0.014", "2", "0.01"],
        ["default", "1.55", "0.071", "2", "0.01"],
    ]


@pytest.mark.parametrize("found", [FAR, DEFAULT, NONE, race()])
def test_the_page_and_the_data(found, tmp_path):
    html = write_page(tmp_path / "page.html", found, target="target.py").read_text()
    assert "&lt;none&gt;" in html
    assert "<none>" not in html
    document = json.loads(json.dumps(comparison_document(found, target="target.py"), allow_nan=False))
    assert document["schema"] == 2
    assert len(document["comparison"]["standings"]) == len(found.standings)
    if found is FAR:
        assert document["comparison"]["winner"] == {"start": "lcw", "rate": 0.01}
        assert "Leaderboard" in html
        assert "<svg" in html
