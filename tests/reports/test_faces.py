"""Results show themselves: `repr`, `print`, the page in a notebook, `.plot()`, `.to_frame()` and the rest."""

import builtins
import dataclasses
import subprocess
import sys
from html import unescape

import pytest
import report_cases as cases
import torch
from matplotlib.figure import Figure
from torch import nn

import theta0
from theta0._records import Result, Shown, by_layer
from theta0._training import Run
from theta0.curvature.learning_rate import LearningRate
from theta0.reports.rate import rate_report
from theta0.reports.screen import text_of

RESULTS = {
    "diagnosis": cases.deep_sigmoid(),
    "hostile": cases.hostile(),
    "empty": cases.empty(),
    "non_finite": cases.non_finite(),
    "treatment": cases.kept(),
    "not_kept": cases.not_kept(),
    "untried": cases.untried(),
    "explanation": cases.explained(),
    "comparison": cases.raced(),
    "learning_rate": cases.rated(),
    "spectrum": cases.spectra(),
}
SHORT = {"finding": cases.deep_sigmoid().findings[0], "run": cases.short_run(0.1, 0.2)}


def frames_of(result):
    pytest.importorskip("pandas", reason="pandas is not installed")
    return result.to_frame()


@pytest.mark.parametrize("name", [*RESULTS, *SHORT])
def test_repr_is_one_line_and_print_is_the_report_in_80_columns(name):
    result = (RESULTS | SHORT)[name]
    assert len(repr(result).splitlines()) == 1
    assert len(repr(result)) <= 200
    assert type(result).__name__ in repr(result)
    lines = str(result).splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b[" not in str(result)
    assert "TARGET" not in str(result)


def test_every_public_result_has_every_face():
    def below(cls):
        return {cls, *(found for child in cls.__subclasses__() for found in below(child))}

    own = {cls for cls in below(Result) - {Result} if cls.__module__.startswith("theta0.")}
    assert {type(result) for result in RESULTS.values()} == own
    for cls in below(Shown) - {Shown, Result}:
        assert dataclasses.is_dataclass(cls)
        assert "__repr__" not in vars(cls), f"{cls}: repr=False, so that Shown's is used"


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_a_figure_knows_nothing_of_pyplot(name):
    before = set(sys.modules)
    figure = RESULTS[name].plot()
    assert isinstance(figure, Figure)
    assert "matplotlib.pyplot" not in set(sys.modules) - before
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["comparison", "explanation", "hostile", "learning_rate", "spectrum", "treatment"])
def test_a_notebook_gets_the_page_in_a_frame_of_its_own(name, tmp_path):
    result = RESULTS[name]
    html = result._repr_html_()
    assert html.startswith("<iframe ")
    assert html.count("<") == 2  # the page itself is all in srcdoc, so that its styles reach nothing else
    page = unescape(html.split('srcdoc="')[1].rsplit('"', 1)[0])
    written = result.save_html(tmp_path / "new" / "page.html")
    assert page == written.read_text(encoding="utf-8")
    assert "TARGET" not in page
    assert theta0.__version__ in page


def test_a_page_that_is_saved_names_the_target(tmp_path):
    page = cases.empty().save_html(tmp_path / "page.html", target="my script.py").read_text()
    assert "<title>theta0 diagnosis: my script.py</title>" in page


def test_frames_have_a_row_for_each_layer_start_or_run():
    frame = frames_of(cases.deep_sigmoid())
    assert list(frame.index)[:2] == ["hidden.0", "hidden.1"]
    assert frame.loc["hidden.1", "shift_share"] > 0.9
    assert frame.loc["hidden.1", "findings"] == "activation-shift, vanishing-gradients"
    assert list(frames_of(cases.kept()).index) == ["as given", "unit-variance", "lcw"]
    assert frames_of(cases.kept()).loc["lcw", "kept"]
    assert "as given" in frames_of(cases.explained()).index
    assert list(frames_of(cases.raced()).index)[:2] == ["lcw", "default"]
    assert list(frames_of(cases.rated()).index) == [0.001, 0.01, 1.0]
    assert list(frames_of(cases.spectra()).columns) == ["start", "no penalty", "l2"]
    for result in RESULTS.values():
        frames_of(result)


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match="pip install pandas"):
        cases.kept().to_frame()


@pytest.mark.parametrize("name", RESULTS)
def test_dictionaries_are_names_and_numbers(name):
    for key, value in RESULTS[name].to_dict().items():
        assert isinstance(key, str)
        assert isinstance(value, float | int)


