"""The spectrum between two of a model's samples, before and after training: right, and without a trace."""

import pytest
import torch
from torch import nn

from cases import case
from theta0.regularizers import l2_norm, penalties_from
from theta0.spectra import fourier_amplitude, segment, spectrum_change


def wavy(count=64):
    x = torch.linspace(0, 1, count).unsqueeze(1)
    return [(x, torch.sin(2 * torch.pi * 3 * x))]


class Features(nn.Module):
    """A linear model on sines: training can set each frequency by itself."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 1, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, x):
        return self.out(torch.sin(2 * torch.pi * x * torch.arange(1, 9)))


def test_the_frequency_of_the_data_is_what_training_adds():
    change = spectrum_change(
        Features(), wavy(), "mse", between=(0, 63), points=64, window="none", steps=200, learning_rate=0.5
    )
    assert change.start.amplitudes.abs().max() == 0
    learned = change.trained["no penalty"].amplitudes[0]
    assert learned[3].item() == pytest.approx(1, abs=0.02)
    assert learned[5:8].max() < 0.05
    assert len(change.losses["no penalty"]) == 200


def test_a_penalty_takes_amplitude_off():
    penalties = {"l2": lambda model: 0.1 * l2_norm(model)}
    change = spectrum_change(
        Features(), wavy(), "mse", between=(0, 63), window="none", steps=200, learning_rate=0.5, penalties=penalties
    )
    assert change.trained["l2"].at(3) < 0.95 * change.trained["no penalty"].at(3)
    assert list(change.trained) == ["no penalty", "l2"]


@pytest.mark.parametrize("name", ["mlp", "norm and dropout", "two inputs", "own loss", "lazy"])
def test_the_model_is_left_as_it_was(name):
    model, batches = case(name).model(), case(name).batches()
    state = torch.get_rng_state()
    lazy = name == "lazy"
    before = {} if lazy else {key: value.clone() for key, value in model.state_dict().items()}
    change = spectrum_change(model, batches, case(name).loss, between=(1, 8), steps=3, points=16)
    assert change.start.amplitudes.shape == (3, 9)
    assert not torch.equal(change.start.amplitudes, change.trained["no penalty"].amplitudes)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key in before)
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_start_is_the_spectrum_along_the_segment():
    model, batches = case("mlp").model(), case("mlp").batches()
    change = spectrum_change(model, batches, "cross_entropy", between=(2, 9), steps=1, points=32)
    second = batches[1][0][2]  # the first batch has seven samples
    line = segment(batches[0][0][2], second)
    expected = fourier_amplitude(lambda t: model(line(t)), torch.arange(32) / 32, window="hann")
    assert torch.allclose(change.start.amplitudes, expected.amplitudes, atol=1e-6)


def test_what_cannot_be_done_is_told():
    model, batches = case("mlp").model(), case("mlp").batches()
    with pytest.raises(ValueError, match="from 0 to 14, got 15"):
        spectrum_change(model, batches, "cross_entropy", between=(0, 15))
    with pytest.raises(ValueError, match="two different samples, got 3 twice"):
        spectrum_change(model, batches, "cross_entropy", between=(3, 3))
    with pytest.raises(ValueError, match="steps: expected at least 1"):
        spectrum_change(model, batches, "cross_entropy", steps=0)
    with pytest.raises(ValueError, match="smaller learning rate"):
        spectrum_change(Features(), wavy(), "mse", steps=500, learning_rate=100.0)
    with pytest.raises(ValueError, match="discrete"):
        spectrum_change(case("lstm").model(), case("lstm").batches(), "cross_entropy")


def test_penalties_by_name():
    model, batches = case("cnn").model(), case("cnn").batches()
    found = penalties_from(["l2:0.5", "path:1e-3"], model, batches)
    assert found["l2:0.5"](model).item() == pytest.approx(0.5 * l2_norm(model).item())
    assert found["path:1e-3"](model).item() > 0
    for text in ("l3:1", "l2", "l2:", "l2:-1", "l2:inf", "l2:nan"):
        with pytest.raises(ValueError, match="expected l2:C"):
            penalties_from([text], model, batches)
    with pytest.raises(ValueError, match="layer_norm"):
        penalties_from(["path:1"], nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), [torch.ones(2, 4)])


def test_samples_of_different_sizes_have_no_segment_between_them():
    batches = [(torch.ones(2, length, 3), torch.ones(2, length, 1)) for length in (5, 6)]
    with pytest.raises(ValueError, match="samples of one shape, got two"):
        spectrum_change(nn.Linear(3, 1), batches, "mse", between=(0, 3))
