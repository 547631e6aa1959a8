"""Healthy starts that once were called ill, and ill ones that passed: one of each kind."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import unprobed as diagnose
from theta0 import diagnose as watched

G = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=G)


def severe(found):
    return {f.code for f in found.findings if f.severity != "note"}


def default(*widths, activation=nn.ReLU):
    torch.manual_seed(0)
    parts = [p for i, o in pairwise(widths) for p in (nn.Linear(i, o), activation())]
    return nn.Sequential(*parts[:-1])


def test_rare_labels_do_not_make_a_fair_guess_a_bad_loss():
    rare = (torch.arange(256) % 100 == 0).long()
    assert severe(diagnose(default(8, 16, 2), [(X, rare)], "cross_entropy")) == set()
    assert severe(diagnose(default(8, 16, 1), [(X, rare[:, None].float())], "bce")) == set()


def test_unscaled_pixels_before_batch_normalisation():
    torch.manual_seed(0)
    pixels = torch.rand(64, 3, 8, 8, generator=G) * 255
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    assert "vanishing-gradients" not in severe(diagnose(net, [(pixels, torch.arange(64) % 4)], "cross_entropy"))


@pytest.mark.slow
def test_a_rate_that_batch_normalisation_bears():
    torch.manual_seed(0)
    parts = [p for _ in range(12) for p in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    net = nn.Sequential(*parts, nn.Linear(8, 4))
    found = diagnose(net, [(X, torch.arange(256) % 4)], "cross_entropy", optimizer="adam", learning_rate=1e-3)
    assert "learning-rate-too-high" not in severe(found)


def test_an_operator_without_a_second_derivative_is_no_failure():
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(10, 8), nn.Linear(8, 3))
    data = [(torch.randint(10, (32, 4), generator=G), torch.arange(32) % 3)]
    assert severe(diagnose(net, data, "cross_entropy", optimizer="adam", learning_rate=1e-3)) == set()


def test_a_graph_of_the_whole_batch_is_not_cut():
    adjacency = torch.eye(32)

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.second(F.relu(adjacency @ self.first(x)))

    data = [(X[:32], torch.arange(32) % 3)]
    assert severe(diagnose(Graph(), data, "cross_entropy", optimizer="adam", learning_rate=1e-3)) == set()


def test_a_loss_that_depends_on_no_parameter_is_an_error():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x):
            return self.layer(x).detach()

    found = diagnose(Detached(), [(X, torch.arange(256) % 3)], "cross_entropy")
    assert not found.healthy
    assert "gradient-cut" in severe(found)


def test_a_models_own_cross_entropy_is_held_against_a_guess():
    class Own(nn.Module):
        def __init__(self, scale):
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
            with torch.no_grad():
                self.head.weight.mul_(scale)

        def forward(self, tokens, labels=None):
            logits = self.head(self.embed(tokens))
            return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    tokens = torch.randint(20, (16, 6), generator=G)
    data = [{"tokens": tokens, "labels": tokens}]
    assert "initial-loss" not in severe(diagnose(Own(1.0), data))
    assert "initial-loss" in severe(diagnose(Own(100.0), data))


class Routed(nn.Module):
    """A mixture of experts whose second one no sample is sent to, though it is computed."""

    def __init__(self, gate):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.body, self.head = gate, nn.Linear(8, 16), nn.Linear(16, 3)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x):
        h = F.tanh(self.body(x))
        return self.head(sum(g * expert(h).tanh() for g, expert in zip(self.gate, self.experts, strict=True)))


class Shorter(nn.Module):
    """Embeddings of many positions, of which these samples have few."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.far, self.near, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        present = (x[:, 4:] > 100).any(1, keepdim=True)
        return self.head(F.tanh(self.near(x[:, :4]) + torch.where(present, self.far(x[:, 4:]), torch.zeros(()))))


@pytest.mark.slow
def test_a_part_that_no_sample_of_these_batches_reaches_is_a_note():
    data = [(X, (X[:, 0] > 0).long() + (X[:, 1] > 0))]
    for model in (Routed((1.0, torch.tensor(0.0))), Shorter()):
        found = watched(model, data, "cross_entropy", optimizer="adam", learning_rate=1e-2)
        assert severe(found) == set()
        assert {f.code for f in found.findings} >= {"zero-gradient"}


@pytest.mark.slow
def test_a_part_that_no_sample_reaches_is_a_fault_where_nothing_trains():
    data = [(X, (X[:, 0] > 0).long())]
    model = Routed((torch.tensor(0.0), torch.tensor(0.0)))
    found = watched(model, data, "cross_entropy", optimizer="adam", learning_rate=1e-2)
    assert "zero-gradient" in severe(found)


