"""The learning rates that a script's schedule sets, and what is said where they lead nowhere."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

import theta0
from theta0.captures.schedules import scheduled_rates
from theta0.diagnosis import ObservedTraining
from theta0.diagnosis.rules.learning_rate_too_low import _scheduled

LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.{optimizer}
S = torch.optim.lr_scheduler
schedule = {schedule}
x = torch.randn(640, 8)
y = x[:, :3].argmax(1)
for epoch in range(3):
    for part in range(0, 640, 32):
        loss = nn.functional.cross_entropy(net(x[part:part + 32]), y[part:part + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {batch}
    {epoch}
"""
SGD = "SGD(net.parameters(), 0.1)"


def captured(tmp_path, schedule, batch="schedule.step()", epoch="pass", optimizer=SGD):
    path = tmp_path / "train.py"
    path.write_text(LOOP.format(schedule=schedule, batch=batch, epoch=epoch, optimizer=optimizer))
    return theta0.capture(path).steps[0]


def low(step, **options):
    found = theta0.diagnose(**step.arguments, probe_steps=0, **options).findings
    return [(f.severity, "schedule" in f.message) for f in found if f.code == "learning-rate-too-low"]


KINDS = {
    "exponential": lambda o: schedules.ExponentialLR(o, 0.9),
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: min(1.0, (step + 1) / 50)),
    "sequence": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=20), schedules.CosineAnnealingLR(o, 100)], [20]
    ),
    "chained": lambda o: schedules.ChainedScheduler(
        [schedules.ExponentialLR(o, 0.99), schedules.ConstantLR(o, 0.5, total_iters=9)]
    ),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.5, total_steps=80),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_rates_to_come_are_those_that_the_scheduler_then_sets(name):
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1, momentum=0.9)
    scheduler = KINDS[name](optimizer)
    rates = []

    def step():
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()

    for _ in range(5):
        step()
    state, rate = scheduler.state_dict(), optimizer.param_groups[0]["lr"]
    ahead = scheduled_rates(optimizer, list(rates), [scheduler])
    assert (scheduler.state_dict(), optimizer.param_groups[0]["lr"]) == (state, rate)
    for _ in range(60):
        step()
    assert ahead[:65] == pytest.approx(rates)


TO_NOTHING = {
    "made for epochs": ("S.ExponentialLR(optimizer, 0.1)", "schedule.step()", "error"),
    "step after step": ("S.StepLR(optimizer, 1, 0.5)", "schedule.step()", "error"),
    "by hand": ("None", "optimizer.param_groups[0]['lr'] *= 0.3", "error"),
    "always zero": ("S.LambdaLR(optimizer, lambda e: 0.0 * e)", "schedule.step()", "error"),
    "slowly": ("S.ExponentialLR(optimizer, 0.94)", "schedule.step()", "warning"),
    "whole division": ("S.LambdaLR(optimizer, lambda s: min(1, s // 100))", "schedule.step()", "warning"),
}
SOUND = {
    "once an epoch": ("S.ExponentialLR(optimizer, 0.1)", "pass"),
    "slow": ("S.ExponentialLR(optimizer, 0.999)", "schedule.step()"),
    "warm-up from zero": ("S.LambdaLR(optimizer, lambda s: min(1, s / 100))", "schedule.step()"),
    "half a cosine": ("S.CosineAnnealingLR(optimizer, 60)", "schedule.step()"),
    "short line": ("S.LinearLR(optimizer, 1.0, 0.0, 20)", "schedule.step()"),
    "one cycle": ("S.OneCycleLR(optimizer, 0.1, total_steps=60)", "schedule.step()"),
    "by hand": ("None", "optimizer.param_groups[0]['lr'] *= 0.999"),
    "none": ("None", "pass"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TO_NOTHING)
def test_a_schedule_that_leads_nowhere_is_named(name, tmp_path):
    schedule, batch, severity = TO_NOTHING[name]
    assert low(captured(tmp_path, schedule, batch)) == [(severity, True)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SOUND)
def test_any_other_schedule_is_left_alone(name, tmp_path):
    schedule, batch = SOUND[name]
    epoch = "schedule.step()" if name == "once an epoch" else "pass"
    assert not any(said for _, said in low(captured(tmp_path, schedule, batch, epoch)))


def test_the_rate_is_the_highest_that_the_schedule_sets_and_not_the_initial_one(tmp_path):
    noam = "S.LambdaLR(optimizer, lambda s: 64**-0.5 * min((s + 1) ** -0.5, (s + 1) * 400**-1.5))"
    step = captured(tmp_path, noam, optimizer="Adam(net.parameters(), 1.0)")
    assert step.learning_rate == pytest.approx(64**-0.5 * 400**-0.5, rel=1e-2)


def test_what_all_steps_are_worth_is_a_geometric_series():
    assert _scheduled([0.5**n for n in range(5)]).value == pytest.approx(2.0)
    assert _scheduled([1.0, 1.0, 1.0, 1.0]) is None
    assert _scheduled([math.cos(n / 30) for n in range(40)]) is None


def test_the_rate_of_one_side_of_a_game_is_not_called_too_low():
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model, batches = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)), [(x, x[:, :3].argmax(1))]
    codes = [
        [
            f.code
            for f in theta0.diagnose(
                model, batches, "cross_entropy", learning_rate=1e-7, observed=ObservedTraining(opposed=opposed)
            ).findings
        ]
        for opposed in (False, True)
    ]
    assert ["learning-rate-too-low" in found for found in codes] == [True, False]


def test_a_warm_up_by_hand_that_still_rises_is_not_called_too_low():
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    model, batches = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3)), [(x, x[:, :3].argmax(1))]
    codes = [
        [
            f.code
            for f in theta0.diagnose(
                model, batches, "cross_entropy", learning_rate=5e-7, observed=ObservedTraining(rates=rates)
            ).findings
        ]
        for rates in ([1e-7 * n for n in range(1, 6)], [5e-7] * 5)
    ]
    assert ["learning-rate-too-low" in found for found in codes] == [False, True]
