"""What outputs, targets, inputs, modes and number formats have to be for a loss to be trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from theta0.diagnosis import diagnose

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(64, 8, generator=GENERATOR)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
RARE = (X[:, 0] > 1.4).long()
REAL = X.sum(1, keepdim=True) / 8**0.5 + 0.1 * torch.randn(64, 1, generator=GENERATOR)
ONE_HOT = F.one_hot(Y, 3).float()
SOFT = F.softmax(X[:, :3], 1)


def mlp(outputs=3, *last):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs), *last)


def found(model, inputs, targets, loss="cross_entropy", **options):
    result = diagnose(model, [(inputs, targets)], loss, **{"probe_steps": 0} | options)
    return [f for f in result.findings if f.severity != "note"]


def kl(outputs, targets):
    return F.kl_div(outputs, targets, reduction="batchmean")


LABELS = torch.tensor([1, 2, 1, 0, 2, 0]).repeat(11)[:64]
LENGTHS = (torch.tensor([64]), torch.tensor([3]))  # of one sequence of 64 steps, and of its labels
MISMATCHES = {
    "masks of 255": (mlp(1), 255 * (REAL > 0).float(), "bce", "[0, 1]"),
    "signs in bce": (mlp(1), REAL.sign(), "bce", "-1 to 1"),
    "several classes": (mlp(), (X[:, :3] > 0).float(), "cross_entropy", "sum to 3"),
    "negative classes": (mlp(), SOFT - 0.5, "cross_entropy", "probabilities"),
    "raw nll": (mlp(), Y, F.nll_loss, "log-probabilities"),
    "sigmoid nll": (mlp(3, nn.LogSigmoid()), Y, nn.NLLLoss(), "do not compete"),
    "raw kl": (mlp(), SOFT, kl, "log-probabilities first"),
    "kl of logarithms": (mlp(3, nn.LogSoftmax(1)), SOFT.log(), kl, "probabilities as targets"),
    "standardised counts": (mlp(1), REAL, F.poisson_nll_loss, "counts"),
    "soft margin": (mlp(1), (REAL > 0).float(), F.soft_margin_loss, "-1 and 1"),
    "hinge embedding": (mlp(1), (REAL > 0).float(), F.hinge_embedding_loss, "-1 and 1"),
    "multilabel": (mlp(), 255 * ONE_HOT, F.multilabel_soft_margin_loss, "[0, 1]"),
    "variance": (
        mlp(2),
        REAL,
        lambda o, t: F.gaussian_nll_loss(o[:, :1], t, torch.relu(o[:, 1:] - 9)),
        "variances",
    ),
    "negated": (mlp(1), REAL, lambda o, t: -F.mse_loss(o, t), "negated"),
    "negated by hand": (mlp(1), REAL, lambda o, t: (-2 * (o - t) ** 2).mean(), "negated"),
    "minus left out": (mlp(), Y, lambda o, t: o.log_softmax(1).gather(1, t[:, None]).mean(), "unbounded below"),
    "squared one-hot": (mlp(), ONE_HOT, "mse", "one-hot"),
    "kl of sigmoids": (mlp(3, nn.LogSigmoid()), SOFT, kl, "do not sum to 1"),
    "ctc of scores": (mlp(), LABELS, lambda o, t: F.ctc_loss(o[:, None], t[:3], *LENGTHS), "of these do not sum to 1"),
    "ctc of blanks": (
        mlp(3, nn.LogSoftmax(1)),
        LABELS,
        lambda o, t: F.ctc_loss(o[:, None], t[3:6], *LENGTHS),
        "the number of the blank",
    ),
    "rates below zero": (mlp(1), REAL.abs().round(), lambda o, t: F.poisson_nll_loss(o, 0 * t, False), "rates above 0"),
    "one minus an error": (mlp(1), REAL, lambda o, t: 1 - F.mse_loss(o, t), "negated"),
    "weights that follow counts": (
        mlp(2),
        RARE,
        nn.CrossEntropyLoss(weight=torch.bincount(RARE) / 64.0),
        "what is rare counts even less",
    ),
    "a weight below one of rare labels": (
        mlp(1),
        RARE[:, None].float(),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.1)),
        "negatives over positives",
    ),
    "squared class numbers": (mlp(1), Y, lambda o, t: (o[:, 0] - t.float()).square().mean(), "numbers of 3 classes"),
}
MATCHES = {
    "weights that balance": (mlp(2), RARE, nn.CrossEntropyLoss(weight=64.0 / torch.bincount(RARE))),
    "a background that counts less": (mlp(), Y, nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 1.0]))),
    "a weight of rare labels": (mlp(1), RARE[:, None].float(), nn.BCEWithLogitsLoss(pos_weight=torch.tensor(9.0))),
    "bce": (mlp(1), (REAL > 0).float(), "bce"),
    "soft bce": (mlp(1), torch.sigmoid(REAL), "bce"),
    "soft classes": (mlp(), 0.9 * ONE_HOT + 0.1 / 3, "cross_entropy"),
    "nll": (mlp(3, nn.LogSoftmax(1)), Y, nn.NLLLoss()),
    "kl": (mlp(3, nn.LogSoftmax(1)), SOFT, kl),
    "kl of logarithms": (
        mlp(3, nn.LogSoftmax(1)),
        SOFT.log(),
        lambda o, t: F.kl_div(o, t, log_target=True, reduction="batchmean"),
    ),
    "counts": (mlp(1), REAL.exp().round(), F.poisson_nll_loss),
    "soft margin": (mlp(1), REAL.sign(), F.soft_margin_loss),
    "variance": (mlp(2), REAL, lambda o, t: F.gaussian_nll_loss(o[:, :1], t, F.softplus(o[:, 1:]))),
    "by hand": (mlp(1), REAL, lambda o, t: ((o - t) ** 2).mean()),
    "by hand, mirrored": (mlp(1), REAL, lambda o, t: (-(o - t)).square().mean()),
    "two differences": (mlp(1), REAL, lambda o, t: ((o - t) * (o.detach() - t)).mean()),
    "one variance": (mlp(1), REAL, lambda o, t: F.gaussian_nll_loss(o, t, torch.ones(len(o), 1))),
    "likelihood": (mlp(), Y, lambda o, t: -o.log_softmax(1).gather(1, t[:, None]).mean()),
    "one minus": (mlp(), SOFT, lambda o, t: (1 - F.cosine_similarity(o, t)).mean()),
    "reconstruction": (mlp(3), X[:, :3], "mse"),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_values_that_a_loss_does_not_take_are_named(name):
    model, targets, loss, said = MISMATCHES[name]
    first = found(model, X, targets, loss)[0]
    assert first.code == "loss-mismatch"
    assert said in first.message


@pytest.mark.parametrize("name", MATCHES)
def test_values_that_it_takes_are_no_finding(name):
    assert [f.code for f in found(mlp_of(name), X, *MATCHES[name][1:])] == []


def mlp_of(name):
    return MATCHES[name][0]


def test_labels_longer_than_the_outputs():
    sequences, labels = torch.randn(8, 12, 8), torch.randint(1, 5, (8, 20))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5), nn.LogSoftmax(-1))

    def loss(outputs, targets):
        lengths = torch.full((8,), outputs.shape[1]), torch.full((8,), targets.shape[1])
        return F.ctc_loss(outputs.transpose(0, 1), targets, *lengths)

    codes = {f.code: f.message for f in found(model, sequences, labels, loss)}
    assert "more labels than the outputs have steps" in codes["loss-mismatch"]
    assert "non-finite" in codes
    assert "loss-mismatch" not in {f.code for f in found(model, sequences, labels[:, :4], loss)}


def test_labels_that_are_too_long_and_whose_loss_is_made_zero():
    sequences, model = torch.randn(40, 12, 8), nn.Sequential(nn.Linear(8, 5), nn.LogSoftmax(-1))
    labels = torch.randint(1, 5, (40, 20), generator=torch.Generator().manual_seed(0))

    def messages(too_long):
        def loss(outputs, targets):
            lengths = torch.full((40,), 4)
            lengths[:too_long] = 20
            return F.ctc_loss(outputs.transpose(0, 1), targets, torch.full((40,), 12), lengths, zero_infinity=True)

        return [f.message for f in found(model, sequences, labels, loss) if f.code == "loss-mismatch"]

    assert messages(1) == []
    assert "zero_infinity=True makes their loss and its gradient zero" in messages(25)[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("targets", "severity"), [(5000 + 300 * REAL, "error"), (300 * REAL, "warning"), (10 + 3 * REAL, None)]
)
@pytest.mark.parametrize("loss", ["mse", "l1", lambda o, t: (o - t).square().mean()], ids=["mse", "l1", "by hand"])
def test_targets_far_from_the_outputs(targets, severity, loss):
    first = found(mlp(1), X, targets, loss)[:1]
    assert [(f.code, f.severity) for f in first] == ([("target-scale", severity)] if severity else [])


def test_labels_without_information_but_not_targets_that_are_zero_on_purpose():
    assert found(mlp(), X, torch.ones(64).long())[0].code == "no-signal"
    assert found(mlp(1), X, torch.ones(64, 1), "bce")[0].code == "no-signal"
    assert found(mlp(1), X, torch.full((64, 1), 0.7), "mse")[0].code == "no-signal"
    rows = torch.tensor([0, 2, 1]).expand(64, 3)
    by_place = [f for f in found(mlp(9), X, rows, lambda o, t: F.cross_entropy(o.reshape(-1, 3), t.flatten()))]
    assert by_place[0].code == "no-signal"
    assert "targets of all 64 samples" in by_place[0].message

    def residual(outputs, targets):
        return (outputs - X[:, :1] - targets).square().mean()

    assert "no-signal" not in {f.code for f in found(mlp(1), X, torch.zeros(64, 1), residual)}


def test_inputs_that_repeat_within_each_batch():
    batches = [(x[:1].expand(16, 8).contiguous(), y) for x, y in zip(X.split(16), Y.split(16), strict=True)]
    first = next(f for f in diagnose(mlp(), batches, "cross_entropy").findings if f.severity != "note")
    assert (first.code, first.severity) == ("input-scale", "error")
    assert "Within each batch" in first.message
    alike = [(x, torch.full((16,), n % 3)) for n, (x, _) in enumerate(batches)]
    assert "input-scale" not in {f.code for f in diagnose(mlp(), alike, "cross_entropy").findings}


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
def test_class_numbers_that_are_stored_as_floats_are_a_note(shift):
    """Counts look the same. What is not whole, or begins at 1 (a rank, a rating), is taken for a quantity."""
    found = diagnose(mlp(1), [(X, Y[:, None].float() + shift)], "mse").findings
    noted = [f.severity for f in found if f.code == "loss-mismatch"]
    assert noted == ([] if shift else ["note"])


def test_class_numbers_are_seen_within_a_training_step():
    """A script's loop converts them where it calls the loss."""

    def step(model, batch):
        return F.mse_loss(model(batch[0]).squeeze(1), batch[1].float())

    found = diagnose(mlp(1), [(X, Y)], step=step).findings
    assert [f.severity for f in found if f.code == "loss-mismatch"] == ["note"]


