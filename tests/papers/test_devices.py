"""Where networks are trained, and what an item's line says about a claim."""

import pytest
import torch
from torch import nn

from theta0.papers.datasets import Dataset
from theta0.papers.devices import computing_on, device
from theta0.papers.kutsuna2019lcw.training import Plan, train
from theta0.papers.lee2023mmd.starts import drawn_start, start
from theta0.papers.verdicts import verdict


def test_a_device_counts_within_its_block():
    with computing_on("cpu:0"):
        assert device() == torch.device("cpu", 0)
        with pytest.raises(RuntimeError, match="broken"), computing_on("cpu"):
            raise RuntimeError("broken")
        assert device() == torch.device("cpu", 0)
    assert device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["nowhere", "cuda:99"])
def test_a_device_that_is_not_there(name):
    message = f"--device: expected a device that torch finds here, got '{name}'"
    with pytest.raises(ValueError, match=message), computing_on(name):
        pass


def data():
    x = torch.randn(40, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    y = (x.flatten(1).sum(1) > 0).long()
    return Dataset(x, y, x, y, "noise", "noise")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_results_on_a_gpu_are_those_on_the_cpu():
    curves = []
    for name in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2))
        with computing_on(name):
            curves.append(train(model, data(), Plan(40, 40, 3, 3, 0.0, batch=8), torch.Generator().manual_seed(1)))
            assert next(drawn_start(data(), start(data(), "he", "none", 0, steps=0)).parameters()).device.type == name
        assert next(model.parameters()).device.type == "cpu"
    assert curves[0]["test_loss"] == pytest.approx(curves[1]["test_loss"], rel=1e-4)


def test_verdicts_say_what_was_found():
    assert verdict(True, "it falls") == "it falls, as in the source"
    assert verdict(False, "it falls") == "unlike in the source, where it falls"