def test_in_colour_and_as_wide_as_the_terminal_where_there_is_one(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = str(cases.deep_sigmoid())
    assert "\x1b[" in text
    assert any(len(line) > 80 for line in text.splitlines() if "\x1b" not in line)


def test_advice_is_a_call_in_python_and_a_command_on_the_command_line():
    from rich.console import Console

    from theta0.reports import diagnosis_document, diagnosis_report, treatment_report

    shift = dataclasses.replace(
        cases.deep_sigmoid().findings[0], remedy="theta0 treat TARGET --with lcw --out start.safetensors"
    )
    diagnosis = theta0.Diagnosis((), (shift,), 1.0)
    assert 'theta0.treat(model, batches, loss, with_="lcw")' in str(diagnosis)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(diagnosis_report(diagnosis, target="my script.py"))
    assert "theta0 treat 'my script.py' --with lcw --out start.safetensors" in captured.get()
    document = diagnosis_document(diagnosis, target="train.py")
    assert document["findings"][0]["remedy"] == "theta0 treat train.py --with lcw --out start.safetensors"
    reason = "lower it (theta0 rate TARGET finds one)."
    treatment = dataclasses.replace(cases.untried(), reason=reason)
    assert "theta0.suggest_learning_rate(model, batches, loss) finds one" in " ".join(str(treatment).split())
    console = Console(width=80)
    with console.capture() as captured:
        console.print(treatment_report(treatment, target="train.py, optimizer 2 (Adam)"))
    assert "theta0 rate train.py finds one" in captured.get()


def test_every_remedy_of_the_rules_can_be_worded():
    import re
    from pathlib import Path

    from theta0.reports.advice import worded

    home = Path(theta0.__file__).parent
    commands = {
        found
        for path in [*home.glob("diagnosis/**/*.py"), *home.glob("treatment/*.py")]
        for found in re.findall(r"theta0 [a-z]+ TARGET[ a-z.-]*", path.read_text())
    }
    assert commands
    assert {
        command for command in commands if "treat TARGET" in command and "--out start.safetensors" not in command
    } == set()
    for command in commands:
        assert worded(command, "").startswith("theta0.")
        assert worded(command, "train.py") == command.replace("TARGET", "train.py")


def test_tables_give_types_and_shapes_and_mark_what_is_out_of_bounds():
    torch.manual_seed(0)
    blocks = [part for _ in range(12) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), *blocks, nn.Linear(16, 3))
    batches = [(torch.randn(64, 1, 4, 4), torch.randint(3, (64,)))]
    diagnosis = theta0.diagnose(model, batches, "cross_entropy", probe_steps=0)
    assert diagnosis.layer_types["0"] == "Conv2d 4×1×3×3"
    lines = str(diagnosis).splitlines()
    shift = next(finding for finding in diagnosis.findings if finding.code == "activation-shift")
    table = by_layer(diagnosis.records)
    rows = {line.split("Linear")[0].split()[-1]: line for line in lines if "Linear 16×16" in line}
    assert all((f"{table[layer]['shift_share']:.2f}!" in row) == (layer in shift.layers) for layer, row in rows.items())
    assert len(rows) > 5
    assert "Linear 3×16" in str(diagnosis)


def test_bare_weights_are_named_by_their_use():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))
            self.embedding = nn.Embedding(5, 4)

        def forward(self, x):
            return self.embedding(x) @ self.w

    batches = [(torch.randint(5, (32,)), torch.randint(3, (32,)))]
    types = theta0.diagnose(Net(), batches, "cross_entropy", probe_steps=0).layer_types
    assert types == {"embedding": "Embedding 5×4", "w": "matmul 4×3"}


def test_a_wide_terminal_cuts_no_name():
    from rich.console import Console

    from theta0.reports import comparison_report, diagnosis_report

    console = Console(width=300)
    with console.capture() as captured:
        console.print(diagnosis_report(cases.hostile(), target=""))
        console.print(comparison_report(cases.raced(), target=""))
    assert "x" * 200 in captured.get()
    assert "another-start-0" in captured.get()


def test_a_race_draws_more_than_two_starts():
    (axes,) = cases.raced(4).plot().axes
    assert len([line for line in axes.lines if len(line.get_xdata()) > 1]) == 4
    (axes,) = cases.raced(12).plot().axes
    assert len([line for line in axes.lines if len(line.get_xdata()) > 1]) == 5


def test_the_run_as_given_is_shown_first_and_by_that_name(tmp_path):
    page = cases.explained().save_html(tmp_path / "page.html").read_text()
    assert "Leaderboard" not in page
    assert page.index("as given</th>") < page.index("`blocks.3` re-initialized</th>")
    assert "held-out" not in page


@pytest.mark.slow
def test_results_are_shown_from_any_import_of_the_library():
    code = (
        "from theta0.curvature.learning_rate import LearningRate\n"
        "import sys; assert 'theta0.reports' not in sys.modules\n"
        "print(repr(LearningRate(0.1, 1.0, 2.0, 0.0, 1, 1.0, None, 'sgd', 'ggn', (2.0, 2.0), proven=True)))\n"
        "assert 'matplotlib' not in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "<LearningRate: Train with sgd at 0.1.>\n"


def test_a_rate_that_verification_overtakes_says_so():
    rate = LearningRate(0.1, 1.0, 2.0, 0.0, 4, 10.0, None, "sgd", "ggn", (2.0, 2.0))
    runs = [Run("sgd", 0.1 * factor, (2.0, 1.0), held, 2.0) for factor, held in ((1, 0.5), (2, 0.3), (4, 2.5))]
    said = text_of(rate_report(rate, runs, target="train.py"))
    assert "In 2 steps 0.2 reaches a lower held-out loss, 0.3 instead of 0.5." in " ".join(said.split())
    assert "lower held-out" not in text_of(rate_report(rate, runs[::2], target="train.py"))
