"""Each remedy: what it changes, what it leaves, and the ways of torch that break tools like it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from cases import each_diverse_case, normal
from states import randomness, state_of
from theta0._batches import load_batches
from theta0._errors import InapplicableError
from theta0._models import unwrapped
from theta0.measurements.residual_stream import residual_stream
from theta0.treatment import REMEDIES
from theta0.treatment.draws import still_zero
from theta0.treatment.searches import SEARCHES


class Block(nn.Module):
    def __init__(self, width, end=None):
        super().__init__()
        self.first, self.last, self.end = nn.Linear(width, width), nn.Linear(width, width), end

    def forward(self, x):
        y = self.last(F.relu(self.first(x)))
        return x + (y if self.end is None else self.end(y))


def residual(depth=6, width=8, end=lambda: None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), *(Block(width, end()) for _ in range(depth)), nn.Linear(width, 3))


def data(width=6, count=3, samples=16):
    return [(normal(samples, width, seed=i), torch.arange(samples) % 3) for i in range(count)]


@each_diverse_case
@pytest.mark.parametrize("name", sorted(set(REMEDIES) - {"unit-variance", "lcw", "centre"} - set(SEARCHES)))
def test_a_remedy_changes_values_only_or_nothing_at_all(case, name):
    if case.name == "lazy":
        pytest.skip("told by every remedy alike")
    model = case.model()
    inner = unwrapped(model)
    before, drawn = state_of(inner), randomness()
    try:
        REMEDIES[name](model, case.batches(), case.loss, generator=0)
    except ValueError:
        assert state_of(inner) == before
    after = state_of(inner)
    assert randomness() == drawn
    assert list(after) == list(before)
    for name_, value in after.items():
        if isinstance(value, tuple) and len(value) == 7:  # identity, shape, type, gradient, requires_grad
            assert value[0] == before[name_][0], name_
            assert value[3:] == before[name_][3:], name_
    frozen = [name_ for name_, p in inner.named_parameters() if not p.requires_grad]
    assert all(f"parameter {n}" not in before or after[f"parameter {n}"] == before[f"parameter {n}"] for n in frozen)


def test_branches_are_found_by_their_additions():
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.skip = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(2, 4, 1)
            self.norm, self.gain = nn.BatchNorm2d(4), nn.Parameter(torch.ones(4, 1, 1))
            self.c = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = x * 1.0
            x = self.skip(x) + self.norm(self.b(self.a(x)))
            x = torch.add(x, self.gain * self.c(x))
            y = F.relu(self.c(x))
            y += x
            return y.mean((2, 3)) + 1.0

    model = Projected()
    found = residual_stream(model, load_batches([(normal(2, 2, 4, 4), torch.zeros(2))], model)[0]).endings
    assert [ending.name for ending in found] == ["norm.weight", "gain", "c.weight"]


def test_embeddings_added_up_and_plain_chains_are_no_branches():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places, self.head = nn.Embedding(5, 4), nn.Embedding(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.words(x) + self.places.weight)

    model = Sum()
    assert residual_stream(model, load_batches([(torch.zeros(2, 3, dtype=torch.long), None)], model)[0]).endings == ()
    with pytest.raises(InapplicableError, match="at least two residual branches"):
        REMEDIES["branch-scale"](nn.Sequential(nn.Linear(6, 3)), data())


def test_attention_blocks_end_at_their_output_projection():
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False)
    found = residual_stream(layer, load_batches([(normal(2, 3, 8), None)], layer)[0]).endings
    ends = [name for i in (0, 1) for name in (f"layers.{i}.self_attn.out_proj.weight", f"layers.{i}.linear2.weight")]
    assert [e.name for e in found][-3:] == ends[-3:]


def test_branch_scale_bounds_the_growth_of_a_deep_stack():
    """Of L branches of variance v each the scaled stack grows by (1 + v/L)^L < e^v, the given one by (1 + v)^L."""
    model = residual(depth=30, width=32)
    for block in model[1:-1]:
        for layer in (block.first, block.last):
            nn.init.kaiming_normal_(layer.weight)
    before = model[:-1](data()[0][0]).square().mean().item()
    REMEDIES["branch-scale"](model, data())
    scaled = model[:-1](data()[0][0]).square().mean().item()
    start = model[:1](data()[0][0]).square().mean().item()
    assert before > 1e4 * start
    assert scaled < 10 * start
    REMEDIES["branch-zero"](model, data())
    torch.testing.assert_close(model[:-1](data()[0][0]), model[:1](data()[0][0]))


def test_a_normalised_branch_is_scaled_behind_its_normalisation():
    model = residual(end=lambda: nn.LayerNorm(8))
    weights = [block.last.weight.clone() for block in model[1:-1]]
    REMEDIES["branch-zero"](model, data())
    assert all(not block.end.weight.any() for block in model[1:-1])
    assert all(torch.equal(block.last.weight, w) for block, w in zip(model[1:-1], weights, strict=True))


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrised_ends_are_assigned_through_or_left_as_they_were(wrap):
    """A weight written past its parametrization is lost; spectral norm undoes any scale."""
    model = residual()
    for block in model[1:-1]:
        wrap(block.last)
    model.eval()
    before, norms = state_of(model), [b.last.weight.norm().item() for b in model[1:-1]]
    if wrap is parametrizations.spectral_norm:
        with pytest.raises(ValueError, match="does not follow an assignment"):
            REMEDIES["branch-scale"](model, data())
        assert state_of(model) == before
        return
    assert REMEDIES["branch-scale"](model, data()).left == {}
    scaled = [b.last.weight.norm().item() for b in model[1:-1]]
    assert scaled == pytest.approx([n / math.sqrt(6) for n in norms], rel=1e-4)


def test_half_precision_is_drawn_in_float32_and_stays_half():
    model = nn.RNN(4, 8, nonlinearity="relu", batch_first=True).half()
    REMEDIES["recurrent"](model, [normal(2, 5, 4).half()], generator=0)
    w = model.weight_hh_l0
    assert w.dtype is torch.float16
    torch.testing.assert_close(w.float() @ w.float().T, torch.eye(8), atol=5e-3, rtol=0)


def test_recurrent_weights_are_orthogonal_gate_by_gate():
    model = nn.LSTM(4, 8, batch_first=True)
    REMEDIES["recurrent"](model, [normal(2, 5, 4)], generator=0)
    for block in model.weight_hh_l0.detach().split(8):
        torch.testing.assert_close(block @ block.T, torch.eye(8), atol=1e-5, rtol=0)


def test_long_memory_spans_what_the_sequences_span():
    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(4, 16)

        def forward(self, x):
            h = c = x.new_zeros(len(x), 16)
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
            return h

    for model, module, (b, other) in (
        (lstm := nn.LSTM(4, 16, batch_first=True), lstm, ("bias_hh_l0", "bias_ih_l0")),
        (cells := Cells(), cells.cell, ("bias_hh", "bias_ih")),
    ):
        REMEDIES["long-memory"](model, [normal(2, 50, 4)], generator=0)
        gates, rest = getattr(module, b).detach().view(4, 16), getattr(module, other).detach().view(4, 16)
        assert (gates[1] >= 0).all()
        assert math.log(49) >= gates[1].max() > math.log(10)
        assert torch.equal(gates[0], -gates[1])
        assert not rest[:2].any()
        assert rest[2:].any()
    with pytest.raises(InapplicableError):
        REMEDIES["long-memory"](nn.RNN(4, 8, batch_first=True), [normal(2, 50, 4)])


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.zeros(2, 6)), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def test_of_two_zero_factors_one_is_drawn_and_the_function_stays():
    model = Adapted(nn.Linear(6, 3))
    batch = load_batches(data(), model)[0]
    before = model(batch.inputs)
    assert still_zero(model, batch, "cross_entropy", ["a", "b"]) == ["a", "b"]
    REMEDIES["wake"](model, data(), "cross_entropy", generator=0)
    assert model.a.any()
    assert not model.b.any()
    torch.testing.assert_close(model(batch.inputs), before)
    assert still_zero(model, batch, "cross_entropy", ["a", "b"]) == []
    with pytest.raises(InapplicableError):
        REMEDIES["wake"](model, data(), "cross_entropy")


def test_a_rectified_gate_of_zeros_is_drawn_but_no_bias():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.gate, self.head = nn.Linear(6, 16), nn.Parameter(torch.zeros(16)), nn.Linear(16, 3)
            nn.init.zeros_(self.inner.bias)

        def forward(self, x):
            return self.head(self.inner(x) * F.relu(self.gate))

    model = Gated()
    REMEDIES["wake"](model, data(), "cross_entropy", generator=0)
    assert model.gate.any()
    assert model.gate.abs().max() <= 0.25
    assert not model.inner.bias.any()


def test_copies_are_redrawn_with_the_gain_of_what_they_feed_and_zeros_are_left():
    model = nn.Sequential(nn.Linear(6, 400), nn.ReLU(), nn.Linear(400, 200), nn.Tanh(), nn.Linear(200, 3))
    for p in model.parameters():
        nn.init.constant_(p, 0.01)
    nn.init.zeros_(model[4].weight)
    REMEDIES["redraw"](model, data(), generator=0)
    assert model[0].weight.std().item() == pytest.approx(math.sqrt(2 / 6), rel=0.05)
    assert model[2].weight.std().item() == pytest.approx(5 / 3 / math.sqrt(400), rel=0.05)
    assert not model[0].bias.any()
    assert not model[4].weight.any()


def test_memory_as_it_was_is_drawn_anew():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    kept = model[0].weight.clone()
    with torch.no_grad():
        model[0].bias.fill_(1e30)
        model[2].weight[0, 0] = torch.nan
    REMEDIES["redraw"](model, data(), generator=0)
    assert torch.equal(model[0].weight, kept)
    assert not model[0].bias.any()
    assert model[2].weight.isfinite().all()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(4, 32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.norm(self.words(x) + self.places.weight)).transpose(1, 2)


def test_a_tied_matrix_is_scaled_once_and_its_summands_alike():
    model = Tied()
    tokens = [(torch.randint(50, (8, 4), generator=torch.Generator().manual_seed(i)),) * 2 for i in range(3)]
    words, places = model.words.weight.clone(), model.places.weight.clone()
    shifted = [(x, (y + 1) % 50) for x, y in tokens]
    REMEDIES["tied-scale"](model, shifted, "cross_entropy")
    assert model.head.weight is model.words.weight
    factor = (model.words.weight / words).mean().item()
    assert factor == 2.0 ** round(math.log2(factor))
    torch.testing.assert_close(model.words.weight, words * factor)
    torch.testing.assert_close(model.places.weight, places * factor)
    loss = F.cross_entropy(model(shifted[0][0]), shifted[0][1]).item()
    assert loss == pytest.approx(math.log(50), rel=0.06)
    with pytest.raises(InapplicableError, match="which is tied"):
        REMEDIES["head-scale"](model, shifted, "cross_entropy")


def test_a_head_is_halved_until_the_first_loss_is_near_a_guess():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    nn.init.normal_(model[2].weight, std=30)
    hidden = model[0].weight.clone()
    REMEDIES["head-scale"](model, data(), "cross_entropy")
    assert torch.equal(model[0].weight, hidden)
    assert F.cross_entropy(model(data()[0][0]), data()[0][1]).item() == pytest.approx(math.log(3), rel=0.1)
    with pytest.raises(InapplicableError, match="a smaller scale lowers"):
        REMEDIES["head-scale"](model, data(), "cross_entropy")


@pytest.mark.parametrize("old", [False, True])
def test_gains_that_a_silent_channel_made_are_taken_back(old):
    layer = nn.Conv1d(6, 8, 3)
    if old:
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(layer)
        gain, direction = layer.weight_g, layer.weight_v
    else:
        parametrizations.weight_norm(layer)
        gain, direction = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    with torch.no_grad():
        gain[:3] *= 5e3
        layer.bias[:3] = -70.0
    kept, bias = gain[3:].clone(), layer.bias[3:].clone()
    REMEDIES["gain-guard"](layer, [normal(2, 6, 9)])
    assert torch.equal(gain[3:], kept)
    torch.testing.assert_close(gain[:3].flatten(), direction[:3].flatten(1).norm(dim=1))
    assert torch.equal(layer.bias[3:], bias)
    assert not layer.bias[:3].any()
    with pytest.raises(InapplicableError):
        REMEDIES["gain-guard"](layer, [normal(2, 6, 9)])


def test_centring_leaves_free_weights_of_zero_mean():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        for i in (0, 2):
            model[i].weight += 0.5
    names = list(model.state_dict())
    REMEDIES["centre"](model, data())
    assert list(model.state_dict()) == names
    for i in (0, 2):
        assert model[i].weight.mean(1).abs().max() < 1e-6
    assert model[2](model[:2](data()[0][0])).std().item() == pytest.approx(1, rel=0.3)


def test_default_draws_by_type_and_is_the_same_whatever_was_drawn_before():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(500, 32), nn.Parameter(torch.randn(4, 32))
            self.layer, self.norm = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), nn.BatchNorm1d(32)

    def drawn():
        model = Net()
        for p in model.parameters():
            p.data.normal_()
        REMEDIES["type-defaults"](model, [], generator=7)
        return model

    one, other = drawn(), drawn()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))
    assert one.words.weight.std().item() == pytest.approx(1, rel=0.05)
    assert one.layer.linear1.weight.abs().max().item() <= 32**-0.5
    assert one.layer.self_attn.in_proj_weight.abs().max().item() <= math.sqrt(6 / (32 + 96))
    assert torch.equal(one.norm.weight, torch.ones(32))
    assert torch.equal(one.layer.norm1.bias, torch.zeros(32))
    assert one.places.std().item() == pytest.approx(0.02, rel=0.3)


class Caching(nn.Module):
    """deepcopy raises on the activation that it keeps."""

    def __init__(self):
        super().__init__()
        self.inner, self.kept = residual(), None

    def forward(self, x):
        self.kept = self.inner(x)
        return self.kept


def test_models_that_cannot_be_copied_are_restored_in_place():
    model = Caching()
    model(data()[0][0])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(InapplicableError):
        REMEDIES["recurrent"](model, data())
    REMEDIES["branch-scale"](model, data())
    assert not torch.equal(model.inner[1].last.weight, before["inner.1.last.weight"])
