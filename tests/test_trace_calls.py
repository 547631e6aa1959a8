"""What a forward pass calls, seen without touching the model."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules import module as global_hooks

from cases import case, normal
from states import state_of
from theta0._trace.calls import trace_calls


def seen(model, *inputs):
    calls, nonlinearities = [], []
    with trace_calls(model, calls.append, nonlinearities.append):
        model(*inputs)
    return calls, nonlinearities


@pytest.mark.parametrize("name", ["mlp", "in place", "functional"])
def test_what_is_seen_of_a_linear_call(name):
    model = case(name).model()
    x = normal(4, 6)
    calls, phis = seen(model, x)
    for call in calls:
        torch.testing.assert_close(F.linear(call.input, call.weight, call.bias), call.owner.module(call.input))
    assert [phi.after.layer for phi in phis] == [call.layer for call in calls[:-1]]


def test_a_second_call_has_a_number():
    model = case("twice").model()
    assert [call.layer for call in seen(model, normal(4, 6))[0]] == ["shared", "shared#2", "head"]


def test_a_foreign_weight_does_not_count():
    class Foreign(nn.Module):
        def forward(self, x):
            return F.linear(x, torch.ones(3, 6)) @ torch.ones(3, 2)

    assert seen(Foreign(), normal(4, 6)) == ([], [])


@pytest.mark.parametrize(
    ("apply", "kind", "shape"),
    [
        (lambda x, w, b: F.linear(x, w), "linear", (5, 6)),
        (lambda x, w, b: F.linear(input=x, weight=w, bias=None), "linear", (5, 6)),
        (lambda x, w, b: x @ w, "matmul", (6, 5)),
        (lambda x, w, b: x @ w.T, "matmul", (5, 6)),
        (lambda x, w, b: torch.matmul(x, w), "matmul", (6, 5)),
        (lambda x, w, b: torch.mm(x, w), "matmul", (6, 5)),
        (lambda x, w, b: x.mm(w), "matmul", (6, 5)),
        (lambda x, w, b: torch.addmm(b, x, w), "matmul", (6, 5)),
        (lambda x, w, b: F.conv1d(x[..., None], w), "conv", (5, 6, 1)),
        (lambda x, w, b: F.conv1d(x[..., None], w, stride=1), "conv", (5, 6, 1)),
    ],
)
def test_every_way_to_apply_a_bare_parameter(apply, kind, shape):
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(shape))
            self.offset = nn.Parameter(torch.randn(5))

        def forward(self, x):
            return apply(x, self.kernel, self.offset)

    (call,), _ = seen(Bare(), normal(4, 6))
    assert (call.layer, call.kind) == ("kernel", kind)
    assert call.owner.parameters == ("kernel",)
    assert call.output.shape[call.unit_axis] == 5


def test_packed_sequences_are_followed():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(10, 2)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
            out, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return self.head(out[:, -1])

    calls, _ = seen(Packed(), normal(2, 3, 4))
    assert [(call.layer, call.kind) for call in calls] == [("rnn", "recurrent"), ("head", "linear")]
    assert len(calls[0].owner.parameters) == 16


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_fused_recurrent_layers(kind, batch_first, bias, packed):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = kind(4, 5, batch_first=batch_first, bias=bias)

        def forward(self, x):
            lengths = torch.tensor([x.shape[1 if batch_first else 0]] * x.shape[0 if batch_first else 1])
            return self.rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first) if packed else x)[0]

    (call,), _ = seen(Net(), normal(2, 3, 4))
    assert (call.layer, call.kind) == ("rnn", "recurrent")
    assert len(call.owner.parameters) == (4 if bias else 2)
    if packed:
        return
    assert call.sample_axis == (0 if batch_first else 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [(None, None), (5, 7)], ids=["one width", "several widths"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_attention_shows_its_projections(bias, dims, mode):
    kdim, vdim = dims
    model = nn.MultiheadAttention(8, 2, bias=bias, kdim=kdim, vdim=vdim, batch_first=True)
    model.train(mode == "train")
    q, k, v = normal(3, 4, 8), normal(3, 6, kdim or 8), normal(3, 6, vdim or 8)
    calls, _ = seen(model, q, k, v)
    layers = [call.layer.partition("#")[0] for call in calls]
    assert layers[-1] == "out_proj"
    if kdim:
        assert layers[:-1] == ["q_proj", "k_proj", "v_proj"]
    else:
        assert set(layers[:-1]) == {"in_proj"}
    assert F.linear.__module__ == "torch._C._nn" or F.linear.__name__ == "linear"


def test_attention_puts_linear_back_when_it_raises():
    model, original = nn.MultiheadAttention(8, 2), F.linear
    with pytest.raises((RuntimeError, AssertionError)), trace_calls(model):
        model(normal(3, 4, 8), normal(3, 4, 7), normal(3, 4, 7))
    assert F.linear is original


def test_nothing_is_left_behind_also_when_the_model_raises():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.Flatten(9))

        def forward(self, x):
            return self.inner(x)

    model = Failing()
    before = state_of(model)
    with pytest.raises(IndexError), trace_calls(model, lambda call: None):
        model(normal(2, 6))
    assert state_of(model) == before
    assert not global_hooks._global_forward_hooks
    assert not global_hooks._global_forward_pre_hooks


def test_nonlinearities_through_other_operations():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(6, 8)

        def forward(self, x):
            first, second = self.a(x), self.b(x)
            return torch.tanh((first.view(2, 2, 8).flatten(0, 1) + second) * 0.5)

    _, (phi,) = seen(Net(), normal(4, 6))
    assert (phi.spec.name, phi.after.layer) == ("tanh", "b")  # the latest of those that flow into it


def test_the_input_is_not_taken_for_a_layers_output():
    model = nn.Sequential(nn.Tanh(), nn.Linear(6, 3))
    assert seen(model, normal(4, 6))[1] == []


@pytest.mark.parametrize(
    "name", ["weight_norm", "weight_norm, old", "spectral_norm", "spectral_norm, old", "constrained"]
)
def test_weights_made_from_other_parameters_are_named_after_their_layer(name):
    c = case(name)
    model = c.model()
    calls, _ = seen(model, c.batches()[0][0])
    assert [call.layer for call in calls] == [path for path, _ in c.layers]
    names = {n for n, _ in model.named_parameters()}
    assert all(set(call.owner.parameters) <= names and call.owner.parameters for call in calls)
