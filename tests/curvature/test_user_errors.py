"""What a user's own code raises inside a curvature product is said, and never taken for a loss without curvature."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from theta0 import UserCodeError, diagnose, suggest_learning_rate
from theta0.curvature import top_eigenvalue

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 3, generator=GENERATOR), torch.arange(32) % 2


class Own(torch.autograd.Function):
    """x², whose backward pass raises where it is differentiated again; `error` is what."""

    error: type[Exception] | None = None
    again = True  # whether only a second derivative fails

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        if Own.error is not None and (torch.is_grad_enabled() or not Own.again):
            raise Own.error("no state here")  # the line that is to be named
        return 2 * g * ctx.saved_tensors[0]


class Once(torch.autograd.Function):
    """|x|, marked as differentiable once only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].sign()


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)
        self.function = function

    def forward(self, x):
        return self.outer(self.function(self.inner(x)))


def in_network() -> tuple[nn.Module, object]:
    return Apply(Own.apply), "cross_entropy"


def in_loss() -> tuple[nn.Module, object]:
    return Apply(torch.tanh), lambda f, t: F.cross_entropy(f, t) + 0.1 * Own.apply(f).mean()


PLACES = {"network": in_network, "loss": in_loss}
DATA = [(X, Y)] * 2


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [KeyError, ValueError, LookupError])
@pytest.mark.parametrize("matrix", [None, "hessian"])
def test_an_error_of_the_users_own_backward_pass_is_theirs(place, error, matrix, monkeypatch):
    monkeypatch.setattr(Own, "error", error)
    model, loss = PLACES[place]()
    with pytest.raises(UserCodeError, match=rf"raised {error.__name__}.* at .*test_user_errors\.py:\d+"):
        top_eigenvalue(model, DATA, loss, matrix=matrix or "ggn", generator=0)
    with pytest.raises(UserCodeError, match="no state here"):
        suggest_learning_rate(model, DATA, loss, matrix=matrix, generator=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError])
def test_an_operation_that_refuses_a_second_derivative_leaves_a_rate_and_says_so(place, error, monkeypatch):
    monkeypatch.setattr(Own, "error", error)
    model, loss = PLACES[place]()
    with pytest.raises(ValueError, match=r"no state here at .*test_user_errors\.py:\d+"):
        top_eigenvalue(model, DATA, loss, generator=0)
    found = suggest_learning_rate(model, DATA, loss, steps=40, generator=0)
    assert found.value is not None
    assert len(found.not_measured) == 1
    assert "λ at the start" in found.not_measured[0]
    assert "no state here at" in found.not_measured[0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("error", [KeyError, RuntimeError])
def test_a_backward_pass_that_fails_in_training_too_is_an_error_of_the_users(error, monkeypatch):
    monkeypatch.setattr(Own, "error", error)
    monkeypatch.setattr(Own, "again", False)
    with pytest.raises(UserCodeError, match="no state here"):
        suggest_learning_rate(Apply(Own.apply), DATA, "cross_entropy", generator=0)


def summand(f: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(f, t) + Once.apply(f).mean()


class WithLoss(nn.Module):
    """A model that returns its loss, a summand of which is differentiable once."""

    def __init__(self):
        super().__init__()
        self.inner = Apply(torch.tanh)

    def forward(self, x, labels):
        logits = self.inner(x)
        return {"loss": summand(logits, labels), "logits": logits}


@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
@pytest.mark.parametrize("own", [False, True])
def test_a_summand_without_a_second_derivative_is_not_left_out_silently(matrix, own):
    """The gradient that arrives at it is a constant: torch cuts it out of the second derivative without a word."""
    model, data, loss = WithLoss(), [{"x": X, "labels": Y}], None
    if not own:
        model, data, loss = Apply(torch.tanh), DATA, summand
    with pytest.raises(ValueError, match=r"Once marked once_differentiable"):
        top_eigenvalue(model, data, loss, matrix=matrix, generator=0)
    found = suggest_learning_rate(model, data, loss, matrix=matrix, steps=30, generator=0)
    assert "Once marked once_differentiable" in " ".join(found.not_measured)


def test_the_matrix_that_stands_in_for_another_is_explained():
    found = suggest_learning_rate(Apply(torch.tanh), DATA, lambda f, _: f.square().mean().sqrt(), steps=40, generator=0)
    assert found.matrix == "hessian"
    assert "couples samples" in found.not_measured[0]
    assert "Hessian's" in found.not_measured[0]
    assert not suggest_learning_rate(Apply(torch.tanh), DATA, "cross_entropy", steps=0, generator=0).not_measured


def test_a_diagnosis_says_that_the_stable_rate_is_not_known():
    found = diagnose(Apply(torch.tanh), DATA, summand, learning_rate=0.1, probe_steps=0)
    assert any("largest stable learning rate" in line and "Once" in line for line in found.not_measured)


class Failing:
    """A loss that raises at one of its calls, and not again."""

    def __init__(self, at: int):
        self.left = at

    def __call__(self, f: Tensor, t: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise LookupError("the network is down")
        return F.cross_entropy(f, t)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_error_at_any_call_of_the_loss_is_raised(optimizer):
    """Those that a part of a batch raises too, though a part that a model does not take is left alone."""
    calls = Failing(0)
    suggest_learning_rate(Apply(torch.tanh), DATA, calls, optimizer, steps=0, generator=0)
    assert -calls.left > 4
    for at in range(1, 1 - calls.left):
        with pytest.raises(UserCodeError, match="the network is down"):
            suggest_learning_rate(Apply(torch.tanh), DATA, Failing(at), optimizer, steps=0, generator=0)


class WholeBatches(nn.Module):
    """A model that takes batches of one size only."""

    def __init__(self):
        super().__init__()
        self.inner, self.mask = Apply(torch.tanh), torch.ones(32, 1)

    def forward(self, x):
        return self.inner(x) * self.mask


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_model_that_takes_whole_batches_only_has_a_curvature(optimizer):
    found = suggest_learning_rate(WholeBatches(), DATA, "cross_entropy", optimizer, steps=0, generator=0)
    plain = suggest_learning_rate(WholeBatches().inner, DATA, "cross_entropy", optimizer, steps=0, generator=0)
    assert found.top_eigenvalue == pytest.approx(plain.top_eigenvalue, rel=0.1)