class ScaledBranches(nn.Module):
    """Residual branches behind a factor that starts at 1e-6, and a normalization with which the network ends."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.LayerNorm(16)
        self.branches = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)) for _ in range(3))  # fmt: skip  # noqa: E501
        self.scales = nn.ParameterList(nn.Parameter(torch.full((16,), scale)) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        for branch, scale in zip(self.branches, self.scales, strict=True):
            x = x + scale * branch(x)
        return self.last(x)


def test_branches_that_start_at_nearly_zero_are_no_measure_of_the_gradient():
    data = [(X, torch.arange(256) % 16)]
    assert "exploding-gradients" not in severe(diagnose(ScaledBranches(1e-6), data, "cross_entropy"))


class TokenAttention(nn.Module):
    """A learnt token that reads the samples through a branch behind a factor, as class attention does."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.token = nn.Linear(2, 16), nn.Parameter(torch.randn(1, 1, 16) * 0.5)
        self.read, self.scale = nn.Linear(16, 16), nn.Parameter(torch.full((16,), scale))
        self.widen, self.narrow = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4))

    def forward(self, x):
        places = self.embed(x.unflatten(1, (4, 2)))
        token = self.token.expand(len(x), 1, 16)
        token = token + self.scale * self.read((token @ places.transpose(1, 2)).softmax(-1) @ places)
        return self.head(token + self.narrow(F.gelu(self.widen(token))))[:, 0]


def test_a_factor_of_nearly_zero_silences_the_network_only_until_the_first_step():
    data = [(X, (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long())]
    silent = {"activation-shift", "constant-output", "vanishing-gradients"}
    opening = diagnose(TokenAttention(1e-5), data, "cross_entropy")
    assert severe(opening).isdisjoint(silent)
    assert {f.code for f in opening.findings} & silent
    shut = TokenAttention(1e-5)
    shut.scale.requires_grad_(False)
    assert severe(diagnose(shut, data, "cross_entropy")) & silent


class Factors(nn.Module):
    """A layer whose weight is a product of three tensors."""

    def __init__(self, inputs, outputs, rank=4):
        super().__init__()
        self.left = nn.Parameter(torch.randn(outputs, rank) / rank**0.5)
        self.core = nn.Parameter(torch.randn(rank, rank) / rank**0.5)
        self.right = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)

    def forward(self, x):
        return x @ (self.left @ self.core @ self.right).T


def test_layers_whose_weights_are_products_have_the_nonlinearity_between_them():
    torch.manual_seed(0)
    labels = (X[:, 0] > 0).long()
    net = nn.Sequential(Factors(8, 16), nn.Tanh(), Factors(16, 3))
    assert "linear-network" not in {f.code for f in diagnose(net, [(X, labels)], "cross_entropy").findings}


class Gated(nn.Module):
    """A head that is weighted by the softmax of its own score, over as many entries as it has scores."""

    def __init__(self, scores):
        super().__init__()
        self.body, self.score = nn.Linear(8, 3), nn.Linear(8, scores)

    def forward(self, x):
        return self.body(x) * self.score(x).softmax(-1).amax(-1, keepdim=True)


def test_a_softmax_over_one_entry_is_a_fault_and_no_part_that_samples_do_not_reach():
    labels = (X[:, 0] > 0).long()
    for scores, severity in ((1, "error"), (2, None)):
        torch.manual_seed(0)
        found = watched(Gated(scores), [(X, labels)], "cross_entropy", optimizer="adam", learning_rate=0.01)
        severities = [f.severity for f in found.findings if f.code == "zero-gradient"]
        assert severities == ([severity] if severity else [])


class Generator(nn.Module):
    """Noise is drawn inside, so that a batch brings nothing but its size."""

    def __init__(self):
        super().__init__()
        self.net = default(8, 32, 2)

    def forward(self, x):
        return self.net(torch.randn(len(x), 8))


def test_a_generator_that_draws_its_noise_itself_has_inputs_that_differ():
    ones = torch.ones(64)
    judge = default(2, 32, 1).requires_grad_(False)

    def step(model, batch):
        return F.binary_cross_entropy_with_logits(judge(model(batch)).squeeze(1), batch)

    assert "input-scale" not in severe(diagnose(Generator(), [ones] * 4, step=step))
    alike = diagnose(default(8, 32, 1), [torch.ones(64, 8)] * 4, step=lambda model, batch: model(batch).square().mean())
    assert "input-scale" in severe(alike)


class OneForTheLast(nn.Module):
    """A layer of experts of which the last gets one sample of all."""

    def __init__(self):
        super().__init__()
        self.first, self.experts = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 1) for _ in range(2))

    def forward(self, x):
        hidden = self.first(x).relu()
        return torch.cat([self.experts[0](hidden[1:]), self.experts[1](hidden[:1])])


def test_a_layer_that_gets_one_sample_shows_no_spread():
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    found = diagnose(OneForTheLast(), [(x, x[:, :1])], F.mse_loss)
    assert "vanishing-activations" not in {f.code for f in found.findings}


