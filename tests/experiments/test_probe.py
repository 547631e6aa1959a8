"""Short runs say whether a start trains; what they say decides between findings."""

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from torch import nn

from cases import normal
from states import randomness, state_of
from theta0._batches import load_batches
from theta0.diagnosis import diagnose
from theta0.experiments.free_outputs import free_outputs
from theta0.experiments.optimizers import optimizer_kind
from theta0.experiments.probe import probe
from theta0.experiments.shuffled_labels import ShuffledLabels, permutable, shuffled_labels
from theta0.experiments.zero_inputs import changed_without_data

X = normal(128, 8)
Y = X[:, :3].argmax(1)


def parts(targets):
    return list(zip(X.split(32), targets.split(32), strict=True))


def mlp(last: nn.Module | None = None, outputs: int = 3) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, outputs)]
        return nn.Sequential(*layers, *([] if last is None else [last]))


def silent() -> nn.Sequential:
    """Two zero weights in a row, and nothing between them: neither ever gets a gradient."""
    model = mlp()
    for parameter in (model[2].weight, model[2].bias, model[4].weight):
        nn.init.zeros_(parameter)
    return model


def probed(model, rate, targets=Y, steps=100):
    data = load_batches(parts(targets), model)
    free = free_outputs(model, data, "cross_entropy")
    return probe(model, data, "cross_entropy", optimizer_kind("adam", model), rate, free=free, steps=steps)


def test_a_network_that_learns_trains_and_the_run_is_the_evidence():
    found = probed(mlp(), 1e-2)
    (run,) = found.runs
    assert (found.outcome, run.rate, run.outcome) == ("trains", 1e-2, "trains")
    frequencies = torch.bincount(Y).double() / len(Y)
    assert found.constant == pytest.approx(float(-(frequencies * frequencies.log()).sum()))
    assert run.final < found.level < found.constant
    assert found.cost == pytest.approx(len(run.losses) + 4 / 3)


def test_one_that_cannot_learn_fails_at_every_rate_and_on_a_few_samples():
    found = probed(silent(), 0.1)
    assert found.fails
    assert len(found.runs) >= 4
    assert found.fits_one_batch is False
    assert found.cost <= 100


def test_a_rate_that_is_too_low_is_told_from_a_start_that_is_ill():
    codes = [f.code for f in diagnose(mlp(), parts(Y), "cross_entropy", optimizer="adam", learning_rate=1e-7).findings]
    assert "learning-rate-too-low" in codes
    assert "does-not-train" not in codes


def test_a_rate_finding_that_a_trial_refutes_is_a_note():
    model, targets = mlp(), Y
    options = {"optimizer": "adam", "learning_rate": 0.3}
    alone = diagnose(model, parts(targets), "cross_entropy", probe_steps=0, **options)
    tried = diagnose(model, parts(targets), "cross_entropy", **options)
    assert tried.probe.outcome == "trains"
    assert all(f.severity == "note" for f in tried.findings if f.code.startswith("learning-rate"))
    assert len(tried.findings) <= len(alone.findings)


def test_a_rate_that_overshoots_is_an_error_with_both_runs():
    found = diagnose(mlp(), parts(Y), "cross_entropy", optimizer="momentum", learning_rate=300.0)
    (finding,) = (f for f in found.findings if f.code == "learning-rate-too-high")
    assert finding.severity == "error"
    high, low = finding.evidence
    assert high.rate == 300.0 > low.rate
    assert low.final < high.final


def test_it_is_said_when_there_was_no_probe():
    found = diagnose(mlp(), parts(Y), "cross_entropy", probe_steps=0)
    assert found.probe is None
    assert "probe was turned off" in " ".join(found.not_measured)
    assert not diagnose(mlp(), parts(Y), "cross_entropy").not_measured


def test_without_a_cause_it_says_what_was_excluded():
    """A loss of half of the batch's labels alone: nothing that the network does reaches it."""
    found = diagnose(
        mlp(), parts(Y), lambda o, t: 0 * o.sum() + t.double().mean(), optimizer="adam", learning_rate=1e-3
    )
    assert not any(run.outcome == "trains" for run in found.probe.runs)
    assert found.not_measured or not found.healthy


# ── Free outputs ─────────────────────────────────────────────────────────────────────────────────────────────────────
def free_of(model, targets, loss):
    return free_outputs(model, load_batches(parts(targets), model), loss)


