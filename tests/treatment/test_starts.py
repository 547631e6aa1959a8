"""A start in a file comes back bit for bit, with the constraints that it needs, or the model is as it was."""

import pytest
import torch
from safetensors import safe_open
from torch import nn

from cases import CASES, case, flat, mlp
from states import state_of
from theta0._checkpoints import plain_tensors
from theta0._models import unwrapped
from theta0.parametrizations import is_linearly_constrained, linearly_constrained, parametrize_
from theta0.treatment import REMEDIES, load_start_, save_start


def treated(remedy):
    model = mlp()
    REMEDIES[remedy](model, flat())
    return model


def perturbed(c):
    model = c.model()
    if c.name == "spectral_norm":
        return model  # the vectors of its power iteration belong to its values: see below
    for p in unwrapped(model).parameters():
        p.data += 0.25 * torch.rand_like(p)
    for b in unwrapped(model).buffers():
        b.data += 1
    return model


@pytest.mark.parametrize("c", [c for c in CASES if c.name != "lazy"], ids=lambda c: c.name)
def test_round_trip(c, tmp_path):
    saved, fresh = c.model(), perturbed(c)
    before = state_of(unwrapped(saved))
    path = save_start(saved, tmp_path / "deep" / "start.safetensors", method="test")
    assert state_of(unwrapped(saved)) == before
    assert load_start_(fresh, path) is fresh
    expected, found = plain_tensors(unwrapped(saved)), plain_tensors(unwrapped(fresh))
    assert list(found) == list(expected)
    exact = not c.name.startswith(("spectral_norm", "weight_norm", "constrained"))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **({"rtol": 0, "atol": 0} if exact else {}), msg=f"{name}")


def test_plain_keys_and_metadata(tmp_path):
    model = treated("lcw")
    path = save_start(model, tmp_path / "start.safetensors", method="lcw")
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == sorted(mlp().state_dict())
        assert file.metadata()["method"] == "lcw"
    fresh = load_start_(mlp(), path)
    assert [is_linearly_constrained(fresh[i]) for i in (0, 2, 4)] == [True, True, False]
    x = flat()[0][0]
    torch.testing.assert_close(fresh(x), model(x), rtol=1e-6, atol=1e-6)
    assert fresh[0].weight.flatten(1).sum(1).abs().max() < 1e-6


@pytest.mark.parametrize("coordinates", ["ambient", "orthonormal"])
def test_a_model_already_constrained_is_loaded_through_its_constraint(coordinates, tmp_path):
    model = treated("lcw")
    path = save_start(model, tmp_path / "start.safetensors")
    fresh = mlp()
    linearly_constrained(fresh[0], coordinates=coordinates)
    load_start_(fresh, path)
    torch.testing.assert_close(fresh[0].weight, model[0].weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fresh(flat()[0][0]), model(flat()[0][0]), rtol=1e-4, atol=1e-5)


def test_attention_and_recurrent_weights_come_back_constrained(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.lstm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LSTM(4, 3, batch_first=True)

        def forward(self, x):
            return self.lstm(self.attention(x, x, x)[0])[0]

    model = parametrize_(Net(), "lcw")
    fresh = load_start_(Net(), save_start(model, tmp_path / "start.safetensors"))
    for layer, name in ((fresh.attention, "in_proj_weight"), (fresh.attention.out_proj, "weight")):
        assert is_linearly_constrained(layer, name)
    assert is_linearly_constrained(fresh.lstm, "weight_hh_l0")
    x = torch.randn(2, 5, 4)
    torch.testing.assert_close(fresh(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_tensor_of_two_names_is_written_once_and_stays_tied(tmp_path):
    c = case("tied")
    path = save_start(c.model(), tmp_path / "start.safetensors")
    with safe_open(path, "pt") as file:
        assert "head.weight" not in file.keys() or "embed.weight" not in file.keys()  # noqa: SIM118
    fresh = load_start_(perturbed(c), path)
    assert fresh.head.weight is fresh.embed.weight
    assert torch.equal(fresh.embed.weight, c.model().embed.weight)


def test_dtype_and_parameters_of_the_model_are_kept(tmp_path):
    path = save_start(mlp().double(), tmp_path / "start.safetensors")
    model = mlp().half()
    ids = [id(p) for p in model.parameters()]
    load_start_(model, path)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert [id(p) for p in model.parameters()] == ids


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8)), "unknown"),
        (lambda: nn.Sequential(*mlp(), nn.Linear(3, 3)), r"missing \['5.bias', '5.weight'\]"),
        (
            lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)),
            "of another shape",
        ),
    ],
)
@pytest.mark.parametrize("remedy", [None, "lcw"])
def test_another_architecture_is_told_and_left_as_it_was(other, message, remedy, tmp_path):
    source = mlp() if remedy is None else treated(remedy)
    path = save_start(source, tmp_path / "start.safetensors")
    model = other()
    before = state_of(model)
    with pytest.raises(ValueError, match=message):
        load_start_(model, path)
    assert state_of(model) == before


def test_a_layer_that_cannot_carry_the_constraint_leaves_the_model_as_it_was(tmp_path):
    """Shapes agree, but the second constrained layer is of a kind, or in a state, that cannot be constrained."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias)

    path = save_start(treated("lcw"), tmp_path / "start.safetensors")
    model = mlp()
    model[2] = Own()
    before = state_of(model)
    with pytest.raises(ValueError, match="Linear or Conv"):
        load_start_(model, path)
    assert state_of(model) == before


def test_loading_into_a_frozen_layer_keeps_it_frozen(tmp_path):
    path = save_start(mlp(), tmp_path / "start.safetensors")
    model = mlp()
    model[0].weight.requires_grad_(False)
    load_start_(model, path)
    assert not model[0].weight.requires_grad


def test_a_start_without_the_constraint_that_the_model_has_is_told(tmp_path):
    path = save_start(mlp(), tmp_path / "start.safetensors")
    model = mlp()
    linearly_constrained(model[2])
    before = state_of(model)
    with pytest.raises(ValueError, match=r"2.weight: .*does not follow an assignment"):
        load_start_(model, path)
    assert state_of(model) == before


def test_a_parametrization_that_does_not_follow_is_told_and_the_model_is_as_it_was(tmp_path):
    c = case("spectral_norm")
    path = save_start(c.model(), tmp_path / "start.safetensors")
    model = c.model().eval()
    model[0].parametrizations.weight[0]._u.copy_(torch.eye(8)[0])
    before = state_of(model)
    with pytest.raises(ValueError, match=r"0.weight: .*does not follow an assignment"):
        load_start_(model, path)
    assert state_of(model) == before
