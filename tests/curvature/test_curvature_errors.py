"""What has no curvature is refused, and the message says why."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from curvature_cases import net
from theta0.curvature import top_eigenvalue
from theta0.experiments import suggest_learning_rate

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4)


def linear(outputs: int = 2, inputs: int = 3) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(inputs, outputs)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


class Wrong(torch.autograd.Function):
    """x² whose backward pass forgets that it depends on x in a way that is not symmetric."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.detach()


class Apply(nn.Module):
    def __init__(self, function, outputs=2):
        super().__init__()
        self.inner, self.outer, self.function = linear(4), linear(outputs, 4), function

    def forward(self, x):
        return self.outer(self.function(self.inner(x)))


ELSEWHERE = torch.ones(3, requires_grad=True)


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def detached(x):
    return x.detach()


CASES = {
    "unknown matrix": (
        lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", matrix="kfac"),
        "expected one of ggn",
    ),
    "k": (lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", k=0), "at least 1"),
    "tolerance": (lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", tolerance=0.0), "between 0 and 1"),
    "certificate": (lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", certify=(0.0, 0.1)), "epsilon"),
    "certified hessian": (
        lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", matrix="hessian", certify=(0.1, 0.1)),
        "negative eigenvalues",
    ),
    "certified warm start": (
        lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", start=torch.ones(8), certify=(0.1, 0.1)),
        "expected no start",
    ),
    "start of another network": (
        lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", start=torch.ones(5)),
        "leave start out",
    ),
    "start of another network, hessian": (
        lambda: top_eigenvalue(linear(), [(X, Y)], "cross_entropy", start=torch.ones(5), matrix="hessian"),
        "leave start out",
    ),
    "absolute error": (lambda: top_eigenvalue(linear(), [(X, torch.ones(8, 2))], "l1"), "second derivative"),
    "absolute error as a callable": (
        lambda: top_eigenvalue(linear(), [(X, torch.ones(8, 2))], lambda f, t: (f - t).abs().mean()),
        "second derivative",
    ),
    "linear loss": (
        lambda: top_eigenvalue(linear(), [(X, torch.ones(8, 2))], lambda f, t: (f * t).mean()),
        "second derivative",
    ),
    "once differentiable loss": (
        lambda: top_eigenvalue(linear(), [(X, torch.ones(8, 2))], lambda f, t: Once.apply(f - t).mean()),
        "twice differentiable",
    ),
    "once differentiable network": (
        lambda: top_eigenvalue(Apply(Once.apply), [(X, Y)], "cross_entropy"),
        "once_differentiable",
    ),
    "once differentiable network, hessian": (
        lambda: top_eigenvalue(Apply(Once.apply), [(X, Y)], "cross_entropy", matrix="hessian"),
        "once_differentiable",
    ),
    "a loss that forgets the outputs": (
        lambda: top_eigenvalue(linear(), [(X, Y)], lambda f, t: (f.detach() - 1).square().mean()),
        "without a gradient",
    ),
    "a loss of something else": (
        lambda: top_eigenvalue(linear(), [(X, Y)], lambda f, t: ELSEWHERE.square().sum() + 0 * f.detach().sum()),
        "depends on the outputs",
    ),
    "infinite outputs that a loss hides": (
        lambda: top_eigenvalue(
            nn.Sequential(linear(), Scaled(float("inf"))), [(X, Y)], lambda f, t: torch.nan_to_num(f).tanh().mean()
        ),
        "finite outputs",
    ),
    "root of a mean": (
        lambda: top_eigenvalue(linear(), [(X, torch.ones(8, 2))], lambda f, t: F.mse_loss(f, t).sqrt()),
        "couples samples",
    ),
    "fisher of no likelihood": (
        lambda: top_eigenvalue(linear(), [(X, torch.ones(8, 2))], F.huber_loss, matrix="fisher"),
        "likelihood",
    ),
    "frozen": (lambda: top_eigenvalue(linear().requires_grad_(False), [(X, Y)], "cross_entropy"), "unfreeze"),
    "detached outputs": (
        lambda: top_eigenvalue(nn.Sequential(linear(), Detach()), [(X, Y)], "cross_entropy"),
        "depend on the trained parameters",
    ),
    "detached outputs, hessian": (
        lambda: top_eigenvalue(nn.Sequential(linear(), Detach()), [(X, Y)], "cross_entropy", matrix="hessian"),
        "depends on the trained parameters",
    ),
    "constant output": (
        lambda: top_eigenvalue(nn.Sequential(linear(), Zero()), [(X, torch.ones(8, 2))], "mse"),
        "got zero",
    ),
    "constant output, hessian": (
        lambda: top_eigenvalue(nn.Sequential(linear(), Zero()), [(X, torch.ones(8, 2))], "mse", matrix="hessian"),
        "got zero",
    ),
    "infinite outputs": (
        lambda: top_eigenvalue(nn.Sequential(linear(), Scale(1e38), Scale(1e38)), [(X, Y)], "cross_entropy"),
        "finite",
    ),
    "undefined derivative": (
        lambda: top_eigenvalue(nn.Sequential(linear(), RootAtZero()), [(X, torch.ones(8, 2))], "mse"),
        "finite curvature",
    ),
    "weight norm": (
        lambda: top_eigenvalue(weight_norm(linear()), [(X, Y)], "cross_entropy", matrix="hessian"),
        "weight_norm",
    ),
    "optimizer": (lambda: suggest_learning_rate(linear(), [(X, Y)], "cross_entropy", "lion"), "expected one of sgd"),
    "batch size": (
        lambda: suggest_learning_rate(linear(), [(X, Y)], "cross_entropy", batch_sizes=[9]),
        "pass larger batches",
    ),
    "coupled decay": (
        lambda: suggest_learning_rate(linear(), [(X, Y)], "cross_entropy", "adam", weight_decay=0.1),
        "adamw",
    ),
}


class Detach(nn.Module):
    def forward(self, x):
        return x.detach()


class Zero(nn.Module):
    def forward(self, x):
        return 0 * x


class Scale(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        return self.by * x


class RootAtZero(nn.Module):
    def forward(self, x):
        return (0 * x).sqrt()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", CASES)
def test_refused_with_the_reason(name):
    call, reason = CASES[name]
    with pytest.raises(ValueError, match=reason):
        call()


def test_old_weight_norm_is_refused_for_the_hessian_and_right_for_the_ggn():
    from curvature_cases import ggn, largest

    with pytest.warns(FutureWarning):
        model = nn.Sequential(torch.nn.utils.weight_norm(linear(5)), nn.Tanh(), nn.Linear(5, 2))
    with pytest.raises(ValueError, match="weight_norm"):
        top_eigenvalue(model, [(X, Y)], "cross_entropy", matrix="hessian")
    new = nn.Sequential(weight_norm(linear(5)), nn.Tanh(), nn.Linear(5, 2))
    truth = largest(ggn(new, X, Y, "cross_entropy"))[0]
    assert top_eigenvalue(new, [(X, Y)], "cross_entropy", tolerance=1e-3, generator=0).value == pytest.approx(
        truth, rel=1e-3
    )


def test_a_wrong_double_backward_is_found_by_the_self_test():
    with pytest.raises(ValueError, match="self-test"):
        top_eigenvalue(Apply(Wrong.apply), [(X, Y)], "cross_entropy", matrix="hessian", check=True, generator=0)


def test_sharded_parameters_are_refused(tmp_path):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = linear()
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh))
        with pytest.raises(ValueError, match="sharded"):
            top_eigenvalue(model, [(X, Y)], "cross_entropy")
    finally:
        distributed.destroy_process_group()


def test_stopping_early_is_not_called_converged():
    model, x, y, loss = net("transformer")
    found = top_eigenvalue(model, [(x, y)], loss, matrix="hessian", tolerance=1e-4, max_products=2, generator=0)
    assert found.products == 2
    assert not found.converged
    assert found.residual > 1e-4


def test_a_random_forward_pass_is_held_fixed():
    """Spectral normalisation moves its buffers at each pass; recomputed graphs must be the same network."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(spectral_norm(nn.Linear(3, 6)), nn.Tanh(), nn.Linear(6, 2))
    kept = top_eigenvalue(model, [(X, Y)], "cross_entropy", tolerance=1e-3, generator=0)
    anew = top_eigenvalue(model, [(X, Y)], "cross_entropy", tolerance=1e-3, generator=0, recompute=True)
    assert anew.value == pytest.approx(kept.value, rel=1e-4)


def test_a_model_that_returns_its_loss():
    from types import SimpleNamespace

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()

        def forward(self, x, labels):
            logits = self.inner(x)
            return SimpleNamespace(loss=F.cross_entropy(logits[:-1], labels[1:]), logits=logits)  # shifted, as in text

    own = Own()
    batch = {"x": X, "labels": Y}
    plain = top_eigenvalue(own.inner, [(X[:-1], Y[1:])], "cross_entropy", tolerance=1e-3, generator=0)
    for matrix in ("ggn", "hessian"):  # equal for a linear network
        found = top_eigenvalue(own, [batch], None, matrix=matrix, tolerance=1e-3, generator=0)
        assert found.value == pytest.approx(plain.value, rel=1e-3)


def test_a_contrastive_loss_has_a_hessian():
    found = top_eigenvalue(
        linear(), [(X, torch.ones(8, 2))], lambda f, t: F.mse_loss(f, t).sqrt(), matrix="hessian", generator=0
    )
    assert found.converged


def test_several_outputs_all_count():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = linear(1), linear(2)

        def forward(self, x):
            return self.first(x), {"other": self.second(x), "unused": x}

    def both(outputs, targets):
        return outputs[0].square().mean() + 3 * outputs[1]["other"].square().mean()

    model = Heads()
    ggn = top_eigenvalue(model, [(X, Y)], both, tolerance=1e-3, generator=0)
    hessian = top_eigenvalue(model, [(X, Y)], both, tolerance=1e-3, matrix="hessian", generator=0)
    assert ggn.value == pytest.approx(hessian.value, rel=1e-3)  # a linear network


def test_logits_beside_a_mapping_of_inputs_are_what_the_loss_is_differentiated_at():
    """As models of Hugging Face: of a linear one under the squared error λ is known."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)

        def forward(self, x):
            return SimpleNamespace(logits=self.layer(x))

    found = top_eigenvalue(Named(), [({"x": X}, X[:, :2])], lambda o, t: (o - t).square().mean(), generator=0)
    expected = float(torch.linalg.eigvalsh(X.double().T @ X.double() / 8)[-1])
    assert found.value == pytest.approx(expected, rel=2e-2)
