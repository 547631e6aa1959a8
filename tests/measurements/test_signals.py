"""Signals against activations kept whole in float64, closed forms, and what must not change them."""

import math

import pytest
import torch
from torch import nn

from cases import CASES, case, each_case, flat, normal
from references import dense
from theta0._records import by_layer
from theta0.measurements import signals
from theta0.measurements.signals import QUANTILES

DETERMINISTIC = ("transformer", "spectral_norm", "norm and dropout", "mixed modes", "lazy", "compiled", "half")
DENSE = [c for c in CASES if not c.name.startswith(DETERMINISTIC)] + [
    c for c in CASES if c.name.startswith(("transformer", "norm and dropout"))
]


def table(model, batches, loss=None):
    return by_layer(signals(model, batches, loss))


@pytest.mark.parametrize("case", DENSE, ids=lambda case: case.name)
def test_numbers_agree_with_the_dense_float64_route(case):
    model, reference = case.model().double(), case.model().double()
    for m in [*model.modules(), *reference.modules()]:
        if isinstance(m, (nn.Dropout, nn.MultiheadAttention)):
            m.eval()
            m.dropout = 0.0
    found = table(model, case.batches(), case.loss)
    expected = dense(reference, case.batches(), case.loss)
    compared = 0
    for layer, numbers in expected.items():
        if layer.partition("#")[0].endswith("out_proj") or layer not in found:
            continue
        for quantity, value in numbers.items():
            assert found[layer][quantity] == pytest.approx(value, rel=1e-8, abs=1e-12), (layer, quantity)
            compared += 1
    plain = [path for path, kind in case.layers if kind not in ("recurrent", "matmul") and "attn" not in path]
    assert {path for path in plain if path != "first"} <= set(expected)
    assert compared >= 10


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("same", [True, False], ids=["self", "cross"])
def test_attention_projections_are_measured(batch_first, same):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

        def forward(self, a, b):
            return self.attention(a, a if same else b, a if same else b)[0]

    torch.manual_seed(0)
    model = Attention().double()
    a, b = normal(4, 5, 8).double(), normal(4, 6, 8, seed=1).double()
    inputs = (a, b) if batch_first else (a.transpose(0, 1), b.transpose(0, 1))
    found = table(model, [(inputs, torch.zeros(()))], lambda out, _: out.square().mean())
    inner = model.attention
    q, k, v = (w for w in inner.in_proj_weight.chunk(3))
    if same:
        z = a @ inner.in_proj_weight.T
        assert found["attention.in_proj"]["preactivation_variance"] == pytest.approx(z.var(correction=0).item())
    else:
        z = a @ q.T
        assert found["attention.in_proj"]["preactivation_variance"] == pytest.approx(z.var(correction=0).item())
    heads = lambda t, w: (t @ w.T).unflatten(-1, (2, 4)).transpose(1, 2)  # noqa: E731
    other = a if same else b
    mixed = torch.softmax(heads(a, q) @ heads(other, k).mT / 2, -1) @ heads(other, v)
    z = mixed.transpose(1, 2).flatten(-2) @ inner.out_proj.weight.T + inner.out_proj.bias
    numbers = found["attention.out_proj"]
    if batch_first:  # the sample axis is the batch's only then: here inputs of (length, batch) are read as given
        assert numbers["sample_share"] == pytest.approx(
            (z.var(0, correction=0).mean() / z.var(correction=0)).item(), rel=1e-9
        )
    assert numbers["preactivation_variance"] == pytest.approx(z.var(correction=0).item(), rel=1e-9)
    assert numbers["gradient_variance"] == pytest.approx((2 * z / z.numel()).var(correction=0).item(), rel=1e-9)


def test_fused_inference_path_of_a_transformer_is_seen():
    model = case("transformer, batch first").model().eval()
    found = table(model, case("transformer, batch first").batches(), "cross_entropy")
    for path, _ in case("transformer, batch first").layers:
        assert found[path]["preactivation_variance"] > 0


@each_case
def test_layers_are_reported_in_execution_order_with_forward_and_backward_numbers(case):
    found = table(case.model(), case.batches(), case.loss)
    order = [layer for layer, numbers in found.items() if "preactivation_variance" in numbers]
    once = [layer for layer in order if "#" not in layer]
    assert tuple(once) == tuple(path for path, _ in case.layers)
    for path, _ in case.layers:
        numbers = found[path]
        assert math.isfinite(numbers["preactivation_variance"]), path
        if case.name != "zero head" and not (case.name == "frozen" and path == "0"):
            assert numbers["gradient_variance"] > 0, path
        assert 0 <= numbers.get("shift_share", 0) <= 1 + 1e-9
        assert 0 <= numbers.get("sample_share", 0) <= 1 + 1e-9