def test_the_constant_of_an_unnamed_loss_is_its_closed_form():
    t = normal(128, 2, seed=1) * 5 + 7
    found = free_of(mlp(outputs=2), t, lambda o, y: ((o - y) ** 2).sum(1).mean())
    assert found.constant == pytest.approx(float(t.var(0, correction=0).sum()), rel=1e-3)
    assert found.least == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_soft_labels_by_hand_are_not_called_squashed(smoothing):
    t = (1 - smoothing) * nn.functional.one_hot(Y, 3) + smoothing / 3
    found = free_of(mlp(), t, lambda o, y: -(y * o.log_softmax(1)).sum(1).mean())
    assert found.least == pytest.approx(float(torch.special.entr(t).sum(1).mean()), rel=1e-3)
    assert found.gap == 0
    codes = [f.code for f in diagnose(mlp(), parts(t), lambda o, y: -(y * o.log_softmax(1)).sum(1).mean()).findings]
    assert "squashed-output" not in codes


@pytest.mark.slow
def test_a_last_operation_that_an_unnamed_loss_cannot_use_is_found():
    model, t = mlp(nn.Sigmoid(), 1), normal(128, 1, seed=2) * 5
    found = free_of(model, t, nn.HuberLoss())
    assert found.gap > 0.1
    assert "squashed-output" in [f.code for f in diagnose(model, parts(t), nn.HuberLoss()).findings]


def test_a_loss_without_a_minimum_has_none():
    assert free_of(mlp(), Y, nn.NLLLoss()).least == -math.inf


def test_a_loss_that_is_no_number_for_large_outputs_ends_no_diagnosis():
    def loss(outputs, targets):
        far = (outputs.detach() * 1e38).sum()
        return -outputs.tanh().sum() + (far - far)

    found = diagnose(mlp(), parts(Y), loss)
    assert found.records


# ── Labels and inputs ────────────────────────────────────────────────────────────────────────────────────────────────
def test_labels_of_their_own_are_not_permuted():
    model = mlp()
    assert permutable(load_batches(parts(Y), model))
    assert not permutable(load_batches(parts(torch.arange(128)), model))


def test_an_output_without_the_data():
    model = mlp()
    (batch,) = load_batches([(X, Y)], model)
    assert changed_without_data(model, batch) > 0.01
    nn.init.zeros_(model[0].weight)
    assert changed_without_data(model, batch) == 0


# ── The model is as it was ───────────────────────────────────────────────────────────────────────────────────────────
class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop, RuntimeError])
@pytest.mark.parametrize("call", [1, 9, 30])
def test_also_when_an_experiment_is_interrupted(error, call):
    model, calls = mlp(nn.BatchNorm1d(3)), []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) > call:
            raise error
        return nn.functional.cross_entropy(outputs, targets)

    before, drawn = state_of(model), randomness()
    with suppress(error, ValueError):  # an exception of the loss is a ValueError of one sentence
        diagnose(model, parts(Y), loss, optimizer="adam", learning_rate=1e-4, probe_steps=30)
    assert (state_of(model), randomness()) == (before, drawn)


def test_also_when_it_diverges():
    model = mlp()
    before = state_of(model)
    diagnose(model, parts(Y), "cross_entropy", optimizer="sgd", learning_rate=1e30)
    assert state_of(model) == before


def test_what_a_loss_reaches_does_not_depend_on_its_unit():
    plain = free_of(mlp(), Y, lambda o, y: nn.functional.cross_entropy(o, y))
    tiny = free_of(mlp(), Y, lambda o, y: 1e-9 * nn.functional.cross_entropy(o, y))
    assert tiny.constant == pytest.approx(1e-9 * plain.constant, rel=1e-3)
    assert tiny.least < 1e-3 * tiny.constant


# ── What a run refutes, and what it makes clear ──────────────────────────────────────────────────────────────────────
class Sided(nn.Module):
    """A network that trains, beside a branch whose units are all off."""

    def __init__(self):
        super().__init__()
        self.main, self.side, self.end = mlp(), nn.Linear(8, 16), nn.Linear(16, 3)
        nn.init.constant_(self.side.bias, -50.0)

    def forward(self, x):
        return self.main(x) + self.end(torch.relu(self.side(x)))


def test_a_finding_on_the_start_is_a_note_where_a_run_trains_well():
    options = {"optimizer": "adam", "learning_rate": 1e-2}
    alone = diagnose(Sided(), parts(Y), "cross_entropy", probe_steps=0, **options)
    tried = diagnose(Sided(), parts(Y), "cross_entropy", **options)
    assert {f.severity for f in alone.findings if f.code == "dead-units"} == {"error"}
    (dead,) = (f for f in tried.findings if f.code == "dead-units")
    assert dead.severity == "note"
    assert "not held back" in dead.message
    gained = tried.probe.constant - dead.evidence[0].final
    assert gained > 0.25 * (tried.probe.constant - tried.probe.floor)


