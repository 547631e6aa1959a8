"""Seventy wrong inputs: each is answered by a paragraph that says what was expected and what to do, and exit code 2."""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from theta0.cli import app

BASE = """
import torch
from torch import nn
loss = "cross_entropy"
optimizer, learning_rate = "sgd", 0.1
def model(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
def batches():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    return list(zip(x.split(16), y.split(16)))
"""
SCRIPT = """
import argparse
import torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
arguments = parser.parse_args()
net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(20):
    loss = net(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Wrong:
    """A wrong input: a target file's text, the command line, and what the answer has to say."""

    said: tuple[str, ...]
    text: str = BASE
    command: tuple[str, ...] = ("diagnose", "TARGET", "--no-probe")
    name: str = "target.py"
    files: dict[str, str] = field(default_factory=dict)


def file(line: str, *said: str, command: tuple[str, ...] = ("diagnose", "TARGET", "--no-probe")) -> Wrong:
    """The target file with a line added, which takes the place of what it says before."""
    return Wrong(said, f"{BASE}\n{textwrap.dedent(line)}\n", command)


def line(*words: str, said: tuple[str, ...], text: str = BASE, **options) -> Wrong:
    return Wrong(said, text, words, **options)


CASES = {
    # what a target file defines
    "model is a module": file("model = nn.Linear(8, 2)", "expected a function model(), got a Linear", "def model()"),
    "model() returns nothing": file("def model(): pass", "expected model() to return a torch.nn.Module, got NoneType"),
    "model() returns a class": file("def model(): return nn.Linear", "torch.nn.Module", "got the class Linear"),
    "model(width) takes an argument": file(
        "def model(width): return nn.Linear(8, 2)", "model() raised TypeError", "width"
    ),
    "batches is a list": file(
        "batches = batches()", "expected a function batches(), got a list", "def batches(): return"
    ),
    "batches() returns nothing": file(
        "def batches(): pass", "expected an iterable", "got NoneType", "pass a DataLoader"
    ),
    "batches() returns a number": file("def batches(): return 3", "expected an iterable", "got int", "DataLoader"),
    "batches() returns one tensor": file(
        "def batches(): return torch.ones(4, 8)", "a Tensor of shape (4, 8)", "[(inputs"
    ),
    "batches() is used up": file("used = iter([])\ndef batches(): return used", "at least one batch, got none"),
    "no samples": file("def batches(): return [(torch.ones(0, 8), torch.ones(0).long())]", "batch 0", "one sample"),
    "a batch of names": file("def batches(): return [(['a', 'b'], torch.ones(2).long())]", "batch 0"),
    "a data set that raises": file(
        "def batches():\n    yield torch.ones(2, 8), torch.ones(2).long()\n    raise OSError('disk gone')",
        "batches: raised OSError: disk gone",
    ),
    "keys that forward lacks": file(
        "def batches(): return [{'image': torch.ones(4, 8), 'depth': torch.ones(4, 8), 'label': torch.ones(4).long()}]",
        "batch 0: expected a mapping whose keys are forward's parameters (input)",
        "rename them, or pass step=",
    ),
    "images as bytes": file(
        "def batches(): return [(torch.ones(4, 8).byte(), torch.ones(4).long())]", "batch 0", "uint8", ".float() / 255"
    ),
    "integers for a layer": file(
        "def batches(): return [(torch.ones(4, 8).long(), torch.ones(4).long())]", "batch 0", "int64", ".float()"
    ),
    "double inputs": file(
        "def model(): return nn.LSTM(8, 2)\ndef batches(): return [(torch.ones(4, 9), torch.ones(4).long())]",
        "batch 0",
        "forward",
    ),
    "NaN in the inputs": file(
        "def batches(): return [(torch.full((4, 8), float('nan')), torch.ones(4).long())]", "expected finite numbers"
    ),
    "NaN in the targets": file(
        "loss = 'mse'\ndef batches(): return [(torch.ones(4, 8), torch.full((4, 2), float('nan')))]",
        "targets",
        "finite",
    ),
    "another width": file("def batches(): return [(torch.ones(4, 9), torch.ones(4).long())]", "batch 0", "forward"),
    # what the loss is given
    "a class of torch, not made": file("loss = nn.CrossEntropyLoss", "loss", "nn.CrossEntropyLoss()"),
    "an unknown loss": file("loss = 'crossentropy'", "loss", "'crossentropy'", "cross_entropy"),
    "a tensor as loss": file("loss = torch.ones(1000)", "loss: expected 'cross_entropy'", "a Tensor of shape (1000,)"),
    "a loss for each sample": file(
        "def loss(o, t): return (o[:, 0] - t).square()", "expected a scalar", "(16,)", "mean"
    ),
    "a loss that is a number": file("def loss(o, t): return 3.0", "loss", "float"),
    "a loss that raises": file("def loss(o, t): return o.nothing", "the loss raised AttributeError"),
    "a loss with one argument": file("def loss(o): return o.mean()", "the loss raised TypeError"),
    "labels too large": file(
        "def batches(): return [(torch.ones(4, 8), torch.full((4,), 2))]", "labels from 0 to 1", "batch 0"
    ),
    "labels negative": file("def batches(): return [(torch.ones(4, 8), torch.full((4,), -1))]", "labels from 0 to 1"),
    "labels as a column": file(
        "def batches(): return [(torch.ones(4, 8), torch.zeros(4, 1).long())]", "batch 0", "(4, 1)"
    ),
    "labels as numbers": file(
        "def batches(): return [(torch.ones(4, 8), torch.ones(4))]", "batch 0", "float32", ".long()"
    ),
    "no labels": file(
        "def batches(): return [torch.ones(4, 8)]", "batch 0: the loss 'cross_entropy': expected targets"
    ),
    "a loss and a step": file("def step(model, batch): return model(batch[0]).mean()", "loss", "step"),
    "a step that is no function": file("loss = None\nstep = 3", "step: expected a function", "got 3"),
    "a step that returns nothing": file(
        "loss = None\ndef step(model, batch): model(batch[0]).mean()", "step", "NoneType", "return"
    ),
    "a step that raises": file("loss = None\ndef step(model, batch): return batch['x']", "the step raised TypeError"),
    # how it is trained
    "an unknown optimizer": file("optimizer = 'adamm'", "optimizer: expected one of", "'adamm'"),
    "an optimizer that is a number": file("optimizer = 3", "optimizer: expected", "got 3"),
    "a rate as text": file("learning_rate = '0.1'", "learning_rate: expected a positive number, got '0.1'"),
    "a rate of nothing": file("learning_rate = 0", "learning_rate: expected a positive number, got 0"),
    "a rate that is no number": file(
        "learning_rate = float('nan')", "learning_rate: expected a positive number, got nan"
    ),
    "make_optimizer without an argument": file("def make_optimizer(): pass", "make_optimizer(model) raised TypeError"),
    "an optimizer that needs a closure": file(
        "def make_optimizer(model): return torch.optim.LBFGS(model.parameters())",
        "needs no closure",
        "LBFGS",
        command=("rate", "TARGET"),
    ),
    # files and names
    "a folder": line("diagnose", "FOLDER", said=("expected a training script", "got a folder")),
    "no such file": line("diagnose", "nowhere.py", said=("nowhere.py", "no such file")),
    "a notebook": line("diagnose", "TARGET", said=(".ipynb", "capture_steps"), name="train.ipynb"),
    "a checkpoint": line("diagnose", "TARGET", said=("expected a training script", ".pt"), name="model.pt"),
    "no such module": line(
        "diagnose", "no_such_module_at_all:", said=("no_such_module_at_all raised ModuleNotFoundError",)
    ),
    "bytes": line("diagnose", "TARGET", said=("target.py",), text="\0\0"),
    "a syntax error": line("diagnose", "TARGET", said=("syntax error on line 1",), text="def (:"),
    "an import that fails": line(
        "diagnose", "TARGET", said=("ModuleNotFoundError", "line"), text=f"{BASE}\nimport nothing_of_it"
    ),
    "arguments for a target file": line("diagnose", "TARGET", "--", "--lr", "1", said=("only with a script",)),
    # the command line
    "a rate below nothing": line("diagnose", "TARGET", "--lr", "-1", said=("learning_rate: expected a positive", "-1")),
    "a device that is not there": line("diagnose", "TARGET", "--device", "cuda:9", said=("--device", "cuda:9")),
    "a device of no kind": line("diagnose", "TARGET", "--device", "gpu", said=("--device", "gpu")),
    "a code that is none": line("diagnose", "TARGET", "--ignore", "nothing", said=("ignore", "nothing")),
    "no batch": line("diagnose", "TARGET", "--max-batches", "0", said=("--max-batches",)),
    "a page in a file": line(
        "diagnose", "TARGET", "--html", "TARGET/page.html", said=("page.html", "choose another name")
    ),
    "a page that is a folder": line("diagnose", "TARGET", "--html", "FOLDER", said=("a folder", "choose another name")),
    "an unknown remedy": line("treat", "TARGET", "--with", "magic", said=("with: expected auto", "magic")),
    "no step": line("treat", "TARGET", "--steps", "0", said=("--steps",)),
    "an unknown start": line("compare", "TARGET", "--starts", "magic", said=("starts: expected names out of", "magic")),
    "rates that are none": line(
        "compare", "TARGET", "--rates", "fast", said=("rates: expected auto or numbers", "fast")
    ),
    "a certificate of nothing": line("rate", "TARGET", "--certify", "0", "2", said=("certify",)),
    "a batch of nothing": line("rate", "TARGET", "--batch-size", "0", said=("batch",)),
    "a sample that is not there": line("spectrum", "TARGET", "--between", "0", "999", said=("samples from 0 to",)),
    "a penalty of no kind": line("spectrum", "TARGET", "--penalty", "l7:1", said=("expected l2:C",)),
    "a paper of nobody": line("reproduce", "nobody2000", "fig1", said=("paper: expected", "nobody2000")),
    "a command that is none": line("cure", "TARGET", said=("cure",)),
    "an option that is none": line("diagnose", "TARGET", "--rate", "1", said=("--rate",)),
    "no target": line("diagnose", said=("TARGET",)),
}


def answered(folder: Path, wrong: Wrong):
    """Run a command in this process; its output as one line of text."""
    path = folder / wrong.name
    path.write_text(wrong.text)
    places = {"TARGET": str(path), "FOLDER": str(folder), "TARGET/page.html": str(path / "page.html")}
    result = CliRunner().invoke(app, [places.get(word, word) for word in wrong.command])
    return result, " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_input_is_answered_in_one_paragraph(name, tmp_path, unchecked):
    wrong = CASES[name]
    result, said = answered(tmp_path, wrong)
    assert result.exit_code == 2, (result.exit_code, said, result.exception)
    assert [part for part in wrong.said if part not in said] == [], said
    assert "bug in theta0" not in said
    assert "Traceback" not in said
    assert len(said) < 900, said
    assert result.stdout == ""