def test_a_squared_error_of_every_output_and_the_class():
    first = found(mlp(), X, Y, lambda o, t: (o - t.unsqueeze(-1)).square().mean())[0]
    assert (first.code, first.value) == ("loss-mismatch", 3.0)
    assert "the numbers of 3 classes" in first.message


def test_probabilities_in_nll_loss_are_a_mismatch():
    codes = [f.code for f in found(mlp(3, nn.Softmax(1)), X, Y, F.nll_loss)]
    assert "loss-mismatch" in codes
    assert "squashed-output" not in codes


def test_a_weight_of_the_loss_that_leaves_nothing_to_learn():
    def loss(weight):
        return lambda o, t: F.cross_entropy(o, t) + weight * (o - o.mean(0)).square().mean()

    (heavy,) = (f for f in found(mlp(), X, Y, loss(100.0), probe_steps=100) if f.code == "loss-terms")
    assert heavy.severity == "error"
    assert heavy.value > heavy.threshold  # what learning from the data costs the other summand, over what it gains
    assert "loss-terms" not in {f.code for f in found(mlp(), X, Y, loss(1e-3))}


def test_biases_alone_are_trained_in_a_network_that_has_learnt_nothing():
    model = mlp()
    for p in model.parameters():
        p.requires_grad_(p.dim() < 2)
    (frozen,) = (f for f in found(model, X, Y) if f.code == "frozen-parameters")
    assert frozen.severity == "warning"
    whole = mlp()
    optimizer = torch.optim.Adam(whole.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(whole(X), Y).backward()
        optimizer.step()
    for p in whole.parameters():
        p.requires_grad_(p.dim() < 2)
    assert "frozen-parameters" not in {f.code for f in found(whole, X, Y)}


@pytest.mark.parametrize(("mean", "variance"), [(20.0, 1.0), (0.0, 1e-4), (0.0, 1e5)])
def test_stored_statistics_of_other_data(mean, variance):
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    model[1].running_mean.fill_(mean)
    model[1].running_var.fill_(variance)
    model[1].eval()
    first = found(model, X, Y)[0]
    assert (first.code, first.layer) == ("frozen-batch-norm", "1")


IMAGES = torch.randn(64, 1, 8, 8, generator=GENERATOR)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "inputs", "linear"),
    [
        (nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 3)), X, True),
        (nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3), nn.Softplus()), X, True),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)),
            IMAGES,
            True,
        ),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)), IMAGES, False),
        (nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 3)), X, False),
        (nn.Linear(8, 3), X, False),
        (nn.Sequential(nn.Embedding(5, 16), nn.Flatten(), nn.Linear(128, 3)), (X > 0).long(), False),
    ],
)
def test_weights_in_a_row(model, inputs, linear):
    assert ("linear-network" in {f.code for f in found(model, inputs, Y)}) is linear