@pytest.mark.slow
def test_labels_moved_apart_from_their_inputs_carry_no_signal():
    options = {"optimizer": "adam", "learning_rate": 1e-3}
    order = torch.randperm(128, generator=torch.Generator().manual_seed(3))
    moved = [f for f in diagnose(mlp(), parts(Y[order]), "cross_entropy", **options).findings if f.severity != "note"]
    assert moved[0].code == "no-signal"
    assert moved[0].value < 2.5
    assert "no-signal" not in [f.code for f in diagnose(mlp(), parts(Y), "cross_entropy", **options).findings]


def test_a_diagnosis_with_every_experiment_keeps_its_budget():
    order = torch.randperm(128, generator=torch.Generator().manual_seed(3))
    for targets, model in ((Y[order], mlp()), (Y, silent()), (Y, Sided())):
        found = diagnose(model, parts(targets), "cross_entropy", optimizer="adam", learning_rate=1e-4)
        assert found.cost <= 120


def test_the_advantage_of_real_labels_is_the_share_that_permuted_ones_leave():
    found = ShuffledLabels(real=1.0, permuted=(1.8, 1.5), constant=2.0, losses=((), ()), cost=4.0)
    assert found.advantage == pytest.approx(0.5)
    assert replace(found, real=2.5).advantage == replace(found, permuted=()).advantage == math.inf


def own_probe(model, loss, *, free=None, steps=60):
    data = load_batches(parts(Y), model)
    return probe(model, data, loss, optimizer_kind("adam", model), 1e-2, free=free, steps=steps)


def test_a_first_loss_that_is_not_finite_is_the_reason_why_nothing_is_tried():
    found = own_probe(mlp(), lambda o, t: nn.functional.cross_entropy(o, t) + float("inf"))
    assert (found.outcome, found.runs, found.reason) == ("diverges", (), "the first loss is not finite")


def test_where_no_constant_is_known_nothing_is_said_of_what_there_is_to_learn():
    found = own_probe(mlp(), lambda o, t: nn.functional.cross_entropy(o, t))
    assert found.constant is None
    assert found.outcome == "trains"
    assert not found.trains_much(0.5)


class WholeBatch(nn.Module):
    """Takes 32 samples, no more and no fewer, and learns nothing: its gradient points the wrong way."""

    class Uphill(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return -gradient

    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        return self.Uphill.apply(self.body(x) + torch.zeros(32, 3))


def test_a_model_that_takes_whole_batches_is_asked_for_one_by_heart():
    found = probed(WholeBatch(), 1e-2)
    assert found.fails
    assert found.fits_one_batch is False


def test_permuted_labels_that_cannot_be_trained_on_say_nothing():
    model = mlp()
    data = load_batches(parts(Y), model)
    options = {"real": [1.0] * 8, "constant": 1.1, "most": 100.0}
    kind = optimizer_kind("adam", model)

    def raising(outputs, targets):
        raise RuntimeError("of the loss")

    assert shuffled_labels(model, data, raising, kind, 1e-2, **options) is None
    assert shuffled_labels(model, data, "cross_entropy", kind, 1e-2, **options | {"most": 4.0}) is None
    assert len(shuffled_labels(model, data, "cross_entropy", kind, 1e-2, **options).losses[0]) == 8


def test_a_plateau_that_ends_on_a_few_samples_is_not_called_stuck():
    """Six narrow layers at torch's start: the loss stands still for fifty steps of the user's rate, and then falls."""
    torch.manual_seed(0)
    parts_ = [part for _ in range(5) for part in (nn.Linear(8, 8), nn.Tanh())]
    model = nn.Sequential(*parts_, nn.Linear(8, 3))
    for layer in model[::2]:
        nn.init.normal_(layer.weight, std=0.2)
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
    data = list(zip(x.split(32), x[:, :3].argmax(1).split(32), strict=True))
    found = diagnose(model, data, "cross_entropy", optimizer="momentum", learning_rate=0.1)
    assert found.probe.fits_one_batch is not False
    assert found.cost <= 120
    assert not [f for f in found.findings if f.code == "does-not-train"]


def rectified(hidden: int) -> nn.Sequential:
    torch.manual_seed(0)
    between = [part for _ in range(hidden) for part in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), *between, nn.Linear(32, 3))


