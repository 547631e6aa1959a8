"""The command line as its users run it: exit codes, what goes to which stream, and what bad input is told."""

import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from theta0.cli import app
from theta0.cli.compare import compare as compare_command
from theta0.comparison import compare

SOURCE = Path(__file__).parent.parent / "src"
HEAD = """
import torch
from torch import nn
loss = "cross_entropy"
optimizer, learning_rate = "momentum", 0.1
def model():
    torch.manual_seed(0)
    return net()
def batches():
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return list(zip(x.split(32), y.split(32)))
"""
HEALTHY = HEAD + "def net(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))\n"
DEEP = (
    HEAD
    + """
def net():
    return nn.Sequential(*(p for _ in range(12) for p in (nn.Linear(8, 8), nn.Sigmoid())), nn.Linear(8, 2))
"""
)
SIX = DEEP.replace("range(12)", "range(6)")


def target(folder: Path, text: str, name: str = "target.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def process(*arguments: object, code: str = "from theta0.cli import app; app()", **options) -> subprocess.Popen[str]:
    environment = os.environ | WIDE | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=-1, stderr=-1, **options)


def run(*arguments: object) -> tuple[int, str, str]:
    started = process(*arguments)
    out, err = started.communicate(timeout=120)
    return started.returncode, out, err


WIDE = {"COLUMNS": "300"}  # lines are not broken inside of a path, however long it is


def inside(*arguments: object):
    return CliRunner(env=WIDE).invoke(app, list(map(str, arguments)))


def test_help_is_quick_and_does_not_wait_for_torch():
    code = "import sys; from theta0.cli import app; app(standalone_mode=False); print('torch' in sys.modules)"
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        out, err = process("--help", code=code).communicate(timeout=60)
        times.append(time.perf_counter() - begin)
    assert out.splitlines()[-1] == "False", err
    assert "diagnose" in out
    assert "treat" in out
    assert min(times) < 1


@pytest.mark.slow  # `make demo` treats in a real process too
def test_treat_in_a_real_process(tmp_path):
    out_file = tmp_path / "built" / "start.safetensors"
    code, out, err = run("treat", target(tmp_path, SIX), "--json", "--with", "lcw", "--steps", 20, "--out", out_file)
    document = json.loads(out)
    assert code == 0, document["treatment"]["reason"] + err
    assert document["treatment"]["kept"] is True
    assert out_file.is_file()
    assert "trying lcw" in err  # plain lines in a pipe


@pytest.mark.slow
def test_an_interrupt_ends_with_130_and_writes_nothing(tmp_path):
    slow = """
class Slow(nn.Linear):
    def forward(self, x):
        import sys, time
        print('working', file=sys.stderr, flush=True)
        time.sleep(0.05)
        return super().forward(x)
def net(): return Slow(8, 2)
"""
    out_file, page = tmp_path / "start.safetensors", tmp_path / "page.html"
    path = target(tmp_path, HEAD + slow)
    # A suite started in the background ignores interrupts, and its children would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = process("treat", path, "--with", "unit-variance", "--steps", 5000, "--out", out_file, "--html", page)
    finally:
        signal.signal(signal.SIGINT, before)
    for line in started.stderr:
        if line.startswith("working"):
            break
    time.sleep(0.3)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert "interrupted; nothing was written" in err
    assert "Traceback" not in err
    assert out == ""
    assert {p.name for p in tmp_path.iterdir() if p.suffix} == {"target.py"}


def test_explain_says_what_training_needs(tmp_path):
    path, page = target(tmp_path, HEALTHY), tmp_path / "page.html"
    found = inside("explain", path, "--gradients", 60, "--json", "--html", page)
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["trains"] is True
    assert "trains" in page.read_text()


@pytest.mark.slow
def test_bad_input_in_a_real_process(tmp_path):
    code, out, err = run("diagnose", target(tmp_path, HEALTHY + "1 / 0\n"), "--json")
    assert (code, out) == (2, "")
    assert err.startswith("theta0: ")
    assert "target.py raised ZeroDivisionError" in err
    assert "Traceback" not in err


