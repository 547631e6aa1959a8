"""Training scripts, written as tutorials are, become models, batches and steps that give the scripts' own numbers."""

import importlib
import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import theta0
from theta0._batches import load_batches
from theta0._losses import loss_of
from theta0.cli import app, scripts
from theta0.cli.scripts import is_script

SCRIPTS = Path(__file__).parent / "scripts"
# Arguments; then for each optimizer: name, rate, loss, gradients compared, factor taken out.
FAST = {
    "plain_loop": (["--lr", "0.1"], [("SGD", 0.1, "cross_entropy", 4, "")]),
    "module_level": ([], [("Adam", 3e-2, "mse", 4, "")]),
    "accumulation": ([], [("AdamW", 0.01, "cross_entropy", 4, "scaling")]),
    "vae": ([], [("Adam", 1e-3, None, 10, "")]),
    "siamese": ([], [("AdamW", 1e-3, None, 6, "")]),
    "gan": ([], [("Adam", 2e-3, None, 4, ""), ("Adam", 1e-3, None, 4, "")]),
    "physics": ([], [("LBFGS", 0.5, None, 4, "")]),
}
SLOW = {
    "lightning_fit": ("lightning", [("Adam", 1e-3, None, 8, "")]),
    "hf_trainer": ("transformers", [("AdamW", 5e-4, None, 28, "")]),
}


def described(step):
    return type(step.optimizer).__name__, step.learning_rate, step.loss, step.compared, step.factor.reason


class Seen(BaseException):
    """Ends a script that is run without theta0."""


def own_passes(monkeypatch, name, argv, count):
    """The losses and gradients of a script's first backward passes, by a run of its own."""
    found, backward = [], torch.Tensor.backward

    def recording(loss, *arguments, **options):
        backward(loss, *arguments, **options)
        optimizers = {id(o): o for o in namespace.values() if isinstance(o, torch.optim.Optimizer)}.values()
        held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        found.append((loss.detach().clone(), [p.grad.clone() for p in held if p.grad is not None]))
        if len(found) == count:
            raise Seen

    namespace = {"__name__": "__main__"}
    code = compile((SCRIPTS / f"{name}.py").read_bytes(), name, "exec")
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "backward", recording)
        patched.setattr(sys, "argv", [name, *argv])
        with pytest.raises(Seen):
            exec(code, namespace)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FAST)
def test_a_script_becomes_what_a_target_file_would_say(name):
    argv, expected = FAST[name]
    captured = theta0.capture(SCRIPTS / f"{name}.py", argv)
    assert captured.error is None
    assert [described(step) for step in captured.steps] == expected
    assert all(len(step.batches) >= 4 for step in captured.steps)


@pytest.mark.parametrize("name", ["siamese", "physics", "accumulation"])
def test_replayed_losses_and_gradients_equal_those_of_a_run_without_theta0(monkeypatch, name):
    ((loss, gradients),) = own_passes(monkeypatch, name, [], 1)
    (step,) = theta0.capture(SCRIPTS / f"{name}.py").steps
    (batch,) = load_batches(step.batches, step.model, max_batches=1, step=step.step)
    with torch.enable_grad():
        value, _ = loss_of(step.model, batch, step.loss)
        value = value * step.factor.value if step.factor.reason else value
        found = torch.autograd.grad(value, list(step.model.parameters()))
    assert torch.equal(value.detach(), loss)
    assert all(torch.equal(a, b) for a, b in zip(found, gradients, strict=True))


