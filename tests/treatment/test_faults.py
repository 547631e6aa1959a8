"""What is not the start's fault is told with the line to change, and the model stays bit for bit as it was."""

import pytest
import torch
from torch import nn

from cases import normal
from states import state_of
from theta0._batches import load_batches
from theta0.diagnosis import Diagnosis, Finding
from theta0.layers import StandardizedInput
from theta0.treatment import treat
from theta0.treatment.faults import other_causes


def classes(scale=1.0, shift=0.0, count=8):
    x = normal(count * 16, 6) * scale + shift
    return list(zip(x.split(16), (normal(count * 16, 6)[:, 0] > 0).long().split(16), strict=True))


def values(shape, count=8):
    x = normal(count * 16, 6)
    return list(zip(x.split(16), (3 * x[:, 0]).abs().reshape(shape).split(16), strict=True))


def net(*ends, out=2, phi=nn.ReLU):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), phi(), nn.Linear(16, out), *ends)


def dead_head():
    model = net(nn.ReLU(), out=1)
    with torch.no_grad():
        model[2].bias.fill_(-50.0)
    return model


def dead_at_positive_data():
    model = net()
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs())
    return model


def normalised():
    torch.manual_seed(0)
    parts = (p for _ in range(4) for p in (nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()))
    return nn.Sequential(*parts, nn.Linear(6, 2))


LOGITS, SQUARES = "cross_entropy", "mse"
ELSEWHERE = {
    "softmax before cross-entropy": (net(nn.Softmax(1)), classes(), LOGITS, {}, "output and the loss", "softmax"),
    "raw inputs into tanh": (net(phi=nn.Tanh), classes(1e3), LOGITS, {}, "the data", "inputs.std(0)"),
    "one column against none": (net(out=1), values((-1,)), SQUARES, {}, "output and the loss", "Change: "),
    "too high a rate": (net(), classes(), LOGITS, {"learning_rate": 500.0}, "learning rate", "theta0 rate"),
    "dead at the output": (dead_head(), values((-1, 1)), SQUARES, {}, "output and the loss", "remove relu after '2'"),
    "dead at off-centre data": (dead_at_positive_data(), classes(1, 6.0), LOGITS, {}, "the data", "inputs.mean(0)"),
    "frozen statistics": (normalised().eval(), classes(), LOGITS, {}, "batch normalization", "model.train()"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_another_fault_is_told_and_nothing_is_changed(name):
    model, data, loss, options, whose, line = ELSEWHERE[name]
    before = state_of(model)
    found = treat(model, data, loss, optimizer="sgd", steps=5, **{"learning_rate": 0.01} | options)
    assert state_of(model) == before
    assert not found.kept
    if name == "frozen statistics" and found.before.healthy:
        pytest.skip("the statistics happen to fit")
    assert found.reason.startswith("Not the start's fault but that of "), found.reason
    assert whose in found.reason
    assert line in found.reason
    assert found.attempts == ()


def test_inputs_are_standardised_only_when_asked_and_the_model_itself_is_left():
    model = net(phi=nn.Tanh)
    before = state_of(model)
    data = classes(1e3, 50.0)
    found = treat(model, data, "cross_entropy", with_="standardize-input", optimizer="sgd", learning_rate=0.5, steps=60)
    assert state_of(model) == before
    assert found.kept, found.reason
    assert isinstance(found.wrapped, StandardizedInput)
    assert found.wrapped.model is model
    rest = torch.cat([x for x, _ in data[:6]])  # the last quarter proves
    torch.testing.assert_close(found.wrapped.mean, rest.mean(0), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(found.wrapped.std, rest.std(0, correction=0), rtol=1e-4, atol=1e-2)


def test_a_column_that_does_not_vary_is_only_centred():
    x = normal(32, 3)
    x[:, 1] = 7.0
    wrapped = StandardizedInput(nn.Identity(), [x])
    out = wrapped(x)
    torch.testing.assert_close(out[:, 1], torch.zeros(32))
    torch.testing.assert_close(out[:, 0].std(correction=0), torch.tensor(1.0))


def test_tokens_cannot_be_standardised():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2))
    tokens = [(torch.zeros(4, 2, dtype=torch.long), torch.zeros(4, dtype=torch.long)) for _ in range(4)]
    with pytest.raises(ValueError, match="standardize the data"):
        treat(model, tokens, "cross_entropy", with_="standardize-input")


def test_a_rate_is_not_blamed_where_the_start_may_be_why_it_is_too_high():
    finding = Finding("learning-rate-too-high", "error", "", 9.0, 4.0, "Too high.", "theta0 rate", "")
    other = Finding("initial-loss", "warning", "", 9.0, 3.0, "Large.", "", "")
    batch = load_batches(classes(), net())[0]
    assert other_causes(Diagnosis((), (finding,), 0.0), net(), batch)[0] == "the learning rate"
    assert other_causes(Diagnosis((), (finding, other), 0.0), net(), batch) is None