class Adapted(nn.Module):
    """A linear map with a low-rank update, whose second factor is not zero any more."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.base, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Factors(nn.Module):
    """A product of two matrices that are no layers."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Parameter(torch.randn(8, rank) / 3), nn.Parameter(torch.randn(rank, 8) / 3)

    def forward(self, x):
        return x @ self.left @ self.right


@pytest.mark.parametrize(
    ("model", "severity"),
    [
        (nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 8)), "note"),
        (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), "warning"),
        (nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 6), nn.Linear(6, 8)), "warning"),  # the third could be left out
        (Adapted(), "note"),
        (Factors(2), "note"),
        (Factors(8), "warning"),
        (nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2), nn.Linear(2, 8)), None),
    ],
)
def test_a_product_of_two_weights_of_low_rank_is_meant(model, severity):
    codes = {f.code: f.severity for f in diagnose(model, [(X, X)], "mse").findings}
    assert codes.get("linear-network") == severity


def test_modes():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
    assert found(model, X, Y) == []
    assert found(model.eval(), X, Y)[0].code == "training-mode"
    assert found(mlp().eval(), X, Y) == []  # nothing in it has a mode
    assert "drops 90%" in found(nn.Sequential(nn.Dropout(0.9), *mlp()), X, Y)[0].message


