"""Scripts that are ill in a known way get the verdict of a target file, with the line; healthy ones have no error."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import theta0

SCRIPTS = Path(__file__).parent / "scripts"
ZEROS = """
for p in model.transformer.h.parameters():
    torch.nn.init.zeros_(p)"""
SAME = """
        for p in (*self.fc3.parameters(), self.fc4.weight):
            nn.init.constant_(p, 0.1)"""
# The package that it needs; what is changed, into what; the first finding, and its line.
FAULTS = {
    "plain_loop": ("torch", "F.relu(self.fc1(x))", "F.relu(self.fc1(x)).detach()", "gradient-cut", "plain_loop.py:18"),
    "module_level": ("torch", "(outputs, labels)", "(outputs, labels.squeeze())", "broadcast-loss", ""),
    "accumulation": ("torch", "criterion(model(x), y)", "criterion(model(x).softmax(-1), y)", "squashed-output", ""),
    "vae": ("torch", "self.fc4 = nn.Linear(40, 64)", "self.fc4 = nn.Linear(40, 64)" + SAME, "identical-units", ""),
    "siamese": ("torch", "lr=1e-3", "lr=50.0", "learning-rate-too-high", ""),
    "gan": ("torch", "output = netD(fake).view", "output = netD(fake.detach()).view", "gradient-cut", "gan.py:35"),
    "physics": ("torch", "nn.Tanh()", "nn.ReLU()", "gradient-cut", "physics.py:17"),
    "segmentation": ("torch", "logits.sigmoid()", "(logits > 0).float()", "gradient-cut", "segmentation.py:38"),
    "accelerated": ("accelerate", "(inputs), targets)", "(inputs), targets.squeeze())", "broadcast-loss", ""),
    "lightning_fit": ("lightning", "lr=1e-3", "lr=10.0", "learning-rate-too-high", ""),
    "hf_trainer": ("transformers", "GPT2LMHeadModel(config)", "GPT2LMHeadModel(config)" + ZEROS, "zero-gradient", ""),
    "lora": ("peft", "initializer_range=0.3", "initializer_range=0.0", "zero-gradient", ""),
}
QUICK = ("plain_loop", "gan")  # the others in `make test-all`
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAULTS]


@pytest.fixture
def installed(name):
    try:
        importlib.import_module(FAULTS[name][0])
        importlib.import_module("transformers").Trainer if FAULTS[name][0] in ("peft", "transformers") else None
    except Exception as error:  # an installation that does not import is none
        pytest.skip(f"{FAULTS[name][0]} does not import here: {error}")


def diagnosed(path):
    captured = theta0.capture(path, ["--lr", "0.1"] if path.stem == "plain_loop" else [])
    assert captured.error is None
    return [theta0.diagnose(**step.arguments) for step in captured.steps]


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", EACH)
def test_an_ill_script_is_named_with_its_line_and_a_healthy_one_left_alone(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = (SCRIPTS / f"{name}.py").read_text()
    _, old, new, code, line = FAULTS[name]
    assert source.count(old) >= 1
    path = tmp_path / f"{name}.py"
    path.write_text(source.replace(old, new))
    worst = [finding for found in diagnosed(path) for finding in found.findings[:1] if finding.severity == "error"]
    assert [finding.code for finding in worst] == [code]
    assert worst[0].source_line.startswith(line)
    if name not in QUICK:
        found = diagnosed(SCRIPTS / f"{name}.py")
        assert [f.code for one in found for f in one.findings if f.severity != "note"] == []
    assert (SCRIPTS / f"{name}.py").read_text() == source


LOADED = "\nimport theta0\ntheta0.load_start_({model}, {file!r})\n"
# Where the line that loads the start goes, by what it loads it into.
TREATED = {
    "deep": ("optimizer =", "net"),
    "accumulation": ("optimizer =", "model"),
    "small": ("optimizer =", "net"),
}
DEEP = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(16, 16), nn.Sigmoid())), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
x = torch.randn(1024, 16)
y = x[:, :4].argmax(1)
for step in range(150):
    part = slice(32 * step % 1024, 32 * step % 1024 + 32)
    loss = nn.functional.cross_entropy(net(x[part]), y[part])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FILLED = {
    "deep": "",
    "accumulation": "[nn.init.constant_(p, 0.05) for p in model.parameters()]\n",
    "small": "for p in net.parameters():\n    p.data.mul_(0.05)\n",
}


def last_loss(path):
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy; print('last', float(runpy.run_path({str(path)!r})['loss']))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split("last")[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", TREATED)
def test_one_line_loads_the_treated_start_and_the_script_then_trains_better(name, tmp_path):
    source = DEEP if name != "accumulation" else (SCRIPTS / f"{name}.py").read_text()
    before, model = TREATED[name]
    source = source.replace(before, FILLED[name] + before, 1)
    script, out = tmp_path / f"{name}.py", tmp_path / "start.safetensors"
    script.write_text(source)
    command = [sys.executable, "-m", "theta0", "treat", str(script), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    kept = json.loads(done.stdout)["treatment"]["kept"]
    assert kept == (done.returncode == 0) == out.exists(), done.stderr
    assert kept, done.stderr
    loaded = tmp_path / f"{name}_loaded.py"
    loaded.write_text(source.replace(before, LOADED.format(model=model, file=str(out)) + before, 1))
    assert last_loss(loaded) < last_loss(script)
