"""The interpreter: one pass serves many handlers, and what is known of a function is known everywhere."""

import ast
import gc
import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import theta0
from cases import normal
from cases import unprobed as diagnose
from theta0._batches import load_batches
from theta0._trace.functions import SPECS
from theta0._trace.interpreter import PROCEED, Handler, no_dropout, trace
from theta0._training import steps_from
from theta0.measurements import signals
from theta0.measurements.residual_stream import residual_stream

ROOT = Path(theta0.__file__).parent


def test_there_is_one_class_of_function_modes():
    bases = [
        (path.name, node.name)
        for path in ROOT.rglob("*.py")
        for text in [path.read_text()]
        if "Mode" in text or "Interpreter" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).rpartition(".")[2] in ("TorchFunctionMode", "TorchDispatchMode", "Interpreter")
    ]
    assert bases == [("interpreter.py", "Interpreter")]


def test_every_spelling_of_a_function_has_the_same_spec():
    for name in ("add", "mul", "relu", "sigmoid", "reshape", "matmul"):
        found = [getattr(home, name, None) for home in (torch, torch.Tensor, F)]
        specs = [SPECS[function] for function in found if function is not None]
        assert len(specs) > 1
        assert len(set(specs)) == 1


def test_notes_travel_with_results_and_meet_in_the_join():
    """Which of the inputs each result was made from."""
    seen = {}
    handler = Handler(
        after=lambda step, result: seen.update({step.name: frozenset().union(*(n for _, n in step.notes(handler)))}),
        join=lambda notes: frozenset().union(*notes),
    )
    a, b = torch.ones(3), torch.ones(3)
    with trace(nn.Identity(), handler) as interpreter:
        interpreter.annotate(a, handler, frozenset("a"))
        interpreter.annotate(b, handler, frozenset("b"))
        parts = (torch.cat([a * 2, b]) + 1).split(3)
        untouched = torch.ones(3).exp()
    assert interpreter.note_of(parts[1], handler) == {"a", "b"}
    assert interpreter.note_of(untouched, handler) is None
    assert (seen["mul"], seen["cat"], seen["exp"]) == ({"a"}, {"a", "b"}, frozenset())


def test_a_note_is_not_taken_for_that_of_a_tensor_in_the_same_place():
    handler = Handler(join=lambda notes: notes[0])
    with trace(nn.Identity(), handler) as interpreter:
        for _ in range(50):
            dead = torch.ones(2)
            interpreter.annotate(dead, handler, "dead")
            del dead
            gc.collect(0)
            assert interpreter.note_of(torch.zeros(2), handler) is None


def test_a_handler_replaces_functions_and_the_others_see_the_result():
    seen = []
    replacing = Handler(replace=lambda step: torch.zeros(3) if step.function is torch.exp else PROCEED)
    looking = Handler(after=lambda step, result: seen.append((step.name, float(result.sum()))))
    with trace(nn.Identity(), replacing, looking):
        torch.ones(3).neg().exp_()
        torch.exp(torch.ones(3))
    assert seen[-1] == ("exp", 0.0)


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) * 2


def test_a_step_knows_its_module_and_the_users_line():
    steps = []
    handler = Handler(after=lambda step, result: steps.append((step.name, step.path, step.place, step.source())))
    model, x = Doubled(), normal(2, 4)
    with trace(model, handler):
        model(x).sum()
    (linear, inner, _, line), (_, _, place, product), (_, _, _, total) = steps
    assert (linear, inner, place) == ("linear", "inner", "the model's forward")
    lines, start = inspect.getsourcelines(Doubled.forward)
    assert product.line.endswith(f"test_trace.py:{start + 1}")
    assert product.code == line.code == lines[1].strip()
    assert total.code == "model(x).sum()"
    assert not any(source.line.startswith("/") for *_, source in steps)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_are_traced_once_and_have_gradients(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(checkpoint(self.block, self.first(x), use_reentrant=reentrant))

    records = {(r.layer, r.quantity): r.value for r in signals(Checkpointed(), [(normal(6, 4), torch.arange(6) % 2)], "cross_entropy")}  # fmt: skip  # noqa: E501
    assert records["block", "backward_norm"] > 0
    assert ("block#2", "backward_norm") not in records
    model = Checkpointed()
    data = load_batches([(normal(6, 4), torch.arange(6) % 2)], model)
    assert len(steps_from(model, data, "cross_entropy", optimizer="sgd", rate=0.1, steps=2)) == 2
    assert diagnose(Checkpointed(), [(normal(6, 4), torch.arange(6) % 2)], "cross_entropy").healthy


def test_dropout_is_off_where_that_is_asked_for():
    x = torch.ones(100)
    with no_dropout():
        assert torch.equal(F.dropout(x, 0.5), x)
        assert torch.equal(nn.Dropout(0.5)(x), x)
        q = normal(1, 1, 4, 8)
        found = F.scaled_dot_product_attention(q, q, q, dropout_p=0.9)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(q, q, q))


class Conv1D(nn.Module):
    """The layer of GPT-2: a matrix of inputs × units, applied by `torch.addmm`."""

    def __init__(self, inputs, units):
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.02 * torch.randn(inputs, units)), nn.Parameter(torch.zeros(units))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Block(nn.Module):
    def __init__(self, width, layer):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), layer(width, 2 * width), layer(2 * width, width)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


@pytest.mark.parametrize("layer", [Conv1D, nn.Linear])
def test_a_branch_ends_at_its_last_weight_also_by_addmm(layer):
    model = nn.Sequential(nn.Linear(8, 8), Block(8, layer), Block(8, layer), nn.Linear(8, 3))
    endings = residual_stream(model, load_batches([normal(4, 5, 8)], model)[0]).endings
    assert [ending.name for ending in endings] == ["1.narrow.weight", "2.narrow.weight"]
    assert endings[0].bias is model[1].narrow.bias


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm, lambda width: nn.GroupNorm(1, width), nn.BatchNorm1d])
def test_large_inputs_behind_which_a_normalization_follows_are_no_finding(norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), norm(16), nn.ReLU(), nn.Linear(16, 3))
    batches = [(200 * normal(32, 8), torch.arange(32) % 3)]
    assert "input-scale" not in {f.code for f in diagnose(model, batches, "cross_entropy").findings}
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    assert "input-scale" in {f.code for f in diagnose(plain, batches, "cross_entropy").findings}


@pytest.mark.parametrize("shape", [(1024, 64), (8, 32, 16, 16), (16, 128, 32)])
def test_quantiles_of_large_outputs_are_those_of_all_entries(shape):
    """Powers of two in every axis: evenly spaced entries would all lie at one unit or pixel."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, shape[1] if len(shape) == 4 else shape[-1])
            nn.init.zeros_(self.layer.weight)
            self.layer.bias.data.copy_(torch.linspace(-10, 10, len(self.layer.bias)))

        def forward(self, x):
            return self.layer(x)

    rows = torch.Size(shape).numel() // (shape[1] if len(shape) == 4 else shape[-1])
    found = {r.quantity: r.value for r in signals(Shifted(), [normal(rows, 4)]) if r.layer == "layer"}
    for name, exact in (("q01", -9.8), ("q25", -5.0), ("q50", 0.0), ("q75", 5.0), ("q99", 9.8)):
        assert found[f"preactivation_{name}"] == pytest.approx(exact, abs=1.2)