def test_steps_and_squares_that_half_precision_cannot_hold():
    low = found(mlp().bfloat16(), X, Y, optimizer="adamw", learning_rate=1e-4)[0]
    assert (low.code, "rounds to no change" in low.message) == ("precision", True)
    assert "precision" not in {f.code for f in found(mlp(), X, Y, optimizer="adamw", learning_rate=1e-4)}
    squares = found(mlp().half(), X, Y, optimizer="adam", learning_rate=1e-3)[0]
    assert (squares.code, "divides by zero" in squares.message) == ("precision", True)
    model = mlp().half()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(2):  # torch itself
        optimizer.zero_grad()
        F.cross_entropy(model(X.half()).float(), Y).backward()
        optimizer.step()
    assert not all(bool(torch.isfinite(p).all()) for p in model.parameters())


class Basis(nn.Module):
    """Bumps between -1 and 1."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 3)

    def forward(self, x):
        bumps = torch.relu(1 - 4 * (x[..., None] - torch.linspace(-1, 1, 8)).abs()).flatten(1)
        return self.last(torch.tanh(self.first(bumps)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "inputs", "said"),
    [
        (mlp(), 1e-4 * X, "largest number"),
        (mlp(), torch.ones(64, 8), "same inputs"),
        (mlp(), 1000 + 0.01 * X, ""),
        (mlp(), 1 + 1e-4 * X, "vary between samples"),
        (Basis(), 5 + X.abs(), "everything that meets the weights"),
    ],
    ids=["tiny", "constant", "offset", "alike", "basis"],
)
def test_inputs_that_tell_samples_apart_badly(model, inputs, said):
    first = found(model, inputs, Y)[0]
    assert first.code == "input-scale"
    assert said in first.message


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Basis(), torch.tanh(X)),
        (nn.Sequential(nn.Linear(500, 32), nn.ReLU(), nn.Linear(32, 3)), F.one_hot(torch.arange(64), 500).float()),
        (nn.Sequential(nn.BatchNorm1d(8), *mlp()), 1e-3 * X),
    ],
    ids=["covered", "one-hot", "normalised"],
)
def test_inputs_that_are_fine(model, inputs):
    assert found(model, inputs, Y) == []


# ── What weighs as much as what follows from it, and what wakes after a step ─────────────────────────────────────────
class Clamped(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.low, self.high = nn.Linear(8, 32), nn.Linear(32, 3), low, high

    def forward(self, x):
        return self.last(self.first(x).clamp(self.low, self.high))


@pytest.mark.parametrize(
    ("limits", "saturated"),
    [((-1e-3, 1e-3), True), ((0.0, 1e-3), True), ((-5.0, 5.0), False), ((0.0, 6.0), False), ((0.0, None), False)],
)
def test_a_clamp_that_holds_every_number_fast(limits, saturated):
    codes = {f.code: f for f in found(Clamped(*limits), X, Y, probe_steps=0)}
    assert ("saturated-units" in codes) is saturated
    if saturated:
        assert codes["saturated-units"].layer == "first"


def test_a_gain_that_starts_at_zero_is_no_silence_but_two_factors_are():
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 3))
    nn.init.zeros_(model[3].weight)
    codes = {f.code for f in found(model, X, Y, probe_steps=0)}
    assert not codes & {"vanishing-activations", "constant-output"}
    nn.init.zeros_(model[5].weight)
    assert "zero-gradient" in {f.code for f in found(model, X, Y, probe_steps=0)}


def test_statistics_that_do_not_fit_weigh_as_much_as_what_they_silence():
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    model[1].running_mean.fill_(1.0)
    model[1].running_var.fill_(1e10)
    model[1].eval()
    first, *others = found(model, X, Y, probe_steps=0)
    assert (first.code, first.severity) == ("frozen-batch-norm", "error")
    assert {f.severity for f in others} & {"error"}


def test_the_last_operation_is_named_with_its_module():
    (squashed,) = (f for f in found(mlp(3, nn.Softmax(1)), X, Y) if f.code == "squashed-output")
    assert squashed.layer == "5"


def contrastive(temperature, hide):
    """Two views by one encoder, all pairs of them in a batch, each with itself left out."""

    def step(model, batch):
        z = F.normalize(torch.cat([model(batch), model(batch + 0.1)]), dim=1)
        scores = hide(z @ z.T / temperature)
        count = len(batch)
        return F.cross_entropy(scores, (torch.arange(2 * count) + count) % (2 * count))

    return step


HIDES = {
    "masked": lambda s: s.masked_fill(torch.eye(len(s)).bool(), -1e9),
    "infinite": lambda s: s.masked_fill(torch.eye(len(s)).bool(), float("-inf")),
    "diagonal": lambda s: s.clone().fill_diagonal_(-1e9),
    "not at all": lambda s: s - 0.0,
}


@pytest.mark.parametrize("hide", HIDES.values(), ids=HIDES)
@pytest.mark.parametrize(("temperature", "codes"), [(1.0, ["squashed-output"]), (0.5, []), (0.07, [])])
def test_cosines_of_pairs_need_a_temperature(hide, temperature, codes):
    model, data = nn.Linear(8, 8), [torch.randn(32, 8, generator=torch.Generator().manual_seed(0))]
    findings = diagnose(model, data, step=contrastive(temperature, hide), probe_steps=0).findings
    assert [f.code for f in findings if f.severity != "note"] == codes


@pytest.mark.parametrize(("several", "severity"), [(True, "error"), (False, "warning")])
def test_several_classes_at_once_are_an_error_where_no_short_run_learns_them(several, severity):
    """Of samples with four classes of eight on average nothing is learnt; where one sample has two, the others are."""
    x = torch.randn(128, 20, generator=torch.Generator().manual_seed(0))
    y = (x[:, :8] > 0).float() if several else F.one_hot(x[:, :3].argmax(1), 8).float()
    y[0, :2] = 1.0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
    data = list(zip(x.split(32), y.split(32), strict=True))
    found = diagnose(model, data, "cross_entropy", optimizer="adam", learning_rate=1e-3 if several else 1e-2)
    (finding,) = [f for f in found.findings if f.code == "loss-mismatch"]
    assert finding.severity == severity
    assert bool(finding.evidence) == several


@pytest.mark.parametrize(
    ("values", "said"),
    [((0.0, 1 / 255), True), ((0.0, 1.0), False), ((0.0, 0.9), False), ((0.05, 0.95), False), ((0.01, 0.02), False)],
)
def test_labels_that_were_divided_twice(values, said):
    """A mask of 0 and 255 that becomes 0 and 1/255: nothing is ever to be likely."""
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = torch.where(x[:, :1] > 0, values[1], values[0])
    found = diagnose(nn.Linear(8, 1), [(x, y)], F.binary_cross_entropy_with_logits, probe_steps=0)
    assert any(f.code == "loss-mismatch" and "two values" in f.message for f in found.findings) == said


def replayed(states, *, shift=0.0):
    """Steps of a value network whose batches hold states with rewards that differ."""
    rewards = torch.randn(len(states), states.shape[1], generator=torch.Generator().manual_seed(1))
    data = list(zip(states, rewards + shift, strict=True))
    return data, lambda model, batch: (model(batch[0])[:, 0] - batch[1]).square().mean()


STATES = torch.randn(4, 16, 3, generator=torch.Generator().manual_seed(0))
REPEATED = {
    "one state a batch": (STATES[:, :1].expand(4, 16, 3), ["input-scale"]),
    "states that differ": (STATES, []),
    "one state of all": (STATES[:1, :1].expand(4, 16, 3), []),  # a bandit without a context
    "two states a batch": (STATES[:, :2].repeat(1, 8, 1), []),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_step_whose_batches_repeat_one_state_beside_rewards_that_differ(name):
    states, expected = REPEATED[name]
    data, step = replayed(states)
    torch.manual_seed(0)
    found = diagnose(nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1)), data, step=step).findings
    assert [f.code for f in found if f.code == "input-scale"] == expected