def test_terms_of_one_loss_that_are_differentiated_one_by_one_are_summed(monkeypatch):
    passes = own_passes(monkeypatch, "gan", [], 3)
    captured = theta0.capture(SCRIPTS / "gan.py")
    discriminator, generator = captured.steps
    assert discriminator.losses[0] == float(passes[0][0]) + float(passes[1][0])
    assert generator.losses[0] == float(passes[2][0])
    assert [name for name, _ in generator.model.named_children()] == ["netG", "netD"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the trainers' own
@pytest.mark.parametrize("name", SLOW)
def test_trainers(name):
    needed, expected = SLOW[name]
    try:
        importlib.import_module(needed).Trainer  # noqa: B018 - transformers imports it when it is asked for
    except Exception as error:  # an installation that does not import is none
        pytest.skip(f"{needed} does not import here: {error}")
    captured = theta0.capture(SCRIPTS / f"{name}.py")
    assert [described(step) for step in captured.steps] == expected


LOOP = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(8, 4)
for number in range(30):
    optimizer.zero_grad()
    BODY
    loss.backward()
    optimizer.step()
"""


def script(tmp_path, body, source=LOOP):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(source).replace("BODY", body))
    return path


def test_a_script_finds_its_own_folder_and_an_error_names_its_own_line(tmp_path, monkeypatch):
    """`__file__` is absolute, as under `python FILE`, wherever the script is named from."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "script.py").write_text(
        "from pathlib import Path\n\n\nfolder = Path(__file__).parents[1]\n(folder / 'gone').read_text()\n"
    )
    monkeypatch.chdir(tmp_path / "deep")
    with pytest.raises(theta0.CaptureError, match=r"FileNotFoundError: .*gone.* \(line 5 of script.py\)"):
        theta0.capture("script.py")


def test_a_script_that_raises_in_training_is_judged_on_what_was_seen(tmp_path):
    captured = theta0.capture(script(tmp_path, "loss = net(x).mean() / (1 if number < 2 else {}[number])"))
    assert isinstance(captured.error, KeyError)
    assert len(captured.steps[0].batches) == 2


def test_a_script_that_catches_everything_is_stopped_again_and_again(tmp_path):
    caught = LOOP.replace("    loss.backward()\n", "    try: loss.backward()\n    except BaseException: pass\n")
    captured = theta0.capture(
        script(tmp_path, "try: loss = net(x).square().mean()\n    except BaseException: pass", caught)
    )
    assert len(captured.steps[0].batches) == 5 if captured.error is None else "Stop" in type(captured.error).__name__


