"""Where samples lie inside a network must not depend on lengths that happen to coincide."""

import pytest
import torch
from layout_cases import LAYOUTS, WIDTH, built
from torch import nn

from theta0._state import twice_differentiable
from theta0.measurements.perturbed_outputs import neighbourhood, sampled

SAMPLES = 2
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_length = pytest.mark.parametrize("length", [4, 5, 12])


@pytest.mark.sampled(4)
@each_layout
@each_length
@pytest.mark.parametrize("prefer", ["explicit", "gram"])
def test_perturbed_outputs_do_not_depend_on_how_perturbations_are_split(layout, length, prefer):
    model, inputs = built(layout, length, SAMPLES)
    seeds = torch.arange(6)
    with twice_differentiable(model), torch.no_grad():
        around = neighbourhood(model, inputs, 0.7)
        alone = torch.cat([sampled(around, inputs, seed[None], prefer=prefer).logits for seed in seeds])
        one = round(around.bytes * SAMPLES + around.weight_bytes * (prefer == "explicit" or layout == "folded"))
        found = [sampled(around, inputs, seeds, memory=k * one + 9, prefer=prefer) for k in (1, 2, 3, 60)]
    assert len({result.chunks for result in found}) >= 3
    assert (around.obstacle is None) == (layout != "folded")
    for result in found:
        torch.testing.assert_close(result.logits, alone, rtol=1e-9, atol=1e-9)


@each_layout
@pytest.mark.parametrize("count", [2, 4])
def test_perturbed_outputs_are_those_of_one_sample_at_a_time(layout, count):
    model, inputs = built(layout, 8, SAMPLES)
    seeds = torch.arange(count)
    with twice_differentiable(model), torch.no_grad():
        around = neighbourhood(model, inputs, 0.7)
        together = sampled(around, inputs, seeds, prefer="explicit").logits
        apart = torch.cat([sampled(around, x[None], seeds, prefer="explicit").logits for x in inputs], 1)
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-9)


class Switching(nn.Module):
    """Lays its samples out in another way where there are many rows."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        rows = self.body(x.transpose(0, 1)).transpose(0, 1) if len(x) > 6 else self.body(x)
        return self.head(rows.mean(1))


def test_a_layout_that_was_not_looked_at_takes_a_pass_for_each_perturbation():
    model, inputs = Switching().double(), built("batch first", 5, SAMPLES)[1]
    seeds = torch.arange(6)
    with twice_differentiable(model):
        around = neighbourhood(model, inputs, 0.7)
        assert around.obstacle is None
        found = sampled(around, inputs, seeds)
        assert set(found.routes.values()) == {"pass"}
        split = sampled(around, inputs, seeds[:3])
    assert set(split.routes.values()) <= {"gram", "explicit"}


def test_the_gram_route_runs_inside_attention():
    model, inputs = built("attention, batch first", 2, SAMPLES)
    with twice_differentiable(model), torch.no_grad():
        around = neighbourhood(model, inputs, 0.7)
        routes = sampled(around, inputs, torch.arange(3), prefer="gram").routes
    assert {routes[f"layer.self_attn.{name}"] for name in ("in_proj_weight", "out_proj.weight")} == {"gram"}
