"""The published procedures step by step against a plain float64 one, and which start counts as better."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from states import state_of
from theta0.initializers import initialize
from theta0.initializers.nio import research_cuts
from theta0.initializers.scale_search import _fault as fault
from theta0.initializers.scaled_network import Objective, Quality
from theta0.papers.models import cifar_resnet
from theta0.papers.yang2022nio.appendix import recipe_for

SAMPLES, CLASSES, RATE = 20, 3, 0.05
CUTS = [slice(0, 14), slice(6, 20)]  # two of B / (1 + 0.4) samples that share six tenths


def network(*, batch_norm: bool) -> nn.Sequential:
    generator = torch.Generator().manual_seed(3)
    norm = nn.BatchNorm1d(7) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Linear(5, 7), norm, nn.Tanh(), nn.Linear(7, CLASSES)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.4 + 0.1)
    return model


def data(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(count, SAMPLES, 5, generator=generator, dtype=torch.float64)
    return [(part, (part.sum(1) > 0).long() + (part[:, 0] > 1).long()) for part in x]


def gradients(model, values, batch, cuts, *, whole):
    """g_d by every parameter, differentiable by the scales."""
    x, y = batch
    outputs = functional_call(model, values, (x,)) if whole else None
    flat = []
    for cut in cuts:
        scores = outputs[cut] if whole else functional_call(model, values, (x[cut],))
        found = torch.autograd.grad(F.cross_entropy(scores, y[cut]), list(values.values()), create_graph=True)
        flat.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(flat)


def plain_nio(model, batches, cap, *, research: bool) -> dict[str, float]:
    """Adam on the scales, in plain autograd: ∇ by s of a function of ∇ by θ at θ = s ∘ θ₀."""
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    scaled = [n for n in start if not research or not n.startswith("1.")]  # the research code leaves norms alone
    scales = {n: torch.ones((), dtype=torch.float64, requires_grad=True) for n in start}
    first = {kind: torch.zeros(len(scaled), dtype=torch.float64) for kind in (True, False)}
    counts, second = {True: 0, False: 0}, torch.zeros(len(scaled), dtype=torch.float64)
    for batch in batches:
        values = {n: start[n] * scales[n] for n in start}
        cuts = research_cuts_of(len(batch[0])) if research else CUTS
        g = gradients(model, values, batch, cuts, whole=research)
        norms = g.norm(dim=1)
        cosine = (g @ g.T) / torch.outer(norms, norms)
        norm = norms.mean() if research else norms.max()
        constrained = float(norm.detach()) > cap
        if constrained:
            objective = norm
        elif research:
            objective = -(cosine.sum() - cosine.trace()) / (len(cuts) * (len(cuts) - 1)) - norms.square().sum()
        else:
            objective = -cosine.mean()
        wanted = [scales[n] for n in scaled]
        slope = torch.stack(torch.autograd.grad(objective, wanted)).clamp(-1, 1)
        counts[constrained] += 1
        first[constrained] = 0.9 * first[constrained] + 0.1 * slope
        second = 0.999 * second + 0.001 * slope.square()
        mean = first[constrained] / (1 - 0.9 ** counts[constrained])
        spread = second / (1 - 0.999 ** sum(counts.values()))
        least = torch.tensor([0.0 if research and n.endswith("bias") else 0.01 for n in scaled]).double()
        moved = torch.maximum(torch.stack(wanted).detach() - RATE * mean / (spread.sqrt() + 1e-8), least)
        for n, value in zip(scaled, moved, strict=True):
            scales[n] = value.clone().requires_grad_()
    return {n: float(scales[n].detach()) for n in scaled}


def research_cuts_of(samples: int) -> list[slice]:
    half = samples // 2
    return [slice(0, int(1.6 * half)), slice(int(0.4 * half), samples)]


@pytest.mark.parametrize("research", [False, True])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_published_search_is_adam_on_the_scales_over_one_pass_of_all_batches(research, batch_norm):
    model, batches = network(batch_norm=batch_norm), data(12)
    x, y = batches[0]
    start = gradients(model, dict(model.named_parameters()), (x, y), CUTS, whole=research).norm(dim=1)
    cap = 0.97 * float(start.max().detach())  # steps of both kinds are made
    wanted = plain_nio(network(batch_norm=batch_norm), batches, cap, research=research)
    name = "research" if research else "published"
    found = initialize(
        "nio",
        model,
        batches,
        "cross_entropy",
        algorithm=name,
        steps=None,
        learning_rate=RATE,
        gradient_norm_cap=cap,
        cap_unit="absolute",
    )
    assert 0 < found.constrained_share < 1
    assert (found.kept, found.interpolation, found.stalls, found.steps) == (True, 1.0, 0, 12)
    assert found.scales == pytest.approx(wanted, rel=1e-6)
    for n, p in model.named_parameters():
        torch.testing.assert_close(
            p.detach(), dict(network(batch_norm=batch_norm).named_parameters())[n] * wanted.get(n, 1.0)
        )


def test_sub_batches_of_one_pass_have_the_whole_batchs_statistics():
    model, batches = network(batch_norm=True), data(8)
    found = initialize("nio", model, batches, "cross_entropy", steps=1, whole_batch=True)
    plain = network(batch_norm=True)
    cosines = []
    for batch in batches[-2:]:  # the last quarter is held out
        g = gradients(plain, dict(plain.named_parameters()), batch, CUTS, whole=True).detach()
        g = g / g.norm(dim=1, keepdim=True)
        cosines.append(float((g @ g.T).mean()))
    assert found.before.objective == pytest.approx(sum(cosines) / 2, rel=1e-9)
    apart = initialize("nio", network(batch_norm=True), batches, "cross_entropy", steps=1)
    assert abs(apart.before.objective - found.before.objective) > 1e-4


def test_sub_batches_of_one_pass_need_outputs_to_share():
    model = nn.Linear(5, 1).double()
    before = state_of(model)
    with pytest.raises(ValueError, match="whole_batch: expected a loss of outputs"):
        initialize("nio", _Mean(model), data(4), lambda out, y: out, whole_batch=True)
    assert state_of(model) == before


class _Mean(nn.Module):
    """A model whose output has no axis of samples."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()