def test_the_state_before_the_first_step_is_put_back():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    steps = 0
    with theta0.capture_steps(batches=3) as captured:
        for _ in range(50):
            steps += 1
            net(torch.randn(16, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert steps == 3
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not optimizer.state
    assert all(p.grad is None for p in net.parameters())
    assert repr(captured.steps[0]) == "<CapturedStep: Sequential, 3 batches, Adam at 0.01>"
    assert theta0.diagnose(**captured.arguments, max_batches=2).records


def test_a_penalty_on_the_weights_is_a_part_of_the_loss(tmp_path):
    body = "loss = net(x).square().mean() + 0.1 * sum(p.square().sum() for p in net.parameters())"
    step = theta0.capture(script(tmp_path, body)).steps[0]
    weight = step.model.weight.clone()
    first = float(step.step(step.model, step.batches[0]).detach())
    assert torch.equal(step.model.weight, weight)  # what initialized it is not replayed
    with torch.no_grad():
        step.model.bias.add_(1.0)
        outputs = step.model(step.batches[0].values[0])
        expected = outputs.square().mean() + 0.1 * sum(p.square().sum() for p in step.model.parameters())
    assert first == step.losses[0]
    assert float(step.step(step.model, step.batches[0]).detach()) == pytest.approx(float(expected), rel=1e-6)


REFUSED = {
    "no training": ("import torch\nprint(torch.nn.Linear(2, 2)(torch.ones(1, 2)))", "it ended after 1 calls"),
    "raises at once": (
        "import torch\n{}['nothing']",
        r"it raised KeyError: 'nothing' \(line 2 of train.py\)",
    ),
    "leaves": ("raise SystemExit(3)", "it left with exit code 3 before its first backward pass"),
    "syntax": ("def (:", "train.py: syntax error on line 1"),
    "state outside of modules": (
        LOOP.replace("for number", "seen = []\nfor number").replace(
            "BODY",
            "seen.append(1)\n    net.forward = lambda x: (seen.append(1), net.weight.sum() * len(seen))[1]\n"
            "    loss = net(x)",
        ),
        "replayed, is",
    ),
    "written to a view": (
        LOOP.replace("BODY", "out = torch.zeros(2, 8, 2); out[0].copy_(net(x)); loss = out.square().mean()"),
        "whose path from a module's call was not seen",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_replayed_is_refused_with_the_reason(tmp_path, name):
    source, message = REFUSED[name]
    with pytest.raises(theta0.CaptureError, match=message):
        theta0.capture(script(tmp_path, "", source))


def command(*arguments):
    call = [sys.executable, "-m", "theta0", *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.slow
def test_the_command_line_runs_the_script_in_a_process_of_its_own():
    done = command("diagnose", SCRIPTS / "plain_loop.py", "--json", "--", "--lr", "0.1")
    found = json.loads(done.stdout)  # what the script prints goes to standard error
    assert (done.returncode, found["healthy"]) == (0, True)
    assert (
        "read 5 batches, SGD at 0.1; computed again, the first loss and its 4 gradients equal the script's"
        in done.stderr
    )


@pytest.mark.slow
def test_a_script_that_cannot_be_stopped_is_ended_after_the_verdict(tmp_path):
    endless = LOOP.replace("for number in range(30):", "while True:\n  try:").replace("\n    ", "\n      ")
    endless += "  except BaseException: pass\n"
    done = command("diagnose", script(tmp_path, "loss = net(x).square().mean()", endless), "--json")
    assert done.returncode in (0, 1)
    assert json.loads(done.stdout)["records"]


@pytest.mark.slow
def test_one_of_a_scripts_optimizers_and_several_targets(tmp_path):
    gan, loop = SCRIPTS / "gan.py", SCRIPTS / "module_level.py"
    done = command("diagnose", gan, "--no-probe", "--json", "--optimizer-index", "2")
    assert "optimizer 2 (Adam)" in json.loads(done.stdout)["target"], done.stderr
    none = command("diagnose", gan, "--no-probe", "--optimizer-index", "3")
    assert none.returncode == 2
    assert "--optimizer-index: expected at most 2" in none.stderr
    both = command("diagnose", gan, loop, "--no-probe", "--json", "--fail-on", "never")
    assert both.returncode == 0, both.stderr
    first, second = json.loads(both.stdout)["targets"]
    assert len(first["optimizers"]) == 2
    assert second["target"] == str(loop)
    page = tmp_path / "page.html"
    assert command("diagnose", gan, "--no-probe", "--html", page).returncode in (0, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "page-2.html"}
    for option, message in (("--device=cpu", "which chooses its own device"), ("--loss=mse", "whose own loss is used")):
        refused = command("diagnose", gan, "--no-probe", option)
        assert refused.returncode == 2
        assert message in refused.stderr


TWO_LOOPS = """
import torch
from torch import nn
torch.manual_seed(0)
teacher, student = nn.Linear(4, 2), nn.Linear(4, 2)
x = torch.randn(32, 4)
optimizer = torch.optim.SGD(teacher.parameters(), 0.1)
for _ in range(12):
    optimizer.zero_grad()
    (teacher(x) - x[:, :2]).square().mean().backward()
    optimizer.step()
for _ in range(12):
    optimizer.zero_grad()
    with torch.no_grad():
        wanted = teacher(x)
    (student(x) - wanted).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_loop_that_comes_later_is_seen_where_the_first_is_skipped(tmp_path):
    path = script(tmp_path, "", TWO_LOOPS)
    first, second = theta0.capture(path), theta0.capture(path, skip=12)
    assert (first.steps[0].observed.gradient_kept, second.steps[0].observed.gradient_kept) == (pytest.approx(1.0), 0.0)
    found = theta0.diagnose(**second.arguments)
    assert found.findings[0].code == "lost-gradient"
    assert "holds none of the parameters that this loss is made with" in found.findings[0].message
    assert not second.steps[0].optimizer.state  # begun anew where it was looked at
    with pytest.raises(theta0.CaptureError, match="expected a script that trains"):
        theta0.capture(path, skip=24)


CUT_LOSSES = {
    "no_grad": "with torch.no_grad(): out = model(x)\nloss = F.mse_loss(out, y)",
    "numbers": "loss = torch.tensor(F.mse_loss(model(x), y).item())",
    "numpy": "loss = torch.from_numpy(F.mse_loss(model(x), y).detach().numpy())",
}


@pytest.mark.parametrize("name", CUT_LOSSES)
def test_a_loss_without_a_graph_is_named_with_its_line(tmp_path, name):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
        "model = nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n    x, y = torch.randn(8, 4), torch.randn(8, 1)\n    "
        + CUT_LOSSES[name].replace("\n", "\n    ")
        + "\n    loss.requires_grad_(True)\n    loss.backward()\n    optimizer.step()\n"
    )
    with pytest.raises(theta0.CaptureError, match=r"without any at .*loss\.backward\(\)"):
        theta0.capture(path)


def test_a_standard_loss_stated_by_name_keeps_the_line_that_calls_it(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nfrom torch import nn\nmodel, criterion = nn.Linear(4, 1), nn.MSELoss()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(5):\n    loss = criterion(model(torch.randn(8, 4)), torch.randn(8))\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of the sizes
        captured = theta0.capture(path)
    assert captured.steps[0].loss == "mse"
    (finding,) = theta0.diagnose(**captured.arguments, probe_steps=0).findings
    assert finding.source_line.endswith("train.py:6: loss = criterion(model(torch.randn(8, 4)), torch.randn(8))")


def test_arguments_of_several_optimizers_are_not_those_of_the_first():
    captured = theta0.capture(SCRIPTS / "gan.py", batches=2)
    with pytest.raises(theta0.CaptureError, match=r"expected one optimizer, got 2: .*for step in captured\.steps"):
        _ = captured.arguments


@pytest.fixture
def verb(monkeypatch):
    """The command line on a script as in the script's own process, but in this one."""
    monkeypatch.setattr(scripts, "chosen", 0)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return lambda *arguments: CliRunner(env={"COLUMNS": "300"}).invoke(app, [*map(str, arguments)])


TWO = """
import torch
from torch import nn
torch.manual_seed(0)
print("the script prints")
one, other = nn.Linear(4, 2), nn.Linear(4, 2)
first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.Adam(other.parameters(), 1e-3)
x = torch.randn(16, 4)
for number in range(30):
    for net, optimizer in ((one, first), (other, second)):
        (net(x) - 1).abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_each_optimizer_of_a_script_is_a_target_and_one_can_be_chosen(tmp_path, verb):
    path = script(tmp_path, "", TWO)
    both = verb("diagnose", path, "--no-probe", "--json", "--fail-on", "never")
    assert both.exit_code == 0, both.stderr
    titles = [found["target"] for found in json.loads(both.stdout)["optimizers"]]
    assert titles == [f"{path}, optimizer 1 (SGD)", f"{path}, optimizer 2 (Adam)"]
    assert "the script prints" in both.stderr
    second = verb("diagnose", path, "--no-probe", "--json", "--optimizer-index", 2, "--fail-on", "never")
    assert json.loads(second.stdout)["target"] == titles[1]
    third = verb("diagnose", path, "--no-probe", "--optimizer-index", 3)
    assert (third.exit_code, third.stdout) == (2, "")
    assert "--optimizer-index: expected at most 2" in third.stderr
    report = verb("diagnose", path, "--no-probe", "--fail-on", "never")
    assert "optimizer 2 (Adam)" in report.stdout


WHAT_WAS_SEEN = {
    "a factor of the script's": (
        LOOP.replace("BODY", "loss = 7 * net(x).square().mean()"),
        "the loss keeps the script's factor 7",
    ),
    "accumulation": (
        LOOP.replace("BODY", "for half in x.split(4): (0.5 * (net(half) - 1).square().mean()).backward()").replace(
            "    loss.backward()\n", ""
        ),
        "the factor 0.5 (accumulation) is taken out of the loss",
    ),
    "clipping": (
        LOOP.replace("BODY", "loss = net(x).square().mean()").replace(
            "    optimizer.step()", "    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)\n    optimizer.step()"
        ),
        "gradients are clipped to a norm of 0.25",
    ),
    "an error": (
        LOOP.replace("BODY", "loss = net(x).square().mean() / (1 if number < 2 else {}[number])"),
        "raised KeyError after 3 calls of modules that train, 2 backward passes, 2 optimizer steps",
    ),
}


@pytest.mark.parametrize("name", WHAT_WAS_SEEN)
def test_what_was_seen_of_a_script_is_said(name, tmp_path, verb):
    source, message = WHAT_WAS_SEEN[name]
    done = verb("diagnose", script(tmp_path, "", source), "--no-probe", "--json", "--fail-on", "never")
    assert done.exit_code == 0, done.stderr
    assert message in done.stderr


def test_options_that_a_script_decides_itself_are_refused(tmp_path, verb):
    path = script(tmp_path, "loss = net(x).square().mean()")
    for option, message in (("--device=cpu", "which chooses its own device"), ("--loss=mse", "whose own loss is used")):
        refused = verb("diagnose", path, "--no-probe", option)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert message in refused.stderr


def test_a_file_is_written_for_one_target_only(tmp_path, verb):
    path = script(tmp_path, "loss = net(x).square().mean()")
    done = verb("treat", path, path, "--out", tmp_path / "start.safetensors")
    assert done.exit_code == 2
    assert "expected one target where a file is written, got 2" in done.stderr


FOLDS = """
import torch
from torch import nn
torch.manual_seed(0)
outer = nn.Linear(4, 2)
meta = torch.optim.Adam(outer.parameters(), 1e-2)
for task in range(6):
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    if task == 2:
        net(torch.randn(16, 4)).square().mean().backward()
        meta.step()
"""


def test_an_optimizer_that_steps_later_is_waited_for_and_those_of_a_loop_are_one(tmp_path):
    found = theta0.capture(script(tmp_path, "", FOLDS), batches=2)
    assert [type(step.optimizer).__name__ for step in found.steps] == ["SGD", "Adam"]
    assert [step.observed.gradient_kept for step in found.steps] == [pytest.approx(1.0), 0.0]


OWN_NAMES = """
import torch
from torch import nn
torch.manual_seed(0)
def batches(x, size):
    return x.split(size)
def model(width):
    return nn.Linear(4, width)
net = model(2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(10):
    for part in batches(torch.randn(64, 4), 16):
        optimizer.zero_grad()
        net(part).square().mean().backward()
        optimizer.step()
"""
TARGET = "from torch import nn\ndef model():\n    return nn.Linear(4, 2)\n"
KINDS = {
    "functions with arguments": (OWN_NAMES, True),
    "batches that take nothing": (OWN_NAMES.replace("(x, size)", "()").replace("def model", "def make"), True),
    "a list of batches": ("batches = [1]\nloss.backward()", True),
    "both": (TARGET + "def batches(size=3):\n    return []\n", False),
    "both, and a training function": (
        TARGET + "def batches():\n    return []\ndef train(loss):\n    loss.backward()\n",
        False,
    ),
    "a model alone": (TARGET, False),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_is_a_target_where_it_defines_what_one_has(name, tmp_path):
    text, trains = KINDS[name]
    assert is_script(str(script(tmp_path, "", text))) is trains


def test_functions_of_a_script_may_have_a_targets_names(tmp_path, verb):
    found = verb("diagnose", script(tmp_path, "", OWN_NAMES), "--no-probe", "--fail-on", "never")
    assert found.exit_code == 0
    assert "SGD at 0.1" in found.output


STAGES = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 4)
body, head = nn.Linear(4, 8), nn.Linear(8, 3)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-2)
for _ in range(7):
    optimizer.zero_grad()
    head(body(x).relu()).square().mean().backward()
    optimizer.step()
del optimizer
body.requires_grad_(False)
for fold in range(2):
    tuned = torch.optim.SGD(head.parameters() if fold else head.parameters(), 0.1)
    head = nn.Linear(8, 2) if fold else head
    for _ in range(9):
        tuned.zero_grad()
        head(body(x).relu())[:, :2].square().mean().backward()
        tuned.step()
"""


def test_a_later_loop_is_chosen_by_its_number(tmp_path):
    path = script(tmp_path, "", STAGES)
    first, second, third = (theta0.capture(path, batches=3, loop=number).steps for number in (1, 2, 3))
    assert [type(steps[0].optimizer).__name__ for steps in (first, second, third)] == ["Adam", "SGD", "SGD"]
    assert [len(steps) for steps in (first, second, third)] == [1, 1, 1]
    assert [steps[0].observed.gradient_kept for steps in (first, second)] == [pytest.approx(1.0), pytest.approx(1.0)]
    assert third[0].observed.gradient_kept == 0.0  # the optimizer is older than its head
    with pytest.raises(theta0.CaptureError):
        theta0.capture(path, batches=3, loop=4)