@pytest.mark.parametrize("clamped", [False, True])
def test_a_term_that_is_stationary_at_this_start_is_no_cut(clamped):
    """The entropy of equal probabilities is at its maximum; a term below a clamp has no gradient anywhere."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)

    def loss(outputs, targets):
        logs = outputs.log_softmax(1)
        entropy = -(logs.exp() * logs).sum(1).mean()
        return F.cross_entropy(outputs, targets) - 0.01 * (entropy.clamp(max=1.0) if clamped else entropy)

    before = [p.detach().clone() for p in model.parameters()]
    found = diagnose(model, [(torch.randn(64, 8), torch.randint(4, (64,)))], loss)
    assert ("gradient-cut" in {f.code for f in found.findings}) == clamped
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("basis", [lambda t: t, lambda t: t.relu()])
def test_a_start_at_zero_that_a_step_gives_apart_is_not_lost(basis):
    t, start = torch.linspace(-3, -0.1, 32)[:, None], torch.zeros(1, 1)
    lost = basis(t).abs().sum() == 0

    def step(model, batch):
        return (model(basis(batch[0])) - batch[0]).square().mean() + model(batch[1]).square().sum()

    found = diagnose(default(1, 32, 1), [(t, start)] * 4, step=step)
    assert ("input-scale" in severe(found)) == bool(lost)


class ChannelGates(nn.Module):
    """Blocks of a convolution whose channels are weighed by a kernel of three numbers over their means."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for i in (3, 8, 8)
        )
        self.gates = nn.ModuleList(nn.Conv1d(1, 1, 3, padding=1, bias=False) for _ in self.blocks)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block, gate in zip(self.blocks, self.gates, strict=True):
            x = block(x)
            x = x * torch.sigmoid(gate(x.mean((2, 3)).unsqueeze(1))).squeeze(1)[..., None, None]
        return self.head(x.mean((2, 3)))


def test_a_few_weights_that_happen_to_have_one_sign_are_no_shift():
    net, pictures = ChannelGates(), torch.randn(64, 3, 8, 8, generator=G)
    with torch.no_grad():
        for gate in net.gates:
            gate.weight.copy_(torch.tensor([[[0.2, 0.5, 0.3]]]))
    assert severe(diagnose(net, [(pictures, torch.arange(64) % 4)], "cross_entropy")) == set()


def test_many_weights_of_one_sign_are():
    net = default(8, 16, 16, 16, 16, 4)
    with torch.no_grad():
        for layer in net[::2]:
            layer.weight.abs_()
    assert "activation-shift" in severe(diagnose(net, [(X.abs(), torch.arange(256) % 4)], "cross_entropy"))


class Doubling(nn.Module):
    """A stream to which each block adds about what it holds, read only through normalizations, or as it is."""

    def __init__(self, normalized):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(8, 16), nn.LayerNorm(16) if normalized else nn.Identity()
        self.branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.inner = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.head = nn.Linear(16, 4)
        for branch in self.branches:
            nn.init.orthogonal_(branch.weight, gain=2.2)

    def forward(self, x):
        x = self.first(x)
        for branch, inner in zip(self.branches, self.inner, strict=True):
            x = x + branch(x)
            x = x + inner(self.norm(x))
        return self.head(self.norm(x))


@pytest.mark.parametrize("normalized", [True, False])
def test_growth_that_a_normalization_undoes_is_a_note(normalized):
    found = diagnose(Doubling(normalized), [(X, torch.arange(256) % 4)], "cross_entropy")
    growth = [f.severity for f in found.findings if f.code == "exploding-activations"]
    assert growth == (["note"] if normalized else ["error"])
    assert bool(severe(found)) != normalized


class PaddedCosines(nn.Module):
    """Compares each token with normalized keys, among them those of two zero tokens, as windows that are padded do."""

    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.first, self.keys, self.last = nn.Linear(8, 16), nn.Linear(16, 16, bias=False), nn.Linear(16, 3)
        self.factor = factor

    def forward(self, x):
        tokens = F.pad(self.first(x).tanh(), (0, 0, 0, 2))
        keys = F.normalize(self.keys(self.factor * tokens), dim=-1)
        shares = (tokens @ keys.mT).softmax(-1)
        return self.last((shares @ tokens)[:, :-2].mean(1))


def test_a_gradient_that_ends_at_padding_is_no_explosion():
    torch.manual_seed(0)
    model, x = PaddedCosines(), torch.randn(64, 6, 8)
    y = x[:, :, :3].mean(1).argmax(1)
    found = diagnose(model, list(zip(x.split(16), y.split(16), strict=True)), "cross_entropy")
    gradients = {r.layer: r.value for r in found.records if r.quantity == "backward_norm"}
    assert gradients["keys"] > 1e6 * gradients["last"]
    assert severe(found) == set()


def test_a_gradient_that_reaches_weights_is():
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(8, 3))
    for layer in model[2:-1:2]:
        nn.init.orthogonal_(layer.weight, gain=20.0)
    x = torch.randn(64, 8)
    y = x[:, :3].argmax(1)
    found = diagnose(model, list(zip(x.split(16), y.split(16), strict=True)), "cross_entropy")
    assert "exploding-gradients" in severe(found)
