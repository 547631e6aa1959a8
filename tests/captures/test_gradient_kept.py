"""How much of the gradient the step of a script's optimizer finds, and what is said where that is hardly any."""

import pytest
import torch
from torch import nn

import theta0

CLIP = "nn.utils.clip_grad_norm_(net.parameters(), {})"
SGD, MOMENTUM = "torch.optim.SGD(net.parameters(), 0.1)", "torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)"
ADAM, ADAMW = "torch.optim.Adam(net.parameters(), 1e-2)", "torch.optim.AdamW(net.parameters(), 1e-2)"
LOSS = "nn.functional.cross_entropy(net(x[part]), y[part])"
LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = {optimizer}
scaler = torch.amp.GradScaler("cpu", enabled={scaled}, init_scale=2.0**14)
x = torch.randn(640, 8)
y = x[:, :3].argmax(1)
for number in range(10 * {micro}):
    part = slice(number * 32 % 640, number * 32 % 640 + 32)
    loss = {loss} / {micro}
    scaler.scale(loss).backward()
    if (number + 1) % {micro} == 0:
        {between}
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def captured(tmp_path, optimizer, between="pass", *, scaled=False, micro=1, loss=LOSS):
    path = tmp_path / "train.py"
    options = {"optimizer": optimizer, "between": between, "scaled": scaled, "micro": micro, "loss": loss}
    path.write_text(LOOP.format(**options))
    found = theta0.capture(path, batches=3 * micro)
    assert found.error is None
    return found.steps


def lost(step, steps=0):
    found = theta0.diagnose(**step.arguments, probe_steps=steps)
    return [f.severity for f in found.findings if f.code == "lost-gradient"]


