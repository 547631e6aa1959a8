"""Losses by name, callable or the model's own; and what the best constant predictor reaches."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from cases import case, flat, normal
from cases import unprobed as diagnose
from theta0._batches import Batch, load_batches
from theta0._losses import applied, checked, constant_loss, loss_of, name_of

X, Y = normal(8, 3), torch.tensor([0, 1, 2, 0, 0, 1, 2, 2])
LABELLED, REGRESSED = Batch(X, Y, 8), Batch(X, normal(8, 3, seed=2), 8)
BINARY = Batch(X, (normal(8, 3, seed=3) > 0).float(), 8)


@pytest.mark.parametrize(
    ("name", "function", "module", "batch"),
    [
        ("cross_entropy", F.cross_entropy, nn.CrossEntropyLoss(), LABELLED),
        ("mse", F.mse_loss, nn.MSELoss(), REGRESSED),
        ("l1", F.l1_loss, nn.L1Loss(), REGRESSED),
        ("bce", F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss(), BINARY),
    ],
)
def test_three_spellings_of_a_loss(name, function, module, batch):
    output = normal(8, 3, seed=5)
    expected = function(output, batch.targets)
    for loss in (name, function, module):
        assert checked(loss) is loss
        assert name_of(loss) == name
        torch.testing.assert_close(applied(loss, output, batch), expected)
        assert constant_loss(loss, output, batch) == constant_loss(name, output, batch)


def test_a_loss_with_settings_is_not_the_standard_one():
    assert name_of(nn.CrossEntropyLoss(weight=torch.ones(3))) is None
    assert name_of(nn.CrossEntropyLoss(label_smoothing=0.2)) is None
    assert name_of(nn.CrossEntropyLoss(ignore_index=0)) is None
    assert name_of(nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))) is None
    assert name_of(nn.MSELoss(reduction="sum")) is None
    assert name_of(lambda output, targets: output.mean()) is None


def best_constant(function, targets, start, steps=3000):
    c = torch.full(start, 0.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([c], max_iter=steps, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure():
        optimizer.zero_grad()
        value = function(c.expand(len(targets), *start), targets)
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()


@pytest.mark.slow
@given(st.integers(0, 50))
def test_the_constant_loss_is_the_least_that_a_constant_reaches(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (9,), generator=generator)
    labels[:3] = torch.arange(3)
    real = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    binary = (real > 0.2).double()
    binary[:2] = torch.tensor([[0.0, 1], [1, 0]])
    output = torch.zeros(9, 3, dtype=torch.float64)
    pairs = [
        ("cross_entropy", F.cross_entropy, labels, (3,)),
        ("mse", F.mse_loss, real, (2,)),
        ("bce", F.binary_cross_entropy_with_logits, binary, (2,)),
    ]
    for name, function, targets, shape in pairs:
        found = constant_loss(name, output[:, : shape[0]], Batch(output, targets, 9))
        assert found == pytest.approx(best_constant(function, targets, shape), rel=1e-6), name
    median = np.median(real.numpy(), 0)
    expected = np.abs(real.numpy() - median).mean()
    assert constant_loss("l1", output[:, :2], Batch(output, real, 9)) == pytest.approx(expected)


def test_constant_loss_of_soft_and_ignored_labels():
    soft = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    assert constant_loss("cross_entropy", soft, Batch(soft, soft, 2)) == pytest.approx(np.log(2))
    hard = torch.tensor([0, 1, -100, 0, 1])
    assert constant_loss("cross_entropy", torch.zeros(5, 2), Batch(X, hard, 5)) == pytest.approx(np.log(2))


def test_no_constant_loss_where_targets_do_not_fit():
    assert constant_loss("mse", X, Batch(X, torch.ones(8), 8)) is None
    assert constant_loss("mse", X, Batch(X, None, 8)) is None
    assert constant_loss(lambda o, t: o.mean(), X, REGRESSED) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["mse", "l1", "bce", "cross_entropy"])
def test_named_losses_are_taken_in_float32_at_least(dtype, name):
    batch = LABELLED if name == "cross_entropy" else BINARY
    value = applied(name, normal(8, 3, seed=5).to(dtype), batch)
    assert value.dtype == torch.float32
    assert applied(name, normal(8, 3, seed=5).double(), batch).dtype == torch.float64


@pytest.mark.parametrize("targets", [torch.tensor([0, 1, 1, 0]), torch.tensor([0.0, 1, 1, 0]).double()])
def test_regression_targets_follow_the_outputs_dtype(targets):
    assert applied("mse", torch.zeros(4), Batch(targets, targets, 4)).item() == pytest.approx(0.5)


def test_the_models_own_loss_and_logits():
    c = case("own loss")
    model = c.model()
    batch = load_batches(c.batches(), model)[0]
    own, outputs = loss_of(model, batch, None)
    named, _ = loss_of(model, batch, "cross_entropy")
    by_callable, _ = loss_of(model, batch, lambda logits, labels: F.cross_entropy(logits, labels))
    torch.testing.assert_close(own, named)
    torch.testing.assert_close(own, by_callable)
    assert outputs.logits.shape[1] == 3
    torch.testing.assert_close(applied(None, {"loss": torch.tensor([2.0])}, batch), torch.tensor(2.0))


@pytest.mark.parametrize(
    ("loss", "outputs", "batch", "message"),
    [
        (None, X, LABELLED, "loss: expected a name or a callable, got None"),
        (None, SimpleNamespace(loss=None), LABELLED, "no .loss"),
        (
            "cross_entropy",
            X,
            Batch(X, Y + 1, 8, 3),
            r"batch 3: .*labels from 0 to 2 \(the model has 3 outputs\), got 1 to 3",
        ),
        ("cross_entropy", X, Batch(X, Y - 1, 8), "got -1 to 1"),
        ("cross_entropy", X, Batch(X, None, 8), "expected targets, got NoneType"),
        ("mse", "text", REGRESSED, "expected a floating output, got str"),
        ("mse", X[:, :2], REGRESSED, "batch 0: the loss 'mse' raised"),
        (lambda o, t: o, X, LABELLED, r"expected a scalar tensor, got \(8, 3\); reduce"),
        (lambda o, t: 1.0, X, LABELLED, "expected a scalar tensor, got float"),
        (lambda o, t: o.nothing, X, LABELLED, "the loss raised AttributeError: .*nothing"),
        (lambda o, t: t["x"], X, Batch(X, {}, 8, 1), "batch 1: the loss raised KeyError: 'x'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses_that_cannot_be_used(loss, outputs, batch, message):
    with pytest.raises(ValueError, match=message) as caught:
        applied(loss, outputs, batch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loss", ["hinge", 3])
def test_what_is_no_loss(loss, unchecked):
    with pytest.raises(ValueError, match=f"loss: expected 'cross_entropy'.*got {loss!r}"):
        diagnose(case("mlp").model(), flat(), loss)


def test_a_forward_that_raises_is_told_with_the_batch():
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("no such luck\nand a second line")

    with pytest.raises(
        ValueError, match=r"batch 0: the model's forward raised RuntimeError: no such luck \(the inputs are"
    ):
        diagnose(Failing(), flat(), "cross_entropy")


def test_batch_norm_with_one_sample_says_so():
    with pytest.raises(ValueError, match=r"batch 0: the model's forward raised.*more than one value per channel"):
        diagnose(case("norm and dropout").model(), [(normal(1, 6), torch.tensor([0]))], "cross_entropy")
