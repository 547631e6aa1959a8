"""What breaks tools on today's torch, when a model is changed: wrapped, parametrized, with vectors, with groups."""

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from cases import normal
from cases import unprobed as diagnose
from states import state_of
from theta0._batches import load_batches
from theta0._errors import InapplicableError
from theta0._trace.layers import layers
from theta0._weights import assign_weight
from theta0.treatment import REMEDIES, load_start_, save_start, treat
from theta0.treatment.searches import SEARCHES

FEW = {name: {"steps": 2} for name in SEARCHES} | {"mmd": {"steps": 2, "perturbations": 4}}


def learnable(width=6, count=4, size=32):
    x = normal(count * size, width)
    return list(zip(x.split(size), (x[:, 0] > 0).long().split(size), strict=True))


def deep_sigmoid():
    torch.manual_seed(0)
    parts = (p for _ in range(6) for p in (nn.Linear(16, 16), nn.Sigmoid()))
    return nn.Sequential(*parts, nn.Linear(16, 3))


def shrunken(depth=6, width=6):
    torch.manual_seed(0)
    model = nn.Sequential(*(p for _ in range(depth) for p in (nn.Linear(width, width), nn.Tanh())), nn.Linear(width, 2))
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=1e-2)
        nn.init.zeros_(layer.bias)
    return model


@pytest.fixture
def group(tmp_path):
    if not distributed.is_gloo_available():
        pytest.skip("torch was built without gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.slow
def test_a_distributed_wrapper_adds_no_prefix_and_gives_what_the_model_alone_gives(group, tmp_path):
    alone, wrapped = deep_sigmoid(), DistributedDataParallel(deep_sigmoid())
    data, options = learnable(16, count=8), {"with_": "lcw", "optimizer": "momentum", "learning_rate": 0.1, "steps": 12}
    before = state_of(wrapped.module)
    seen = diagnose(wrapped, data, "cross_entropy")
    assert state_of(wrapped.module) == before
    assert [(r.layer, r.quantity) for r in seen.records] == [
        (r.layer, r.quantity) for r in diagnose(alone, data, "cross_entropy").records
    ]
    found = treat(wrapped, data, "cross_entropy", generator=0, **options)
    assert found.kept, found.reason
    treat(alone, data, "cross_entropy", generator=0, **options)
    saved = save_start(wrapped, tmp_path / "start.safetensors", method=found.remedy)
    restored, again = deep_sigmoid(), DistributedDataParallel(deep_sigmoid())
    load_start_(restored, saved)
    load_start_(again, saved)
    for diagnosis in (seen, found.before, found.after):
        names = [r.layer for r in diagnosis.records] + [layer for f in diagnosis.findings for layer in f.layers]
        assert not [name for name in names if name.startswith("module")]
    x = data[0][0]
    for model in (wrapped.module, restored, again.module):
        torch.testing.assert_close(model(x), alone(x))
    wrapped(x).sum().backward()
    assert all(p.grad is not None for p in wrapped.parameters() if p.requires_grad)


class LowRank(nn.Module):
    """An adapter as LoRA writes it: the base weight, frozen, plus a product of two factors; it has no inverse."""

    def __init__(self, rows, columns, rank=2):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(rank, columns) * 0.1), nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight):
        return weight + self.b @ self.a


class Invertible(LowRank):
    """As one that can be assign_weight to: the base takes what the product does not give."""

    def right_inverse(self, weight):
        return weight - self.b @ self.a


def adapted(kind):
    model = shrunken()
    for layer in model[2:-1:2]:
        parametrize.register_parametrization(layer, "weight", kind(6, 6))
    with torch.no_grad():
        model[4].parametrizations.weight[0].b.fill_(0.3)
    return model


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [LowRank, Invertible])
def test_unit_variance_of_adapted_weights_is_reached_through_the_adapter_or_told(kind, frozen):
    model = adapted(kind)
    for layer in model[2:-1:2]:
        layer.parametrizations.weight.original.requires_grad_(not frozen)
    factors = {n: p.clone() for n, p in model.named_parameters() if n.endswith((".0.a", ".0.b"))}
    told = REMEDIES["unit-variance"](model, learnable(), generator=0).left
    why = "frozen" if frozen else "its parametrization cannot be assigned to"
    assert told == ({} if kind is Invertible and not frozen else {str(i): why for i in range(2, 11, 2)})
    assert all(torch.equal(p, factors[n]) for n, p in model.named_parameters() if n in factors)
    x = torch.cat([batch for batch, _ in learnable()])
    for path, layer in model.named_children():
        x = layer(x)
        if isinstance(layer, nn.Linear) and path not in told:
            assert x.std().item() == pytest.approx(1, rel=0.05), path


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", sorted(REMEDIES))
@pytest.mark.parametrize("kind", [LowRank, Invertible])
def test_every_remedy_survives_adapted_weights(kind, name):
    model = adapted(kind)
    before = state_of(model)
    try:
        REMEDIES[name](model, learnable(), "cross_entropy", generator=0, **FEW.get(name, {}))
    except ValueError:
        assert state_of(model) == before
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_weight_that_cannot_be_assigned_is_told_and_the_factors_are_no_layer(tmp_path):
    model = adapted(LowRank)
    before = state_of(model)
    with pytest.raises(ValueError, match="its parametrization cannot be assigned to"):
        assign_weight(model[4], "weight", torch.ones(6, 6))
    assert state_of(model) == before
    seen = {r.layer for r in diagnose(model, learnable(), "cross_entropy").records if "/" not in r.layer}
    assert "4" in seen
    assert not [r for r in layers(model, load_batches(learnable(), model)[0]) if "parametrizations" in r.path]
    saved = save_start(shrunken(), tmp_path / "start.safetensors")
    with pytest.raises(ValueError, match="does not follow an assignment"):
        load_start_(model, saved)
    assert state_of(model) == before


class Vectors(nn.Module):
    """Parameters of one axis and of none, for which Xavier's and He's rules raise."""

    def __init__(self):
        super().__init__()
        self.scale, self.gain, self.token = (nn.Parameter(torch.full(s, 0.5)) for s in ((6,), (), (1, 6)))
        self.norm, self.inner, self.head = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(self.norm(x * self.scale + self.token))) * self.gain)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(REMEDIES))
def test_parameters_with_fewer_than_two_axes_are_no_obstacle(name):
    model = Vectors()
    with pytest.raises(ValueError, match="fewer than 2"):
        nn.init.xavier_uniform_(model.scale)
    if name == "redraw":
        nn.init.constant_(model.inner.weight, 0.1)
    before = state_of(model)
    try:
        REMEDIES[name](model, learnable(), "cross_entropy", generator=0, **FEW.get(name, {}))
    except InapplicableError:
        assert state_of(model) == before
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert model.scale.shape == (6,)


def test_the_fans_of_grouped_and_transposed_convolutions_are_measured_and_not_believed():
    """A transposed convolution of stride 2 sums about a quarter of what its fan says, a depthwise one 1/groups."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 8, 3, groups=4),
    )  # fmt: skip
    x = normal(16, 3, 8, 8)
    REMEDIES["unit-variance"](model, [x])
    for layer in model:
        x = layer(x)
        if not isinstance(layer, nn.ReLU):
            assert x.std().item() == pytest.approx(1, rel=0.05)