WHOLE = {
    "plain": (SGD, "pass", {}),
    "adam": (ADAM, "pass", {}),
    "accumulation": (SGD, "pass", {"micro": 4}),
    "scaler": (SGD, "pass", {"scaled": True}),
    "scaler, unscaled": (MOMENTUM, "scaler.unscale_(optimizer)", {"scaled": True}),
    "scaler and accumulation": (ADAMW, "scaler.unscale_(optimizer)", {"scaled": True, "micro": 4}),
    "large factor": (SGD, "pass", {"loss": f"50 * {LOSS}"}),
    "small factor": (SGD, "pass", {"loss": f"1e-3 * {LOSS}"}),
    "clipped where it is small": (SGD, CLIP.format(100.0), {}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WHOLE)
def test_all_of_the_gradient_is_kept_whatever_scales_the_loss(name, tmp_path):
    optimizer, between, options = WHOLE[name]
    (step,) = captured(tmp_path, optimizer, between, **options)
    assert step.observed.gradient_kept == pytest.approx(1.0, rel=1e-4)
    assert lost(step) == []


RESET = {
    "optimizer": "optimizer.zero_grad()",
    "module": "net.zero_grad()",
    "zeros": "optimizer.zero_grad(set_to_none=False)",
    "one by one": "[p.grad.zero_() for p in net.parameters()]",
    "multiplied by zero": "[p.grad.mul_(0) for p in net.parameters()]",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("name", RESET)
def test_gradients_that_are_reset_before_the_step_are_an_error(name, optimizer, tmp_path):
    (step,) = captured(tmp_path, optimizer, RESET[name])
    assert step.observed.gradient_kept == 0.0
    assert lost(step) == ["error"]


CLIPPED = {
    "sgd": (SGD, CLIP.format(1e-8), {}, ["error"]),
    "momentum": (MOMENTUM, CLIP.format(1e-8), {}, ["error"]),
    "adam": (ADAM, CLIP.format(1e-9), {}, ["error"]),
    "adam, below epsilon": (ADAM, CLIP.format(1e-8), {}, ["warning"]),
    "adam, whatever the norm": (ADAM, CLIP.format(1e-5), {}, []),
    "sgd, short steps": (SGD, CLIP.format(1e-3), {}, ["warning"]),
    "ordinary": (SGD, CLIP.format(0.1), {}, []),
    "ordinary, of a large gradient": (SGD, CLIP.format(1.0), {"loss": f"(1e3 * {LOSS}).square()"}, []),
    "by value": (SGD, "nn.utils.clip_grad_value_(net.parameters(), 1e-9)", {}, ["error"]),
    "by hand": (SGD, "[p.grad.mul_(1e-7) for p in net.parameters()]", {}, ["error"]),
    "accumulated": (SGD, CLIP.format(1e-8), {"micro": 4}, ["error"]),
    "before the scale is taken out": (SGD, CLIP.format(1.0), {"scaled": True}, ["error"]),
    "after it": (SGD, "scaler.unscale_(optimizer); " + CLIP.format(0.1), {"scaled": True}, []),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CLIPPED)
def test_clipping_is_an_error_where_the_step_does_not_move_the_weights(name, tmp_path):
    optimizer, between, options, severities = CLIPPED[name]
    (step,) = captured(tmp_path, optimizer, between, **options)
    assert 0 < step.observed.gradient_kept < 1
    assert lost(step) == severities


def test_the_share_is_that_of_the_norms():
    """Against the norms that the loop itself computes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer, shares = torch.optim.SGD(net.parameters(), 0.1), []
    with theta0.capture_steps(batches=6) as found:
        for _ in range(20):
            net(torch.randn(16, 8)).square().mean().backward()
            shares.append(1e-3 / float(nn.utils.clip_grad_norm_(net.parameters(), 1e-3)))
            optimizer.step()
            optimizer.zero_grad()
    assert found.steps[0].observed.gradient_kept == pytest.approx(sorted(shares)[len(shares) // 2], rel=1e-3)


def test_only_the_parameters_of_the_optimizer_count():
    """Each of two optimizers finds all of its own gradient, and one that comes too late none."""
    for early, kept in ((False, [1.0, 1.0]), (True, [1.0, 0.0])):
        torch.manual_seed(0)
        body, head = nn.Linear(8, 16), nn.Linear(16, 1)
        first, second = torch.optim.SGD(body.parameters(), 0.1), torch.optim.Adam(head.parameters(), 1e-3)
        with theta0.capture_steps(batches=3) as found:
            for _ in range(10):
                head(torch.tanh(body(torch.randn(16, 8)))).square().mean().backward()
                first.step()
                if early:
                    head.zero_grad()
                second.step()
                body.zero_grad()
                head.zero_grad()
        assert [step.observed.gradient_kept for step in found.steps] == pytest.approx(kept)


def test_nothing_is_known_of_a_step_that_evaluates_the_loss_itself():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), torch.randn(32, 8)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    with theta0.capture_steps(batches=6) as found:
        for _ in range(10):
            optimizer.step(closure)
    assert found.steps[0].observed.gradient_kept is None


def test_short_runs_that_train_do_not_refute_it(tmp_path):
    (step,) = captured(tmp_path, ADAM, "optimizer.zero_grad()")
    found = theta0.diagnose(**step.arguments)
    assert found.probe.runs[0].outcome == "trains"
    assert (found.findings[0].code, found.findings[0].severity) == ("lost-gradient", "error")
    assert not found.healthy
    assert "Short runs make steps of their own" in found.findings[0].message


OTHER = """
import torch
from torch import nn
torch.manual_seed(0)
online, target = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(2))
optimizer = torch.optim.Adam(online.parameters(), 1e-3)
for number in range(40):
    with torch.no_grad():
        value = online(torch.randn(32, 8)).amax(1)
    loss = nn.functional.smooth_l1_loss(value, 0.9 * target(torch.randn(32, 8)).amax(1) + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_loss_that_depends_on_another_network_gives_the_optimizer_nothing(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(OTHER)
    (step,) = theta0.capture(path).steps
    assert step.observed.gradient_kept == 0
    assert lost(step) == ["error"]


def test_the_norm_that_gradients_are_clipped_to_is_seen(tmp_path):
    for between, options, expected in (
        (CLIP.format(0.05), {}, 0.05),
        ("scaler.unscale_(optimizer); " + CLIP.format(0.05), {"scaled": True}, 0.05),
        (CLIP.format(0.05), {"micro": 4}, 0.05),
        ("pass", {}, None),
        (CLIP.format(100.0), {}, None),
        ("[p.grad.mul_(0.5) for p in net.parameters()]", {}, None),
    ):
        (step,) = captured(tmp_path, SGD, between, **options)
        assert step.clip_norm == (expected if expected is None else pytest.approx(expected, rel=1e-3)), between


def test_a_high_rate_is_judged_with_the_clipping_that_it_needs(tmp_path):
    """As recurrent language models are trained: a rate of 20, and gradients clipped to a norm of 0.25."""
    scaled = "nn.functional.cross_entropy(10 * net(x[part]), y[part])"
    (step,) = captured(tmp_path, "torch.optim.SGD(net.parameters(), 2.0)", CLIP.format(0.05), loss=scaled)
    found, bare = (theta0.diagnose(**step.arguments | more) for more in ({}, {"clip_norm": None}))
    assert found.probe.outcome == "trains"
    assert found.probe.runs[0].rate == 2.0
    assert bare.probe.runs[0].losses[-1] > found.probe.runs[0].losses[-1]
    assert not [f for f in found.findings if f.code == "learning-rate-too-high" and f.severity != "note"]
