"""A target file becomes a model, batches, a loss and how they are trained, or one sentence that says what is amiss."""

import sys
import textwrap

import pytest
from torch import nn

from theta0.targets import load_target

GOOD = """
from torch import nn
import torch
loss = "mse"
def model():
    return nn.Linear(4, 2)
def batches():
    return [(torch.ones(3, 4), torch.zeros(3, 2))]
"""


def written(tmp_path, text, name="target.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_what_a_target_defines(tmp_path):
    target = load_target(written(tmp_path, GOOD + "optimizer = 'adam'\nlearning_rate = 1\n"))
    assert isinstance(target.model, nn.Linear)
    assert len(target.batches) == 1
    assert (target.loss, target.optimizer, target.learning_rate) == ("mse", "adam", 1.0)


def test_optimizer_rate_and_loss_may_be_left_out(tmp_path):
    target = load_target(written(tmp_path, GOOD.replace('loss = "mse"', "")))
    assert (target.loss, target.optimizer, target.learning_rate) == (None, None, None)


def test_neighbours_of_the_file_can_be_imported_and_the_path_is_left(tmp_path):
    written(tmp_path, "width = 4\n", "neighbour_of_target.py")
    before = list(sys.path)
    load_target(written(tmp_path, "import neighbour_of_target\nfrom dataclasses import dataclass\n" + GOOD))
    assert sys.path == before


def test_an_importable_module(tmp_path, monkeypatch):
    written(tmp_path, GOOD, "importable_target.py")
    monkeypatch.chdir(tmp_path)
    assert isinstance(load_target("importable_target:").model, nn.Linear)


def test_main_is_not_run(tmp_path):
    assert load_target(written(tmp_path, GOOD + "\nif __name__ == '__main__':\n    raise SystemExit(5)\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD.replace("def model", "def network"),
            r"target.py: expected a function model\(\), got nothing of that name",
        ),
        (GOOD.replace("def batches", "def data"), r"expected a function batches\(\), got nothing"),
        (GOOD + "model = nn.Linear\n", r"target.py: model\(\) raised TypeError"),
        (GOOD + "model = 3\n", r"expected a function model\(\), got an? int"),
        (GOOD + "model = lambda: 3\n", r"expected model\(\) to return a torch.nn.Module, got int"),
        (GOOD + "def model(:\n", r"target.py: syntax error on line 9"),
        (GOOD + "1 / 0\n", r"target.py raised ZeroDivisionError: division by zero \(line 9 of target.py\)"),
        (GOOD + "import no_such_module_at_all\n", r"raised ModuleNotFoundError: .*no_such_module_at_all"),
        (GOOD + "def batches():\n    return {}['x']\n", r"batches\(\) raised KeyError: 'x' \(line 10 of target.py\)"),
        (GOOD + "raise SystemExit(3)\n", r"target.py raised SystemExit: 3"),
        (GOOD + "loss = 'hinge'\n", r"target.py: loss: expected 'cross_entropy'.*got 'hinge'"),
        (GOOD + "optimizer = 'lion'\n", r"target.py: optimizer: expected one of .*got 'lion'"),
        (GOOD + "optimizer = ['adam']\n", r"target.py: optimizer: expected one of .*got \['adam'\]"),
        (GOOD + "loss = ['mse']\n", r"target.py: loss: expected .*got \['mse'\]"),
        (GOOD + "learning_rate = -1\n", r"learning_rate: expected a positive number, got -1"),
        (GOOD + "learning_rate = 'fast'\n", r"learning_rate: expected a positive number, got 'fast'"),
        (GOOD + "learning_rate = float('nan')\n", r"learning_rate: expected a positive number, got nan"),
        (GOOD + "learning_rate = True\n", r"learning_rate: expected a positive number, got True"),
        ("\0", "target.py"),
    ],
)
def test_what_is_amiss_is_told_with_the_file(tmp_path, text, message, unchecked):
    with pytest.raises(ValueError, match=message) as caught:
        load_target(written(tmp_path, text))
    assert "target.py" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py", "nowhere.py: expected a training script.* found no such file"),
        (".", "got a folder"),
        ("target.txt", "target.txt: expected a training script.* got .txt; name the code that trains"),
        ("no_such_module_at_all:", "no_such_module_at_all raised ModuleNotFoundError"),
        (":", "expected"),
    ],
)
def test_names_that_lead_nowhere(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, GOOD, "target.txt")
    with pytest.raises(ValueError, match=message):
        load_target(name)
