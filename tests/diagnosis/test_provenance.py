"""Which operation, in which line: numbers that are not finite, gradients that end, samples that mix."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from states import state_of
from theta0.diagnosis import diagnose
from theta0.measurements.mixing import mixing
from theta0.measurements.non_finite import non_finite_origin

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(64, 8, generator=GENERATOR)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
SEQUENCES = torch.randn(32, 10, 8, generator=GENERATOR)
FIRST = (SEQUENCES[:, 0, 0] > 0).long()
POINTS = torch.rand(64, 2, generator=GENERATOR)
EDGES = torch.randint(8, (2, 40), generator=GENERATOR)
GRAPH = (torch.rand(64, 64, generator=GENERATOR) < 0.1).float() + torch.eye(64)


class Net(nn.Module):
    """Layers by name, and a forward pass that is given them."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def net(forward, **layers):
    torch.manual_seed(0)
    return Net(forward, a=nn.Linear(8, 32), b=nn.Linear(32, 32), c=nn.Linear(32, 3), **layers)


def hidden(self, x):
    return torch.tanh(self.b(torch.tanh(self.a(x))))


def found(model, batches=None, loss="cross_entropy", **options):
    before = state_of(model)
    result = diagnose(model, [(X, Y)] if batches is None else batches, loss, **{"probe_steps": 0} | options)
    assert state_of(model) == before
    return [f for f in result.findings if f.severity != "note"]


# ── Numbers that are not finite ──────────────────────────────────────────────────────────────────────────────────────
MASKED = float("-inf")
ENDLESS = torch.full((64, 32), float("inf"))  # as a mask: what combines two of them makes NaN
FORWARD = {
    "log": (lambda s, x: s.c(s.a(x).log()), "above 0"),
    "sqrt": (lambda s, x: s.c(s.a(x).sqrt()), "of 0 or more"),
    "acos": (lambda s, x: s.c(torch.acos(3 * s.a(x))), "from -1 to 1"),
    "div": (lambda s, x: s.c(s.a(x) / (0 * s.a(x))), "the divisor is 0"),
    "exp": (lambda s, x: s.c((1e4 * s.a(x)).exp()), "past the largest number of float32"),
    "half": (lambda s, x: s.c((1e6 * s.a(x)).half().float()), "past the largest number of float16, 65504"),
    "std": (lambda s, x: s.c(s.b(s.a(x)) / s.a(x)[:, :1].std(1, keepdim=True)), "a single value"),
    "mean": (lambda s, x: s.c(s.a(x)) + s.a(x)[:, 32:].mean(), "runs over nothing"),
    "softmax": (lambda s, x: s.c(s.a(x).masked_fill(x[:, :1] > 0, MASKED).softmax(-1)), "nothing but -inf"),
    "pow": (lambda s, x: s.c(torch.pow(s.a(x), 0.5)), "has no power that is not whole"),
    "float_power": (lambda s, x: s.c(torch.float_power(0 * s.a(x), -1).float()), "0 has no negative power"),
    "reciprocal": (lambda s, x: s.c(torch.relu(s.a(x)).reciprocal()), "the divisor is 0"),
    "sub": (lambda s, x: s.c(torch.sub(s.a(x) + ENDLESS, s.a(x) + ENDLESS)), "combines infinities"),
}
LOSSES = {
    "ctc_loss": (
        lambda o, t: F.ctc_loss(
            o.log_softmax(1)[:, None], torch.ones(1, 40).long(), torch.tensor([64]), torch.tensor([40]), reduction="sum"
        ),
        "do not fit into outputs of 64 steps",
    ),
    "cross_entropy": (lambda o, t: F.cross_entropy(o, torch.full_like(t, -100)), "every target is ignored"),
}


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", FORWARD)
def test_the_operation_that_makes_it_is_named_with_its_reason_and_line(name):
    forward, why = FORWARD[name]
    finding = found(net(forward))[0]
    assert finding.code == "non-finite"
    assert f"`{name}`" in finding.message
    assert why in finding.message
    assert "test_provenance.py:" in finding.source_line
    assert name in finding.source_line or name == "div"


@pytest.mark.parametrize("name", LOSSES)
def test_why_a_loss_is_not_finite(name):
    loss, why = LOSSES[name]
    origin = non_finite_origin(net(lambda s, x: s.c(hidden(s, x))), _batches(), loss)
    assert origin.operation.name == name
    assert why in origin.why