def test_calls_of_a_shared_layer_are_kept_apart():
    found = table(case("twice").model(), case("twice").batches(), "cross_entropy")
    assert {"shared", "shared#2"} <= set(found)
    assert found["shared"]["preactivation_variance"] != found["shared#2"]["preactivation_variance"]


def test_checkpointed_block_is_counted_once():
    found = table(case("checkpointed").model(), case("checkpointed").batches(), "cross_entropy")
    assert "block.0" in found
    assert "block.0#2" not in found


@pytest.mark.parametrize(
    ("nonlinearity", "bounded"), [(nn.Sigmoid(), True), (nn.Tanh(), True), (nn.ReLU(), False), (nn.GELU(), False)]
)
def test_saturation_is_asked_of_bounded_nonlinearities_only(nonlinearity, bounded):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nonlinearity, nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.diag(torch.tensor([100.0, 100.0, 1e-3, 1e-3])))
    found = table(model, [(torch.ones(6, 4), torch.zeros(6, 1))], "mse")
    if bounded:
        assert found["0"]["saturated_share"] == pytest.approx(0.5)
    else:
        assert "saturated_share" not in found["0"]


@pytest.mark.parametrize("relu", [nn.ReLU(), nn.ReLU(inplace=True)])
def test_dead_means_off_on_every_sample_of_every_batch(relu):
    model = nn.Sequential(nn.Linear(2, 4, bias=False), relu, nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0], [-1, 0], [0, -1], [0, 1]]))
    first, second = torch.tensor([[1.0, 1.0], [2.0, 1.0]]), torch.tensor([[-1.0, 1.0]])
    batches = [(first, torch.zeros(2, 1)), (second, torch.zeros(1, 1))]
    assert table(model, batches[:1], "mse")["0"]["dead_share"] == pytest.approx(0.5)
    assert table(model, batches, "mse")["0"]["dead_share"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("module", "functional"),
    [
        (nn.ReLU(), torch.relu),
        (nn.Sigmoid(), torch.sigmoid),
        (nn.Tanh(), lambda x: x.tanh()),
        (nn.Tanh(), lambda x: x.tanh_()),
        (nn.ReLU(), lambda x: nn.functional.relu(x, inplace=True)),
        (nn.Sigmoid(), torch.special.expit),
        (nn.GELU(), nn.functional.gelu),
        (nn.SiLU(), nn.functional.silu),
        (nn.Hardtanh(), nn.functional.hardtanh),
    ],
)
def test_functions_count_like_modules(module, functional):
    class Called(nn.Module):
        def __init__(self, phi):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.phi = nn.Linear(6, 8), nn.Linear(8, 3), phi

        def forward(self, x):
            return self.b(self.phi(self.a(5 * x)))

    assert signals(Called(module), flat(), "cross_entropy") == signals(Called(functional), flat(), "cross_entropy")


@pytest.mark.parametrize("special", [(), (math.inf,), (-math.inf, -math.inf), (math.nan,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_quantiles_are_those_of_torch(special, dtype):
    bias = torch.cat([normal(97), torch.tensor(special)]).to(dtype)
    layer = nn.Linear(1, len(bias), dtype=dtype)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.copy_(bias)
    x = torch.ones(3, 1, dtype=dtype)
    found = table(layer, [(x, x)], lambda out, _: out.float().mean())["(model)"]
    names, points = zip(*QUANTILES.items(), strict=True)
    expected = torch.quantile(bias.repeat(3).double(), torch.tensor(points, dtype=torch.float64)).tolist()
    assert [found[f"preactivation_{name}"] for name in names] == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_relative_spread_of_a_billionth_is_seen():
    layer = nn.Linear(1, 2, bias=True).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1e-9], [-1e-9]]))
        layer.bias.copy_(torch.tensor([1.0, 1.0]))
    x = normal(50, 1).double()
    found = table(layer, [(x[:20], x[:20]), (x[20:], x[20:])], lambda out, _: out.mean())["(model)"]
    assert found["preactivation_variance"] == pytest.approx(1e-18 * x.square().mean().item(), rel=1e-5)
    assert found["sample_share"] == pytest.approx(x.var(correction=0).item() / x.square().mean().item(), rel=1e-5)