@pytest.mark.parametrize(
    ("before", "after", "better"),
    [
        ((0.9, 42.0), (0.5, 3.951), True),  # within the cap beats beyond it, whatever the objective
        ((0.9, 42.0), (0.99, 4.1), False),  # beyond the cap is never kept
        ((0.5, 3.0), (0.6, 3.99), True),  # no margin in the judgement
        ((0.6, 3.0), (0.5, 2.0), False),
        ((0.5, 3.0), (0.5, 2.0), False),
        ((0.5, 3.0), (math.nan, 2.0), False),
    ],
)
def test_a_start_within_the_cap_beats_one_beyond_it(before, after, better):
    objective = Objective("nio", "GradCosine", True, None, None, 1.0)
    assert (fault(Quality(*before), Quality(*after), 4.0, objective) == "") is better


@pytest.mark.slow
def test_a_start_beyond_the_cap_is_left_for_one_within_it():
    model, batches = network(batch_norm=False), data(8)
    with torch.no_grad():
        model[3].weight.mul_(40)
    found = initialize("nio", model, batches, "cross_entropy", gradient_norm_cap=4.0, cap_unit="absolute", steps=100)
    assert found.before.gradient_norm > 4
    assert found.kept, found.reason
    assert found.after.gradient_norm <= 4
    assert "within its cap of 4" in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_deep_network_without_batch_normalization_gets_under_its_published_cap(seed):
    """ResNet-110's recipe (γ = 4, τ = .015, r = .7) on a smaller network that starts at norms of 50 and more."""
    generator = torch.Generator().manual_seed(seed)
    model = cifar_resnet(20, width=4, batch_norm=False, generator=generator)
    y = torch.randint(10, (8, 64), generator=generator)
    x = torch.randn(8, 64, 3, 16, 16, generator=generator) + torch.randn(10, 3, 16, 16, generator=generator)[y]
    recipe = recipe_for("resnet110", False, 10)
    options = recipe.keywords(64) | {"algorithm": "verified", "steps": 70}
    found = initialize("nio", model, list(zip(x, y, strict=True)), "cross_entropy", **options, generator=seed)
    assert found.before.gradient_norm > recipe.gamma
    assert found.after.gradient_norm <= recipe.gamma
    assert found.kept, found.reason


def test_the_research_codes_ranges():
    class Sized:
        size, number = 20, 0

    assert research_cuts(Sized(), 2, 0.6) == research_cuts_of(20)