BACKWARD = {
    "sqrt": lambda s, x: s.c(torch.sqrt(torch.relu(s.a(x)))),
    "pow": lambda s, x: s.c((torch.relu(s.a(x))) ** 0.3),
    "log": lambda s, x: s.c(torch.where(s.a(x) > 0, torch.relu(s.a(x)).log(), 0.0 * s.a(x))),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_a_derivative_that_is_not_finite_is_found_behind_a_finite_loss(name):
    origin = non_finite_origin(net(BACKWARD[name]), _batches(), "cross_entropy")
    assert origin.backward
    assert origin.operation.name == name
    assert "infinite at 0" in origin.why


def test_a_mask_is_no_finding_and_an_infinity_that_reaches_the_loss_is():
    def masked(self, x):
        return self.c(self.a(x).masked_fill(x[:, 0:1].expand(-1, 32) > 9, MASKED).softmax(-1))

    assert non_finite_origin(net(masked), _batches(), "cross_entropy") is None

    def loss(outputs, targets):
        return F.cross_entropy(outputs.masked_fill(F.one_hot(targets, 3).bool(), MASKED), targets)

    origin = non_finite_origin(net(lambda s, x: s.c(hidden(s, x))), _batches(), loss)
    assert origin.operation.name == "cross_entropy"
    assert "no output can meet" in origin.why


def _batches():
    from theta0._batches import load_batches

    return load_batches([(X, Y)], nn.Linear(8, 3))


# ── Where the gradient's path ends ───────────────────────────────────────────────────────────────────────────────────
def without_gradients(self, x):
    with torch.no_grad():
        inner = hidden(self, x)
    return self.c(inner)


CUTS = {
    "detach": lambda s, x: s.c(hidden(s, x).detach()),
    ".data": lambda s, x: s.c(hidden(s, x).data),
    "argmax": lambda s, x: s.c(F.one_hot(hidden(s, x).argmax(-1), 32).float()),
    "gt": lambda s, x: s.c((hidden(s, x) > 0).float()),
    "round": lambda s, x: s.c(torch.round(3 * hidden(s, x))),
    "sign": lambda s, x: s.c(hidden(s, x).sign()),
    "tolist": lambda s, x: s.c(torch.tensor(hidden(s, x).tolist())),
    "linear": without_gradients,
}


@pytest.mark.parametrize("name", CUTS)
def test_the_operation_that_cuts_the_gradient_is_named(name):
    finding = found(net(CUTS[name]))[0]
    assert (finding.code, finding.severity) == ("gradient-cut", "error")
    assert f"`{name}`" in finding.message
    assert {"a.weight", "a.bias", "b.weight", "b.bias"} == set(finding.layers[1:])


@pytest.mark.parametrize(("inside", "severity"), [(False, "error"), (True, "warning")])
def test_what_is_cut_off_is_an_error_where_it_is_a_whole_part_of_the_model(inside, severity):
    layers = {f"more{i}": nn.Linear(3, 3) for i in range(4)}
    gate = nn.Linear(1, 1)

    def forward(self, x):
        gate = (self.more0[1] if inside else self.gate)(x.mean(1, keepdim=True))
        out = self.c(hidden(self, x)) * gate.detach()
        for i in range(4):
            part = getattr(self, f"more{i}")
            out = (part[0] if isinstance(part, nn.ModuleList) else part)(torch.tanh(out))
        return out

    parts = {"more0": nn.ModuleList([layers["more0"], gate])} if inside else {"gate": gate}
    finding = found(net(forward, **(layers | parts)))[0]
    assert (finding.code, finding.severity) == ("gradient-cut", severity)


def straight_through(self, x):
    inner = hidden(self, x)
    return self.c(inner + (inner.sign() - inner).detach())


def frozen(model):
    for layer in (model.a, model.b):
        layer.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "model",
    [
        net(straight_through),
        net(lambda s, x: s.c(hidden(s, x)) * (1 + 0 * s.a(x).mean().item())),
        net(lambda s, x: s.c(hidden(s, x)) + 0 * s.a(x).detach().sum()),
        frozen(net(without_gradients)),
    ],
    ids=["straight-through", "logged", "also detached", "frozen"],
)
def test_a_cut_beside_which_a_path_remains_is_no_finding(model):
    assert found(model) == []


