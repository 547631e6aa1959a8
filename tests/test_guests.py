"""Checkpointed, sparse, complex, quantised, compiled, half: everything works, or is refused in one sentence."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import theta0
from guest_models import MODELS, Checkpointed, GradientInside, Sparse, plain, points, tokens
from states import state_of
from theta0 import initializers

CE = "cross_entropy"
OBSERVATIONS = {
    "diagnose": lambda m, b: theta0.diagnose(m, b, CE, learning_rate=0.01, probe_steps=15),
    "rate": lambda m, b: theta0.suggest_learning_rate(m, b, CE, steps=40),
    "explain": lambda m, b: theta0.explain(m, b, CE, learning_rate=0.01, budget=60),
    "compare": lambda m, b: theta0.compare(
        m, b, CE, starts=("default", "unit-variance"), rates=[0.01], steps=4, seeds=1
    ),
    "eigenvalue": lambda m, b: theta0.top_eigenvalue(m, b, CE, max_batches=1),
}
CHANGES = {
    "treat": lambda m, b: theta0.treat(m, b, CE, learning_rate=0.05, steps=8),
    "unit-variance": lambda m, b: theta0.treat(m, b, CE, with_="unit-variance", learning_rate=0.05, steps=8),
    "lcw": lambda m, b: theta0.treat(m, b, CE, with_="lcw", learning_rate=0.05, steps=8),
    "nio": lambda m, b: initializers.nio_(m, b, CE, steps=2),
    "gradinit": lambda m, b: initializers.gradinit_(m, b, CE, steps=2),
    "metainit": lambda m, b: initializers.metainit_(m, b, CE, steps=2),
    "mmd": lambda m, b: initializers.mmd_(m, b, steps=2, perturbations=4),
    "random-labels": lambda m, b: initializers.random_labels_(m, b, steps=2),
}


def made(name):
    torch.manual_seed(0)
    make, data = MODELS[name]
    return make(), data()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")  # of torch's own checkpoints
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("verb", [*OBSERVATIONS, *CHANGES])
def test_every_verb_works_or_says_in_a_sentence_why_not(name, verb):
    model, data = made(name)
    before, refused = state_of(model), ""
    try:
        (OBSERVATIONS | CHANGES)[verb](model, data)
    except ValueError as error:  # anything else would be called a fault of theta0's
        refused = str(error)
    assert not refused or "expected" in refused or "could not be applied" in refused
    assert "the model's forward raised" not in refused
    assert not refused or state_of(model) == before
    if verb in OBSERVATIONS:
        assert state_of(model) == before
    assert all(bool(p.isfinite().all()) for p in model.parameters())


ONLY_HERE = {"bfloat16": {"precision"}}  # SGD's steps at 0.01 are below the rounding


@pytest.mark.parametrize("name", MODELS)
def test_none_of_them_is_called_ill(name):
    model, data = made(name)
    found = theta0.diagnose(model, data, CE, learning_rate=0.01, probe_steps=0)
    assert {f.code for f in found.findings if f.severity != "note"} == ONLY_HERE.get(name, set())
    assert any("complex" in text for text in found.not_measured) is name.startswith("complex")


def test_sparse_and_complex_gradients_have_the_norms_of_dense_real_ones():
    model, data = Sparse(False), tokens()
    found = theta0.measurements.signals(model, data[:1], CE)
    model.table.sparse = False
    dense = theta0.measurements.signals(model, data[:1], CE)
    assert [(r.layer, r.quantity, r.value) for r in found] == [(r.layer, r.quantity, r.value) for r in dense]
    model, data = made("complex filter")
    loss = nn.functional.cross_entropy(model(data[0][0]), data[0][1])
    (gradient,) = torch.autograd.grad(loss, model.filter)
    numbers = {r.quantity: r.value for r in theta0.measurements.signals(model, data[:1], CE) if r.layer == "filter"}
    assert numbers["gradient_norm"] == pytest.approx(float(gradient.abs().square().sum().sqrt()), rel=1e-6)
    assert numbers["value_rms"] == pytest.approx(
        float((model.filter.detach().abs().square().mean() / 2).sqrt()), rel=1e-6
    )


@pytest.mark.parametrize("name", ["mmd", "random-labels", "metainit"])
def test_searches_through_checkpoints_find_what_they_find_without(name):
    starts = []
    for reentrant in (True, False):
        torch.manual_seed(0)
        model = Checkpointed(reentrant)
        with contextlib.suppress(theta0.NothingBetterError):
            CHANGES[name](model, points())
        starts.append([p.tolist() for p in model.parameters()])
    assert starts[0] == starts[1]


def test_unit_variance_reaches_a_layer_whose_pass_switches_gradients_on():
    torch.manual_seed(0)
    model = GradientInside()
    initializers.unit_variance_(model, points())
    x = torch.cat([x for x, _ in points()])
    assert model.energy[0](x).std().item() == pytest.approx(1, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_searched_in_float32_and_written_back(dtype):
    """Steps of 2e-4 are below most weights' rounding in bfloat16, and perturbed logits overflow in float16."""
    torch.manual_seed(0)
    start = plain(dtype)
    wide = plain()
    wide.load_state_dict({name: value.float() for name, value in start.state_dict().items()})
    for search, options in (
        (initializers.mmd_, {"perturbations": 8, "steps": 20}),
        (initializers.random_labels_, {"steps": 20}),
    ):
        half, whole = plain(dtype), plain()
        half.load_state_dict(start.state_dict())
        whole.load_state_dict(wide.state_dict())
        data = [x.to(dtype).float() for x, _ in points()]  # so that both read the same numbers
        assert search(half, data, generator=0, **options) is half
        search(whole, data, generator=0, **options)
        for own, expected in zip(half.parameters(), whole.parameters(), strict=True):
            assert own.dtype == dtype
            assert torch.equal(own, expected.to(dtype))


def test_weights_of_half_precision_can_be_constrained():
    torch.manual_seed(0)
    found = theta0.treat(plain(torch.bfloat16), points(), CE, with_="lcw", learning_rate=0.05, steps=4)
    assert "lcw" in found.remedy


def test_weights_that_are_elsewhere_are_refused_before_any_work():
    model = plain()
    model[2] = nn.Linear(16, 16, device="meta")
    with pytest.raises(ValueError, match="on the meta device; call"):
        theta0.diagnose(model, points(), CE)
    model[2]._hf_hook = object()  # what accelerate leaves on a module that it loads when it is called
    for verb in (OBSERVATIONS | CHANGES).values():
        with pytest.raises(ValueError, match="accelerate loads when it is needed"):
            verb(model, points())


def test_a_trainable_view_of_a_trained_parameter_is_still_a_finding():
    class Fresh(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(torch.tanh(x @ nn.Parameter(self.base.weight.T)))

    found = theta0.diagnose(Fresh(), points(), CE, probe_steps=0)
    assert "unregistered-parameters" in {f.code for f in found.findings}


def test_assigning_through_a_parametrization_keeps_what_listens_to_the_parameter():
    layer = theta0.parametrizations.linearly_constrained(nn.Linear(4, 2))
    original, heard = layer.parametrizations.weight.original, []
    original.register_post_accumulate_grad_hook(heard.append)
    initializers.unit_variance_(nn.Sequential(layer, nn.Linear(2, 2)), [torch.randn(16, 4)])
    layer(torch.randn(3, 4)).sum().backward()
    assert heard == [original]
    assert parametrize.is_parametrized(layer)