def test_the_json_document(tmp_path):
    path = target(tmp_path, DEEP)
    result = inside("diagnose", path, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["schema"] == 2
    assert document["target"] == str(path)
    assert {"activation-shift", "vanishing-gradients"} <= {f["code"] for f in document["findings"]}
    keys = {"code", "severity", "layer", "value", "threshold", "message", "remedy", "source"}
    assert all(keys <= set(f) for f in document["findings"])
    assert all(set(r) == {"layer", "quantity", "value", "unit"} for r in document["records"])
    assert 4 < document["cost_in_gradients"] <= 120  # four batches, the rate and the probe


def test_the_json_is_alone_on_standard_output_whatever_the_target_prints(tmp_path):
    loud = "print('loaded')\nclass Loud(nn.Sequential):\n    def forward(self, x):\n        print('forward')\n"
    loud += "        return super().forward(x)\ndef net(): return Loud(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))\n"
    talkative = HEAD + loud
    for command in ("diagnose", "treat"):
        result = inside(command, target(tmp_path, talkative), "--json")
        assert json.loads(result.stdout)["schema"] == 2
        assert "forward" in result.stderr


def test_numbers_that_are_not_finite_are_text_in_json(tmp_path):
    poisoned = HEALTHY.replace("return net()", "m = net(); m[0].weight.data[0, 0] = float('nan'); return m")
    result = inside("diagnose", target(tmp_path, poisoned), "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout, parse_constant=pytest.fail)
    assert [(f["code"], f["layer"]) for f in document["findings"]] == [("non-finite", "0.weight")]


def test_the_terminal_report_names_what_was_found(tmp_path):
    result = inside("diagnose", target(tmp_path, DEEP))
    assert result.exit_code == 1
    assert "activation-shift" in result.stdout
    assert json.loads(inside("diagnose", target(tmp_path, HEALTHY), "--json").stdout)["healthy"] is True
    healthy = inside("diagnose", target(tmp_path, HEALTHY))
    assert healthy.exit_code == 0
    assert "error" not in healthy.stdout.lower().replace("no error", "")


def test_nothing_better_is_exit_1_and_no_file(tmp_path):
    out = tmp_path / "start.safetensors"
    result = inside("treat", target(tmp_path, HEALTHY), "--with", "centre", "--json", "--out", out)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["treatment"]["kept"] is False
    assert not out.exists()


def test_a_healthy_start_has_nothing_to_fix_and_leaves_with_0(tmp_path):
    out = tmp_path / "start.safetensors"
    result = inside("treat", target(tmp_path, HEALTHY), "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "Nothing to fix: no error and no warning was found." in " ".join(result.stdout.split())
    assert not out.exists()


def test_fan_in_one_under_lcw_is_told_and_nothing_kept(tmp_path):
    narrow = (
        HEAD
        + "def net(): return nn.Sequential(nn.Linear(8, 1), nn.Tanh(), nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2))\n"
    )
    narrow = narrow.replace("nn.Linear(8, 1), nn.Tanh(), ", "").replace("randn(256, 8", "randn(256, 1")
    result = inside("treat", target(tmp_path, narrow), "--json", "--with", "lcw")
    assert result.exit_code == 2
    assert "layer '0': fan-in 1" in result.stderr


NAN = "x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))"
ADDED = {
    "empty loader": ("def batches(): return []", "batches: expected at least one batch, got none"),
    "empty batch": ("def batches(): return [(torch.ones(0, 8), torch.ones(0).long())]", "batch 0: expected inputs"),
    "not iterable": ("def batches(): return 3", "batches: expected an iterable"),
    "syntax error": ("def (:", "target.py: syntax error on line"),
    "loss raises": ("def loss(o, t): return o.nothing", "the loss raised AttributeError"),
    "loss no scalar": ("def loss(o, t): return o", "loss: expected a scalar tensor, got (32, 2)"),
    "loader raises": (
        "def batches():\n    yield torch.ones(2, 8), torch.ones(2).long()\n    raise OSError('disk gone')",
        "batches: raised OSError: disk gone",
    ),
    "data set raises": (
        "class Data(torch.utils.data.Dataset):\n    def __len__(self): return 9\n"
        "    def __getitem__(self, i): return {}[i]\n"
        "def batches(): return torch.utils.data.DataLoader(Data(), 3)",
        "batches: raised KeyError: 0",
    ),
}
CHANGED = {
    "NaN in inputs": (NAN, NAN + "; x[40] = float('nan')", "batch 1, inputs: expected finite numbers"),
    "infinite inputs": (NAN, NAN + "; x[0, 0] = float('inf')", "batch 0, inputs: expected finite"),
    "labels too large": ("return list", "y = y + 1\n    return list", "labels from 0 to 1"),
    "labels negative": ("return list", "y = y - 1\n    return list", "labels from 0 to 1"),
    "no model": ("def model", "def other", "target.py: expected a function model()"),
    "no batches": ("def batches", "def other", "target.py: expected a function batches()"),
    "no loss": ('loss = "cross', 'other = "cross', "loss: expected a name or a callable, got None"),
    "forward raises": ("Linear(16, 2)", "Linear(17, 2)", "the model's forward raised RuntimeError: mat1 and mat2"),
    "lazy forward raises": (
        "Linear(16, 2)",
        "LazyLinear(2), nn.Linear(3, 2)",
        "the model's forward raised RuntimeError",
    ),
    "one sample under batch norm": (
        "ReLU(), nn.Linear(16",
        "Flatten(), nn.BatchNorm1d(16), nn.Linear(16",
        "one value per channel",
    ),
    "two devices": ("return net()", "m = net(); m[2].to('meta'); return m", "meta"),
}
BAD = {name: (f"{HEALTHY}{line}\n", message) for name, (line, message) in ADDED.items()}
BAD |= {name: (HEALTHY.replace(old, new), message) for name, (old, new, message) in CHANGED.items()}
BAD["one sample under batch norm"] = (
    BAD["one sample under batch norm"][0].replace("split(32)", "split(1)"),
    "one value per channel",
)


@pytest.mark.parametrize("command", ["diagnose", "treat"])
@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_paragraph_and_exit_2(tmp_path, command, text, message, unchecked):
    if command == "treat" and "nn.LazyLinear" in text:
        message = "lazy ones"
    out = tmp_path / "start.safetensors"
    more = ["--out", out] if command == "treat" else []
    result = inside(command, target(tmp_path, text), "--json", *more)
    assert result.exit_code == 2, (result.exception, result.stderr)
    assert message in result.stderr
    assert result.stdout == ""
    told = [line for line in result.stderr.splitlines() if line.startswith("theta0: ")]
    assert result.stderr.rstrip().endswith(told[-1])
    assert len(told) == 1
    assert "Traceback" not in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["treat", "TARGET", "--with", "magic"], "with: expected auto, unit-variance, lcw, centre, "),
        (["diagnose", "nowhere.py"], "nowhere.py: expected a training script"),
        (["diagnose", "no_such_module_at_all:"], "no_such_module_at_all raised ModuleNotFoundError"),
        (["diagnose"], "TARGET"),
        (["treat", "TARGET", "--steps", "0"], "steps"),
        (["treat", "TARGET", "--steps", "many"], "steps"),
        (["cure", "TARGET"], "cure"),
    ],
)
def test_wrong_arguments_are_exit_2(tmp_path, arguments, message):
    path = target(tmp_path, HEALTHY)
    result = inside(*[path if a == "TARGET" else a for a in arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("where", ["file/page.html", "."])
def test_a_page_that_cannot_be_written_is_told(tmp_path, where):
    (tmp_path / "file").write_text("no folder")
    result = inside("diagnose", target(tmp_path, HEALTHY), "--html", tmp_path / where)
    assert result.exit_code == 2
    assert str(tmp_path / where) in result.stderr.replace("\n", "")


def test_a_start_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("no folder")
    result = inside(
        "treat", target(tmp_path, DEEP), "--with", "lcw", "--steps", 60, "--out", tmp_path / "file" / "a.safetensors"
    )
    assert result.exit_code == 2
    assert str(tmp_path / "file" / "a.safetensors") in result.stderr.replace("\n", "")
    assert "trying" not in result.stderr  # told before the work


def test_a_traceback_on_request(tmp_path):
    result = inside("diagnose", target(tmp_path, HEALTHY + "1 / 0\n"), "--traceback")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError: division by zero" in result.stderr


def test_help_of_a_finding():
    listed, shown, wrong = (inside("help", *more) for more in ((), ("dead-units",), ("deadunits",)))
    assert (listed.exit_code, shown.exit_code, wrong.exit_code) == (0, 0, 2)
    assert "broadcast-loss" in listed.stdout
    assert "When to ignore it" in shown.stdout
    assert "got 'deadunits'; did you mean dead-units" in wrong.stderr
    assert inside("help", "Dead_Units").stdout == shown.stdout


def test_the_version():
    from theta0 import __version__

    assert inside("--version").stdout.strip() == __version__


def test_rate_prints_a_number_and_verifies_it():
    example = Path(__file__).parents[1] / "examples" / "healthy_mlp.py"
    done = inside("rate", example, "--verify", "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["learning_rate"]["value"] > 0
    assert result["learning_rate"]["proven"]
    assert len(result["runs"]) == 4
    assert result["runs"][1]["held_out"] < result["runs"][1]["held_out_start"]


UNTRAINABLE = """
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    loss, optimizer = "cross_entropy", "sgd"


    def model():
        torch.manual_seed(0)
        widths = [64, *[128] * 8, 10]
        layers = [part for i in range(9) for part in (nn.Linear(widths[i], widths[i + 1]), nn.ReLU())]
        return nn.Sequential(*layers[:-1])


    def batches():
        data = load_digits()
        x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
        return [(x[i : i + 128], y[i : i + 128]) for i in range(0, 1536, 128)]
"""


@pytest.mark.slow
def test_rate_leaves_with_one_where_no_rate_trains(tmp_path):
    """Eight ReLU layers at torch's default start: gradient descent does not leave the plateau within the budget."""
    pytest.importorskip("sklearn")
    done = inside("rate", target(tmp_path, UNTRAINABLE), "--json")
    assert done.exit_code == 1, done.stderr
    found = json.loads(done.stdout)["learning_rate"]
    assert found["value"] is None
    assert "at no rate lowered the loss" in found["reason"]


def test_spectrum_shows_octaves_before_and_after(tmp_path):
    path, figure = target(tmp_path, HEALTHY), tmp_path / "spectrum.png"
    arguments = ("spectrum", path, "--between", 0, 5, "--steps", 5, "--points", 16, "--penalty", "path:1e-4")
    done = inside(*arguments, "--out", figure)
    assert done.exit_code == 0, done.output
    assert "between samples 0 and 5" in done.stdout
    assert "path:1e-4" in done.stdout
    assert figure.stat().st_size > 5000
    document = json.loads(inside(*arguments, "--json").stdout)
    assert list(document["trained"]) == ["no penalty", "path:1e-4"]
    assert len(document["frequencies"]) == 9


def test_spectrum_tells_what_is_wrong(tmp_path):
    path = target(tmp_path, HEALTHY)
    wrongs = {
        ("--between", 0, 4096): "samples from 0 to",
        ("--penalty", "l7:1"): "expected l2:C",
        ("--out", "x.xyz"): "ends in .png",
    }
    for arguments, message in wrongs.items():
        done = inside("spectrum", path, *arguments)
        assert done.exit_code == 2
        assert message in done.output


def test_reproduce_names_what_it_knows():
    listed = inside("reproduce", "furusho2020thesis", "list")
    assert listed.exit_code == 0, listed.stderr
    assert "fig17" in listed.stdout.split()
    for arguments in (("nobody2000", "fig1"), ("furusho2020thesis", "fig99")):
        wrong = inside("reproduce", *arguments)
        assert wrong.exit_code == 2
        assert "expected" in wrong.stderr
        assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kutsuna2019lcw", "fig1", "--device", "nowhere"], "expected a device that torch finds here, got 'nowhere'"),
        (["furusho2020thesis", "fig17", "--device", "cuda"], "expected cpu for furusho2020thesis"),
        (["kutsuna2019lcw", "fig5", "--device", "cuda", "--jobs", "2"], "a device is for one process"),
        (["kutsuna2019lcw", "fig1", "--scale", "laptop,steps=3"], "there is no size 'steps' here"),
    ],
)
def test_reproduce_refuses_what_it_cannot_do(arguments, words, tmp_path):
    done = inside("reproduce", *arguments, "--out", tmp_path)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())