class Residual(nn.Module):
    """u and its Laplacian."""

    def __init__(self, activation, **options):
        super().__init__()
        torch.manual_seed(0)
        self.f = nn.Sequential(nn.Linear(2, 32), activation, nn.Linear(32, 32), activation, nn.Linear(32, 1))
        self.options = {"create_graph": True, "materialize_grads": True} | options

    def forward(self, x):
        x = x.clone().requires_grad_(True)
        u = self.f(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        second = [torch.autograd.grad(first[:, i].sum(), x, **self.options)[0][:, i] for i in range(2)]
        return u, sum(second)


def residual_loss(outputs, targets):
    u, laplacian = outputs
    boundary = (u * (POINTS[:, :1] < 0.1)).square().mean()
    return (laplacian - targets).square().mean() + boundary


DATA = [(POINTS, torch.sin(3 * POINTS[:, 0]))]


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(), nn.Hardtanh(-9, 9)], ids=type)
def test_a_second_derivative_that_is_zero_is_named(activation):
    finding = found(Residual(activation), DATA, residual_loss)[0]
    assert finding.code == "gradient-cut"
    assert "second derivative" in finding.message
    assert "torch.autograd.grad" in finding.source_line


def helmholtz_loss(outputs, targets):
    u, laplacian = outputs
    return (laplacian + 4 * u[:, 0] - targets).square().mean()


def test_a_second_derivative_that_is_zero_is_named_where_the_loss_keeps_a_gradient():
    finding = found(Residual(nn.ReLU()), DATA, helmholtz_loss)[0]
    assert (finding.code, finding.severity) == ("gradient-cut", "error")
    assert "zero at every point" in finding.message
    assert "torch.autograd.grad" in finding.source_line
    assert found(Residual(nn.Tanh()), DATA, helmholtz_loss) == []


class Slope(Residual):
    """u and its slope, of first order."""

    def forward(self, x):
        x = x.clone().requires_grad_(True)
        u = self.f(x)
        return u, torch.autograd.grad(u.sum(), x, create_graph=True)[0][:, 0]


def test_first_derivatives_of_piecewise_linear_networks_are_no_finding():
    assert found(Slope(nn.ReLU()), DATA, helmholtz_loss) == []
    flat = Slope(nn.ReLU())
    nn.init.zeros_(flat.f[4].weight)  # a start at which every derivative is zero
    assert "zero at every point" not in "".join(f.message for f in found(flat, DATA, helmholtz_loss))


def test_smooth_ones_and_a_derivative_without_a_graph():
    assert found(Residual(nn.Tanh()), DATA, residual_loss) == []
    finding = found(Residual(nn.Tanh(), create_graph=False, retain_graph=True), DATA, residual_loss)[0]
    assert finding.code == "gradient-cut"
    assert "create_graph=True" in finding.message


# ── What parameters() lacks ──────────────────────────────────────────────────────────────────────────────────────────
class Blocks(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.first, self.blocks, self.head = nn.Linear(8, 16), blocks, nn.Linear(16, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks.values() if isinstance(self.blocks, dict) else self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


def block():
    return nn.Linear(16, 16)


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        ([block(), block()], "blocks[0].weight"),
        ({"k": block()}, "blocks['k'].weight"),
        ((block(),), "blocks[0].weight"),
    ],
)
def test_layers_in_plain_containers_are_named(blocks, name):
    finding = found(Blocks(blocks))[0]
    assert (finding.code, finding.layer) == ("unregistered-parameters", name)


def test_tensors_layers_made_anew_and_nothing_at_all():
    tensor = net(lambda s, x: s.c(torch.tanh(s.b(torch.tanh(x @ s.plain)))))
    tensor.plain = torch.randn(8, 32).requires_grad_()
    assert found(tensor)[0].layer == "plain"
    anew = net(lambda s, x: s.c(torch.tanh(nn.Linear(32, 32)(torch.tanh(s.a(x))))))
    assert "created again" in found(anew)[0].message
    assert "no parameters" in found(Net(lambda s, x: 1.0 * x[:, :3]))[0].message


def test_a_module_built_in_a_pass_may_be_given_the_models_own_weights():
    """What it was filled with when it was built is dropped, and is no weight that training lacks."""

    def handed_over(s, x):
        built = nn.Linear(32, 32)
        built.weight, built.bias = s.b.weight, s.b.bias
        return s.c(torch.tanh(built(torch.tanh(s.a(x)))))

    assert found(net(handed_over)) == []


@pytest.mark.parametrize(
    "model", [Blocks(nn.ModuleList([block()])), Residual(nn.Tanh())], ids=["registered", "differentiated inputs"]
)
def test_what_is_registered_or_no_parameter_is_no_finding(model):
    data = (DATA, residual_loss) if isinstance(model, Residual) else ([(X, Y)], "cross_entropy")
    assert found(model, *data) == []


