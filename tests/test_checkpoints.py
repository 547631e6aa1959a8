"""What a start's file holds, and what is no such file."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from cases import CASES, case, mlp
from states import state_of
from theta0 import __version__
from theta0._checkpoints import plain_tensors, read_start, write_start
from theta0._models import unwrapped


@pytest.mark.parametrize("c", [c for c in CASES if c.name != "lazy"], ids=lambda c: c.name)
def test_what_is_written_is_read_bit_for_bit(c, tmp_path):
    model = unwrapped(c.model())
    before = state_of(model)
    path = write_start(tmp_path / "new" / "start.safetensors", model, {"method": "test", "seed": "7"})
    tensors, metadata = read_start(path)
    expected = plain_tensors(model)
    assert state_of(model) == before
    assert set(tensors) == set(expected)
    assert all(torch.equal(tensors[name], t) and tensors[name].dtype == t.dtype for name, t in expected.items())
    assert (metadata["method"], metadata["seed"], metadata["version"]) == ("test", "7", __version__)


def test_keys_are_those_of_the_model_without_its_parametrizations():
    for name in ("weight_norm", "spectral_norm"):
        assert set(plain_tensors(case(name).model())) == set(mlp().state_dict())


def test_one_tensor_of_two_names_is_stored_once(tmp_path):
    path = write_start(tmp_path / "start.safetensors", case("tied").model(), {})
    with safe_open(path, "pt") as file:
        assert len({"head.weight", "embed.weight"} & set(file.keys())) == 1
    tensors, _ = read_start(path)
    assert torch.equal(tensors["head.weight"], tensors["embed.weight"])


def test_files_that_are_no_start(tmp_path):
    with pytest.raises(ValueError, match=r"none.safetensors: expected a safetensors file"):
        read_start(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors here")
    with pytest.raises(ValueError, match=r"text.safetensors: expected a safetensors file"):
        read_start(tmp_path / "text.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="without its metadata"):
        read_start(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="expected a safetensors file"):
        read_start(tmp_path)


def test_a_torch_checkpoint_is_not_unpickled(tmp_path):
    class Boom:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    torch.save(Boom(), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="expected a safetensors file"):
        read_start(tmp_path / "model.pt")


def test_non_contiguous_tensors_and_aliases_between_keys(tmp_path):
    model = nn.Linear(4, 4)
    model.weight.data = model.weight.data.T
    path = write_start(tmp_path / "start.safetensors", model, {"method": ""})
    tensors, metadata = read_start(path)
    assert torch.equal(tensors["weight"], model.weight)
    assert metadata["method"] == ""
