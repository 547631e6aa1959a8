"""How far work is: a bar on a terminal, lines in a pipe, the caller's own function, or nothing."""

import math

import pytest
from rich.console import Console

from theta0 import _progress
from theta0._progress import Announcement, shown, silent


def reported(progress) -> None:
    with shown(progress, "looking") as tell:
        tell("measuring", math.nan)
        tell("measuring", 0.25)
        tell("training", 1.5)


def test_on_a_terminal_there_is_a_bar_that_goes_away(monkeypatch, capsys):
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(_progress, "SHOWN_AFTER", -1.0)
    reported(True)
    assert "training" in capsys.readouterr().err


def test_short_work_shows_no_bar(monkeypatch, capsys):
    monkeypatch.setattr(Console, "is_terminal", True)
    reported(True)
    assert "training" not in capsys.readouterr().err


def test_in_a_pipe_there_is_a_line_for_each_thing_that_is_done(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "SHOWN_AFTER", -1.0)
    reported(True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("measuring") == err.count("training") == 1


@pytest.mark.parametrize("nothing", [False, None, silent])
def test_nothing_is_shown_unasked(nothing, capsys):
    reported(nothing)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [False, True])
def test_an_announcement_is_shown_at_once_and_stays(terminal, monkeypatch, capsys):
    monkeypatch.setattr(Console, "is_terminal", terminal)
    with shown(True, "looking") as tell:
        tell(Announcement("5 GB [of] memory"), math.nan)
        tell("measuring", 0.5)
    out, err = capsys.readouterr()
    assert out == ""
    assert "5 GB [of] memory\n" in err
    assert "measuring" not in err