def test_half_precision_is_accumulated_in_float64():
    model = nn.Linear(4, 4, bias=False).half()
    with torch.no_grad():
        model.weight.copy_(300 * torch.eye(4))
    x = torch.full((64, 4), 100.0)
    x[::2] = 101
    found = table(model, [(x, x)], lambda out, _: out.float().mean())["(model)"]
    z = 300 * x.double()
    assert found["preactivation_variance"] == pytest.approx(z.half().double().var(correction=0).item())
    assert found["nonfinite_share"] == 0


def test_factors_are_ratios_of_neighbours():
    found = table(case("mlp").model(), flat(), "cross_entropy")
    assert "forward_factor" not in found["0"]
    assert "backward_factor" not in found["4"]
    for before, after in (("0", "2"), ("2", "4")):
        assert found[after]["forward_factor"] == pytest.approx(
            found[after]["preactivation_variance"] / found[before]["preactivation_variance"]
        )
        assert found[before]["backward_factor"] == pytest.approx(
            found[before]["gradient_variance"] / found[after]["gradient_variance"]
        )


def test_without_targets_only_the_forward_pass_is_measured():
    found = table(case("mlp").model(), [x for x, _ in flat()])
    assert found["4"]["preactivation_variance"] > 0
    assert "gradient_variance" not in found["4"]
    assert "loss" not in found[""]


def test_numbers_are_equal_with_and_without_a_compiled_wrapper():
    assert signals(case("compiled").model(), flat(), "cross_entropy") == signals(
        case("mlp").model(), flat(), "cross_entropy"
    )


def test_at_most_four_batches_are_read_unless_asked():
    x, y = flat()[0]
    read = []

    class Source:
        def __iter__(self):
            for number in range(10):
                read.append(number)
                yield x, y

    signals(case("mlp").model(), Source(), "cross_entropy")
    assert read == [0, 1, 2, 3]
    signals(case("mlp").model(), Source(), "cross_entropy", max_batches=None)
    assert read == [0, 1, 2, 3, *range(10)]


def test_measured_under_no_grad_all_the_same():
    with torch.no_grad():
        inside = signals(case("mlp").model(), flat(), "cross_entropy")
    assert inside == signals(case("mlp").model(), flat(), "cross_entropy")


def test_agreement_of_batches_is_the_mean_cosine_weighted_by_norms():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    batches = [(torch.randn(4 + i, 5).double() * (1 + i), torch.randint(3, (4 + i,))) for i in range(3)]
    rows = []
    for x, y in batches:
        loss = nn.functional.cross_entropy(net(x), y)
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))]))
    gram = torch.stack(rows) @ torch.stack(rows).T
    expected = float((gram.sum() - gram.trace()) / (2 * gram.trace()))
    found = table(net, batches, "cross_entropy")[""]
    assert found["gradient_agreement"] == pytest.approx(expected, rel=1e-6)
    assert "gradient_agreement" not in table(net, batches[:1], "cross_entropy")[""]


def test_the_gradients_of_a_large_model_are_added_up_in_a_file(monkeypatch):
    """Every number is the same, bit for bit."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # whose gradient is not contiguous
    model = nn.Sequential(conv, nn.Flatten(), nn.Linear(8 * 36, 8), nn.Linear(8, 4))
    data = [(torch.randn(6, 3, 8, 8), torch.arange(6) % 4) for _ in range(2)]
    found = []
    for where in ("memory", "disk"):
        monkeypatch.setenv("THETA0_SNAPSHOT", where)
        found.append(signals(model, data, "cross_entropy"))
    assert found[0] == found[1]


class InPlace(nn.Module):
    """Layers of sequences, what they put out changed where it lies, or in a copy."""

    def __init__(self, copied):
        super().__init__()
        torch.manual_seed(0)
        self.copied, self.shift = copied, nn.Parameter(torch.ones(5, 8))
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        x = x + self.shift if self.copied else x.add_(self.shift)
        y = self.second(x)
        y = torch.relu(y) if self.copied else y.relu_()
        return self.head(y.mean(1))


def test_what_is_changed_in_place_afterwards_keeps_its_gradient():
    data = [(normal(6, 5, 4), torch.arange(6) % 3)]
    copied, changed = (signals(InPlace(copied), data, "cross_entropy") for copied in (True, False))
    assert {r.layer for r in changed if r.quantity == "backward_norm"} == {"first", "second", "head"}
    assert changed == copied


def test_a_result_that_the_loss_does_not_use_has_no_gradient():
    """Of a recurrent layer read at its last state, whose outputs are a view."""
    torch.manual_seed(0)

    class LastState(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.body(x)[1][0][-1])

    found = signals(LastState(), [(normal(6, 5, 4), torch.arange(6) % 3)], "cross_entropy")
    assert {r.layer for r in found if r.quantity == "backward_norm"} == {"head"}