def test_reproduce_at_smoke_scale_compares_with_nothing(tmp_path):
    done = inside("reproduce", "kutsuna2019lcw", "fig1", "--scale", "smoke", "--out", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip().endswith("smoke scale: whether it runs, not comparable with the source")


@pytest.mark.slow
def test_compare_in_a_real_process_goes_on_from_its_store_and_writes_the_winner(tmp_path):
    path, store, out_file = target(tmp_path, SIX), tmp_path / "runs.jsonl", tmp_path / "built" / "start.safetensors"
    page = tmp_path / "page.html"
    options = ["--starts", "default,lcw", "--rates", "0.03,0.1", "--steps", 20, "--seeds", 2, "--store", store]
    code, out, err = run("compare", path, *options, "--out", out_file, "--html", page, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["comparison"]["winner"]["start"] == "lcw"
    assert {standing["start"] for standing in document["comparison"]["standings"]} == {"default", "lcw"}
    assert "lcw at rate 0.1: " in err  # plain lines in a pipe
    assert out_file.is_file()
    assert "Leaderboard" in page.read_text()
    lines = store.read_text().count("\n")
    result = inside("compare", path, *options)
    assert result.exit_code == 0
    assert store.read_text().count("\n") == lines
    assert "lcw at rate 0.1 trains best" in " ".join(result.stdout.split())


SHUFFLED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loss = "cross_entropy"
def model(): return nn.Linear(4, 2)
def batches():
    x = torch.randn(128, 4)
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True, generator=GENERATOR)
"""


@pytest.mark.parametrize("generator", ["None", "torch.Generator()"])
def test_compare_goes_on_from_its_store_where_data_are_shuffled(generator, tmp_path):
    path, store = target(tmp_path, SHUFFLED.replace("GENERATOR", generator)), tmp_path / "runs.jsonl"
    options = ["--starts", "default", "--rates", "0.03,0.1", "--steps", 8, "--seeds", 1, "--store", store, "--json"]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = inside("compare", path, *options)
        assert first.exit_code == 0, first.stderr
        done = store.read_text()
        torch.manual_seed(2)
        again = inside("compare", path, *options)
    assert again.exit_code == 0
    assert store.read_text() == done
    found, same = (json.loads(result.stdout)["comparison"] for result in (first, again))
    assert same["standings"] == found["standings"]


@pytest.mark.parametrize(("after", "said"), [(1, "nothing was written"), (3, "the runs so far are in {}: the same")])
def test_an_interrupted_race_says_where_its_runs_are(after, said, tmp_path, monkeypatch):
    path, store, told = target(tmp_path, SHUFFLED.replace("GENERATOR", "None")), tmp_path / "runs.jsonl", []

    def race(*arguments, progress, **options):
        def stop(text, share):
            told.extend([text] if text not in told else [])
            if len(told) == after:
                raise KeyboardInterrupt

        return compare(*arguments, progress=stop, **options)

    monkeypatch.setattr("theta0.comparison.compare", race)
    result = inside("compare", path, "--starts", "default", "--rates", "0.03,0.1", "--steps", 8, "--store", store)
    assert result.exit_code == 130
    assert said.format(store) in result.stderr
    assert (store.exists() and store.read_text().count("\n") == after - 1) or after == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nio", "gradinit", pytest.param("mmd", marks=pytest.mark.slow)])
def test_treat_with_a_search(name, tmp_path):
    path, out_file = target(tmp_path, HEALTHY), tmp_path / "start.safetensors"
    done = inside("treat", path, "--with", name, "--steps", 10, "--json", "--out", out_file)
    assert done.exit_code in (0, 1), done.stderr
    document = json.loads(done.stdout)
    assert document["treatment"]["remedy"] == name
    assert document["treatment"]["kept"] is (done.exit_code == 0) is out_file.exists()
    assert document["cost_in_gradients"] > 290
    assert f"applying {name}" in done.stderr


def test_compare_races_the_same_starts_on_the_command_line():
    defaults = [inspect.signature(f).parameters["starts"].default for f in (compare_command, compare)]
    assert tuple(defaults[0].split(",")) == defaults[1] == ("default", "unit-variance", "lcw", "nio", "gradinit")


def test_compare_out_of_time_exits_with_1_and_bad_input_with_2(tmp_path):
    path = target(tmp_path, HEALTHY)
    options = ["--starts", "default", "--rates", "0.1", "--steps", 5]
    assert inside("compare", path, *options, "--budget", 1e-9).exit_code == 1
    for wrong, message in (
        (["--starts", "magic"], "starts: expected names out of default"),
        (["--rates", "fast"], "rates: expected auto or numbers joined by commas, got 'fast'"),
    ):
        result = inside("compare", path, *options, *wrong)
        assert result.exit_code == 2
        assert message in result.stderr


def test_treat_says_whose_fault_it_is_and_writes_nothing(tmp_path):
    squashed = HEAD + "def net(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2), nn.Softmax(1))\n"
    out_file = tmp_path / "start.safetensors"
    done = inside("treat", target(tmp_path, squashed), "--out", out_file)
    assert done.exit_code == 1, done.stderr
    assert "Not the start's fault but that of the output and the loss" in done.stdout.replace("\n", " ")
    assert not out_file.exists()


def test_the_severity_that_fails(tmp_path):
    warned = HEAD.replace('"momentum", 0.1', '"sgd", 0.1') + (
        "def net(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))\n"
        "made = batches\n"
        "def batches(): return [(x + 10, y) for x, y in made()]\n"
    )
    path = target(tmp_path, warned)
    document = json.loads(inside("diagnose", path, "--no-probe", "--json").stdout)
    found = {finding["severity"] for finding in document["findings"]}
    for fail_on, severities in (("error", {"error"}), ("warning", {"error", "warning"}), ("never", set())):
        result = inside("diagnose", path, "--no-probe", "--json", "--fail-on", fail_on)
        assert result.exit_code == int(bool(found & severities)), (fail_on, found)
    assert "warning" in found


@pytest.mark.slow
def test_a_code_that_is_ignored_is_left_out_and_that_is_said(tmp_path):
    path = target(tmp_path, DEEP)
    found = [f["code"] for f in json.loads(inside("diagnose", path, "--no-probe", "--json").stdout)["findings"]]
    result = inside("diagnose", path, "--no-probe", "--json", "--ignore", found[0])
    document = json.loads(result.stdout)
    assert found[0] not in {f["code"] for f in document["findings"]}
    assert any("Left out as asked" in line and found[0] in line for line in document["not_measured"])
    wrong = inside("diagnose", path, "--no-probe", "--ignore", "no-such-code")
    assert wrong.exit_code == 2
    assert "ignore: expected codes of findings, got no-such-code" in wrong.stderr


@pytest.mark.slow
def test_findings_as_annotations_of_a_workflow(tmp_path):
    path = target(tmp_path, DEEP)
    result = inside("diagnose", path, "--no-probe", "--format", "github")
    assert result.exit_code == 1
    assert all(
        line.startswith(("::error file=", "::warning file=", "::notice file=")) for line in result.stdout.splitlines()
    )
    assert "activation-shift" in result.stdout
    assert inside("diagnose", target(tmp_path, HEALTHY, "healthy.py"), "--no-probe", "--format", "github").stdout == ""
    assert json.loads(inside("diagnose", path, "--no-probe", "--format", "json").stdout)["healthy"] is False


def test_several_targets_have_the_worst_exit_code_and_one_json_document(tmp_path):
    healthy, ill = target(tmp_path, HEALTHY, "healthy.py"), target(tmp_path, DEEP, "ill.py")
    missing = tmp_path / "missing.py"
    result = inside("diagnose", healthy, ill, "--no-probe", "--json")
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)["targets"]
    assert (first["target"], first["exit_code"], first["healthy"]) == (str(healthy), 0, True)
    assert (second["target"], second["exit_code"], second["healthy"]) == (str(ill), 1, False)
    worse = inside("diagnose", missing, healthy, "--no-probe")
    assert worse.exit_code == 2
    assert "missing.py: expected a training script" in worse.stderr
    assert "healthy.py" in worse.stdout.replace("\n", "")  # one that cannot be read does not stop the others
    refused = inside("diagnose", healthy, ill, "--html", tmp_path / "page.html")
    assert refused.exit_code == 2
    assert "expected one target where a file is written, got 2" in refused.stderr


def test_what_is_given_on_the_command_line_takes_the_place_of_the_targets(tmp_path):
    path = target(tmp_path, HEALTHY)
    run = json.loads(inside("diagnose", path, "--json", "--lr", 0.01, "--optimizer", "AdamW").stdout)["probe"]
    assert (run["runs"][0]["optimizer"].lower(), run["runs"][0]["rate"]) == ("adamw", 0.01)
    cost = [
        json.loads(inside("diagnose", path, "--json", "--no-probe", *more).stdout)["cost_in_gradients"]
        for more in ([], ["--max-batches", 2])
    ]
    assert cost[1] < cost[0]
    lossless = target(tmp_path, HEALTHY.replace('loss = "cross_entropy"', ""), "lossless.py")
    assert inside("diagnose", lossless, "--no-probe").exit_code == 2
    assert inside("diagnose", lossless, "--no-probe", "--loss", "cross_entropy").exit_code == 0
    unseeded = target(tmp_path, HEALTHY.replace("torch.manual_seed(0)", "pass"), "unseeded.py")
    losses = [
        [r["value"] for r in json.loads(out)["records"] if (r["layer"], r["quantity"]) == ("", "loss")]
        for out in (inside("diagnose", unseeded, "--no-probe", "--json", "--seed", s).stdout for s in (3, 3, 4))
    ]
    assert losses[0] == losses[1] != losses[2]
    for wrong, message in (
        (["--lr", "-1"], "learning_rate: expected a positive number, got -1.0"),
        (["--lr", "nan"], "learning_rate: expected a positive number, got nan"),
        (["--optimizer", "adamm"], "optimizer: expected one of"),
        (["--loss", "nll"], "loss: expected"),
        (["--device", "cuda:9"], "--device: expected a device that torch finds here, got 'cuda:9'"),
        (["--max-batches", "0"], "--max-batches"),
    ):
        result = inside("diagnose", path, "--no-probe", *wrong)
        assert result.exit_code == 2, wrong
        assert message in result.stderr


STEPPED = """
import torch
from torch import nn
def model():
    torch.manual_seed(0)
    return nn.Linear(8, 2)
def batches():
    return [torch.randn(32, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
def step(model, batch):
    return model(batch).square().mean()
"""


@pytest.mark.slow
def test_a_page_is_written_into_folders_that_are_made_for_it(tmp_path):
    page = tmp_path / "not" / "there" / "page.html"
    done = inside("diagnose", target(tmp_path, HEALTHY), "--no-probe", "--html", page, "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    assert "target.py" in page.read_text()


def test_a_start_that_is_better_is_written_with_its_page(tmp_path):
    out, page = tmp_path / "start.safetensors", tmp_path / "page.html"
    path = target(tmp_path, SIX.replace("range(6)", "range(2)"))
    done = inside("treat", path, "--with", "lcw", "--steps", 5, "--lr", 0.1, "--json", "--out", out, "--html", page)
    document = json.loads(done.stdout)["treatment"]
    assert document["kept"] is (done.exit_code == 0)
    assert out.is_file() is document["kept"]
    assert "lcw" in page.read_text()


def test_what_a_step_of_ones_own_cannot_have_is_said(tmp_path):
    path = target(tmp_path, STEPPED)
    for arguments, message in (
        (("spectrum", path, "--between", 0, 5), "step"),
        (("diagnose", path, "--loss", "mse"), "whose own loss is used"),
    ):
        done = inside(*arguments)
        assert done.exit_code == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_a_fault_of_the_library_is_called_one_and_shows_where_on_request(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KeyError("inside")

    monkeypatch.setattr("theta0.diagnosis.diagnose", broken)
    path = target(tmp_path, HEALTHY)
    for options, shown in (((), False), (("--traceback",), True)):
        done = inside("diagnose", path, *options)
        assert done.exit_code == 2
        assert "unexpected KeyError: 'inside'; this is a bug in theta0: please report it" in done.stderr
        assert ("Traceback" in done.stderr) is shown


def test_several_target_files_are_one_document(tmp_path):
    paths = [target(tmp_path, HEALTHY, "one.py"), target(tmp_path, STEPPED, "two.py")]
    done = inside("diagnose", *paths, "--no-probe", "--json", "--fail-on", "never")
    assert done.exit_code == 0, done.stderr
    assert [found["target"] for found in json.loads(done.stdout)["targets"]] == [*map(str, paths)]


def test_the_curvature_of_a_rate_is_checked_on_request(tmp_path):
    done = inside("rate", target(tmp_path, HEALTHY), "--check", "--steps", 0, "--json")
    assert done.exit_code in (0, 1), done.stderr
    assert json.loads(done.stdout)["learning_rate"]["bound"] > 0