# ── Summands of the loss ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("weight", "said"), [(1e-3, None), (1.0, None), (1e7, "almost nothing to learn"), (0.0, "exactly zero")]
)
def test_a_summand_that_dwarfs_the_others_or_is_zero_is_named(weight, said):
    def loss(outputs, targets):
        penalty = outputs.square().mean()
        return F.cross_entropy(outputs, targets) + weight * penalty

    notes = [
        f for f in diagnose(net(lambda s, x: s.c(hidden(s, x))), [(X, Y)], loss).findings if f.code == "loss-terms"
    ]
    assert [said in f.message for f in notes] == ([] if said is None else [True])


# ── Samples that influence each other ────────────────────────────────────────────────────────────────────────────────
def attention(batch_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    return Net(lambda s, x: s.o(s.e(s.i(x)).mean(1)), i=nn.Linear(8, 16), e=layer, o=nn.Linear(16, 3))


def recurrent(forward, batch_first=False):
    return Net(forward, r=nn.GRU(8, 16, batch_first=batch_first), o=nn.Linear(16, 3))


MIXED = {
    "attention": (attention(False), SEQUENCES, "multi_head_attention_forward"),
    "recurrence": (recurrent(lambda s, x: s.o(s.r(x)[0][:, -1])), SEQUENCES, "gru"),
    "reshape": (recurrent(lambda s, x: s.o(s.r(x.reshape(10, -1, 8))[0][-1])), SEQUENCES, "gru"),
    "softmax": (net(lambda s, x: s.c(torch.tanh(s.b(32 * s.a(x).softmax(0))))), X, "softmax"),
    "norm": (net(lambda s, x: s.c(torch.tanh(s.b(40 * s.a(x) / s.a(x).norm())))), X, "norm"),
}
APART = {
    "attention": (attention(True), SEQUENCES),
    "recurrence": (recurrent(lambda s, x: s.o(s.r(x)[0][:, -1]), batch_first=True), SEQUENCES),
    "transpose": (recurrent(lambda s, x: s.o(s.r(x.transpose(0, 1))[0][-1])), SEQUENCES),
    "softmax": (net(lambda s, x: s.c(torch.tanh(s.b(32 * s.a(x).softmax(-1))))), X),
    "batch norm": (nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)), X),
    "statistics": (net(lambda s, x: s.c(torch.tanh(s.a(x) - s.a(x).mean(0)))), X),
    "graph": (net(lambda s, x: s.c(GRAPH[: len(x), : len(x)] @ torch.tanh(s.a(x)))), X),
    "messages": (net(lambda s, x: s.c(torch.zeros(len(x), 32).index_add(0, EDGES[1], s.a(x)[EDGES[0]]))), X),
    "pairs": (net(lambda s, x: s.a(x) @ s.a(x).T), X),
}


@pytest.mark.parametrize("name", MIXED)
def test_the_operation_that_mixes_samples_is_named(name):
    model, inputs, operation = MIXED[name]
    finding = found(model, [(inputs, FIRST if inputs is SEQUENCES else Y)])[0]
    assert finding.code == "mixed-samples"
    assert f"`{operation}`" in finding.message


@pytest.mark.parametrize("name", APART)
def test_samples_that_stay_apart_statistics_graphs_and_pairs_are_no_finding(name):
    from theta0._batches import load_batches

    model, inputs = APART[name]
    measured = mixing(model, load_batches([(inputs, torch.zeros(len(inputs)).long())], model)[0])
    assert measured is None or measured.share == 0 or measured.kind


def test_a_healthy_diagnosis_costs_a_twelfth_of_a_gradient_more():
    result = diagnose(net(lambda s, x: s.c(hidden(s, x))), [(X, Y)] * 4, "cross_entropy", probe_steps=0)
    assert result.findings == ()
    assert result.cost == pytest.approx(4 + 2 * 8 / 64 / 3)


class Graph(nn.Module):
    """A layer behind a matrix that belongs to the model, as a buffer or as a plain attribute."""

    def __init__(self, matrix, registered):
        super().__init__()
        self.a = nn.Linear(8, 3)
        if registered:
            self.register_buffer("matrix", matrix)
        else:
            self.matrix = matrix

    def forward(self, x):
        return self.matrix @ self.a(x)


@pytest.mark.parametrize("registered", [True, False])
def test_a_constant_that_holds_nan_before_the_pass_is_named(registered):
    degrees = torch.ones(len(X))
    degrees[3] = 0
    scale = degrees.pow(-0.5)  # infinite for a node without edges, and infinity times zero is NaN
    torch.manual_seed(0)
    (first, *_) = found(Graph(scale[:, None] * torch.eye(len(X)) * scale, registered))
    assert first.code == "non-finite"
    assert "'matrix', which it is given, holds NaN before the pass" in first.message