def test_a_rate_is_advised_where_a_run_of_thirty_steps_trains_at_it():
    found = diagnose(rectified(1), parts(Y), "cross_entropy", optimizer="adam", learning_rate=1e-4)
    (finding,) = [f for f in found.findings if f.code == "learning-rate-too-low"]
    given, better = finding.evidence
    assert (given.rate, better.outcome, len(better.losses), found.probe.given_fits) == (1e-4, "trains", 30, False)
    assert f"Train at about {better.rate:.2g}" in finding.message
    assert found.cost <= 120


def test_a_rate_at_which_a_few_samples_are_learnt_is_not_called_too_low():
    """Eight layers: in ten steps thirty times the rate goes far, and the rate itself leaves the plateau later."""
    found = diagnose(rectified(6), parts(Y), "cross_entropy", optimizer="adam", learning_rate=1e-3)
    assert found.probe.at(1e-3).outcome != "trains"
    assert found.probe.given_fits is not False
    assert not [f for f in found.findings if f.code.startswith("learning-rate")]
    assert found.cost <= 120


def test_a_rate_that_is_not_seen_to_train_beside_one_that_does_is_said_to_be_undecided():
    found = diagnose(rectified(1), parts(Y), "cross_entropy", optimizer="sgd", learning_rate=0.03)
    assert not [f for f in found.findings if f.code.startswith("learning-rate")]
    assert any(line.startswith("Whether it trains at the rate given is undecided") for line in found.not_measured)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("rate", [None, 1e-2])
def test_few_gradients_leave_it_undecided_or_a_short_run(steps, rate):
    found = diagnose(mlp(), parts(Y), "cross_entropy", optimizer="adam", learning_rate=rate, probe_steps=steps)
    assert "does-not-train" not in {f.code for f in found.findings}
    assert found.probe.runs or any("do not suffice for a run" in line for line in found.not_measured)


XOR = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
XOR_TARGETS = torch.tensor([[0.0], [1.0], [1.0], [0.0]])


def logic() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Linear(4, 1), nn.Sigmoid())


@pytest.mark.parametrize(("rate", "code"), [(0.5, None), (0.01, "learning-rate-too-low")])
def test_a_small_network_gets_the_time_that_its_plateau_takes(rate, code):
    model = logic()
    found = diagnose(model, [(XOR, XOR_TARGETS)], "mse", optimizer="momentum", learning_rate=rate)
    assert [f.code for f in found.findings if f.severity != "note"] == ([] if code is None else [code])
    assert found.probe.longer > 100
    assert found.cost > found.probe.longer
    assert found.probe.cost <= 100
    best = found.probe.at(found.probe.best)
    assert best.outcome == "trains"
    assert len(best.losses) > 100


def test_patience_is_for_small_networks_that_do_not_train():
    data = load_batches([(XOR, XOR_TARGETS)], logic())
    kind = optimizer_kind("momentum", logic())
    hasty = probe(logic(), data, "mse", kind, 0.5, free=None, steps=100)
    assert hasty.longer == 0
    model = mlp()
    data = load_batches(parts(Y), model)
    found = probe(model, data, "cross_entropy", optimizer_kind("adam", model), 1e-2, free=None, patient=True)
    assert (found.outcome, found.longer) == ("trains", 0)
    wide = nn.Sequential(nn.Linear(8, 400), nn.Linear(400, 3))
    for parameter in wide.parameters():
        nn.init.zeros_(parameter)
    few = load_batches([(X[:48], Y[:48])], wide)
    assert sum(p.numel() for p in wide.parameters()) * 48 > 1e5
    for network, given in ((wide, few), (silent(), data)):  # too large, and samples that may be learned by heart
        found = probe(network, given, "cross_entropy", optimizer_kind("adam", network), 1e-12, free=None, patient=True)
        assert found.outcome != "trains"
        assert found.longer == 0


class Averaged(nn.Module):
    """Each sample's features divided by far too much between two layers."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.last, self.factor = nn.Linear(8, 16), nn.Linear(16, 3), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh() / self.factor).clamp(-1e-9, 1e-9)


@pytest.mark.parametrize(("factor", "named"), [(100.0, True), (1.0, False)])
def test_where_nothing_else_is_known_the_place_is_named_that_shrinks_the_signal(factor, named):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Averaged(factor)
    nn.init.zeros_(model.last.bias)
    from theta0.diagnosis.evidence import Evidence
    from theta0.diagnosis.rules.does_not_train import _faint

    evidence = Evidence(model, load_batches(parts(Y), model), "cross_entropy")
    layer, said = _faint(evidence)
    assert (layer, "'last' is" in said) == (("last", True) if named else ("", False))