class Read(nn.Module):
    """A transformer of which one position alone is read, which holds the same numbers for every sample."""

    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(0)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.encoder(torch.cat([self.token.expand(len(x), -1, -1), x], 1))[:, 0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_over_the_batch_is_found_where_the_position_read_shows_nothing_of_it(batch_first):
    model = Read(batch_first)
    before = state_of(model)
    found = [f for f in diagnose(model, [(SEQUENCES, FIRST)], "cross_entropy").findings if f.code == "mixed-samples"]
    assert state_of(model) == before
    assert [(f.severity, f.layer) for f in found] == ([] if batch_first else [("error", "encoder.self_attn")])
    assert all("return self.head(self.encoder" in f.source_line for f in found)


def parts_called_alone(batch_first, kind):
    encoder = (
        nn.GRU(8, 8, batch_first=batch_first) if kind == "gru" else nn.MultiheadAttention(8, 2, batch_first=batch_first)
    )
    model = nn.ModuleDict({"encoder": encoder, "head": nn.Linear(8, 2)})

    def step(model, batch):
        given = (batch[0],) if kind == "gru" else (batch[0],) * 3
        return F.cross_entropy(model["head"](model["encoder"](*given)[0].mean(1)), batch[1])

    return model, step


@pytest.mark.parametrize("kind", ["gru", "attention"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_step_that_calls_parts_alone_is_asked_at_attention_and_recurrences(batch_first, kind):
    model, step = parts_called_alone(batch_first, kind)
    findings = diagnose(model, [(SEQUENCES, FIRST)], step=step, probe_steps=0).findings
    found = [(f.severity, f.layer) for f in findings if f.code == "mixed-samples"]
    assert found == ([] if batch_first else [("error", "encoder")])


def test_a_recurrence_over_data_with_time_first_is_not_said_to_mix():
    model, _ = parts_called_alone(False, "gru")

    def step(model, batch):
        return F.cross_entropy(model["head"](model["encoder"](batch[0])[0]).mean(0), batch[1])

    findings = diagnose(model, [(SEQUENCES.movedim(1, 0), FIRST)], step=step, probe_steps=0).findings
    assert "mixed-samples" not in {f.code for f in findings}


DERIVATIVES = {
    "in the residual": ("grad(u.sum(), x, retain_graph=True)[0] - u", True),
    "its square alone": ("grad(u.sum(), x, retain_graph=True)[0] ** 2 + u", True),
    "with a graph": ("grad(u.sum(), x, create_graph=True)[0] - u", False),
    "detached": ("u * grad(u.sum(), x, retain_graph=True)[0].detach()", False),
    "an adversarial input": ("model(x + 0.1 * grad(u.sum(), x)[0].sign())", False),
    "an adversarial input of weights that are made of others": ("normed(x + 0.1 * grad(u.sum(), x)[0].sign())", False),
    "weights after an inner step": ("F.linear(x, fast(model[0].weight).T)", False),
    "a weight by the last layer": ("u * grad(u.sum(), model[2].weight, retain_graph=True)[0].norm()", False),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_derivative_in_the_loss_needs_a_graph_of_its_own(name):
    residual, ill = DERIVATIVES[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def step(model, batch):
        x = batch[0].clone().requires_grad_(True)

        def fast(weight):  # a first-order inner step
            made = weight * 1.0
            inner = F.linear(F.linear(x, made).tanh(), model[2].weight).square().mean()
            made = made - 0.1 * torch.autograd.grad(inner, made, retain_graph=True)[0]
            inner = F.linear(F.linear(x, made).tanh(), model[2].weight).square().mean()
            return (made - 0.1 * torch.autograd.grad(inner, made, retain_graph=True)[0]).T[:1]

        def normed(x):
            return F.linear(F.linear(x, F.normalize(model[0].weight, dim=0)).tanh(), 2 * model[2].weight)

        scope = {
            "x": x,
            "u": model(x),
            "model": model,
            "grad": torch.autograd.grad,
            "fast": fast,
            "normed": normed,
            "F": F,
        }
        return eval(residual, scope).square().mean()

    found = diagnose(model, [(torch.randn(32, 1), torch.zeros(32))], step=step, probe_steps=0)
    # Parameters that only a meant derivative depends on may get no gradient, which is another sentence.
    said = [f for f in found.findings if f.code == "gradient-cut" and "The loss is made of a derivative" in f.message]
    assert [f.severity for f in said] == ["error"] * ill
