"""PyTorch Lightning, the real one; skipped where it is not installed or does not import."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import theta0

try:
    import lightning as L
except Exception as error:  # an installation that does not import is none
    pytest.skip(f"lightning does not import here: {error!r:.80}", allow_module_level=True)

from theta0.integrations.lightning import DiagnoseStart, diagnose

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Lightning's own: workers, log intervals


class Classifier(L.LightningModule):
    """With dropout, a schedule that warms up, and logs."""

    def __init__(self, gain=1.0, rate=0.05):
        super().__init__()
        self.rate, self.losses = rate, []
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        with torch.no_grad():
            self.net[3].weight.mul_(gain)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"again": loss})
        return {"loss": loss}

    def on_before_optimizer_step(self, optimizer):
        self.losses.append([p.grad.clone() for p in self.parameters()])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Data(L.LightningDataModule):
    def setup(self, stage):
        self.stage = stage

    def train_dataloader(self):
        return loader()


def loader(samples=96):
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True)


def trainer(*callbacks):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return L.Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, callbacks=list(callbacks), **quiet)


@pytest.mark.parametrize("samples", [96, 256])  # fewer batches than are read, and more
def test_a_fit_goes_on_bit_for_bit_as_without(samples):
    fits = []
    for callbacks in ([], [DiagnoseStart("never", probe_steps=10)]):
        torch.manual_seed(0)
        module = Classifier()
        trainer(*callbacks).fit(module, loader(samples))
        fits.append((module.losses, list(module.parameters()), torch.get_rng_state()))
    (plain, end, state), (watched, end_watched, state_watched) = fits
    assert len(plain) == len(watched) == 2 * samples // 32
    assert all(
        torch.equal(a, b) for one, two in zip(plain, watched, strict=True) for a, b in zip(one, two, strict=True)
    )
    assert all(map(torch.equal, end, end_watched))
    assert torch.equal(state, state_watched)


def test_a_module_that_cannot_train_is_stopped_before_its_first_step():
    module, callback = Classifier(gain=0.0, rate=1e4), DiagnoseStart()
    with pytest.raises(theta0.NotTrainableError, match="Not ready to train") as raised:
        trainer(callback).fit(module, loader())
    assert module.losses == []
    assert raised.value.diagnosis is callback.diagnosis
    assert not callback.diagnosis.healthy


def test_it_may_only_log(caplog):
    callback = DiagnoseStart("never")
    with caplog.at_level(logging.INFO, "theta0"):
        trainer(callback).fit(Classifier(gain=0.0, rate=1e4), loader())
    assert "Not ready to train" in caplog.text
    assert len(caplog.text.splitlines()) <= 13


def test_the_rate_is_the_one_that_the_warm_up_leads_to():
    found = diagnose(Classifier(rate=0.05), loader(), probe_steps=20)
    assert found.probe.given == 0.05
    assert found.probe.runs[0].optimizer == "momentum"


def test_a_module_is_diagnosed_with_its_own_step_and_optimizer_without_a_trainer():
    module, data = Classifier(), Data()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = diagnose(module, data, probe_steps=0)
    assert found.healthy
    assert data.stage == "fit"
    assert "net.0" in found.layer_types
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert "log" not in vars(module)


@pytest.mark.parametrize("form", ["one", "dictionary", "list", "tuple", "none"])
def test_forms_of_configure_optimizers(form):
    class Other(Classifier):
        def configure_optimizers(self):
            made = torch.optim.Adam(self.parameters(), lr=0.01)
            return {
                "one": made,
                "dictionary": {"optimizer": made},
                "list": [made],
                "tuple": ([made], []),
                "none": None,
            }[form]

    found = diagnose(Other(), loader(), probe_steps=10)
    assert found.probe.given == (None if form == "none" else 0.01)


def test_several_loaders_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"theta0\.capture"):
        trainer(DiagnoseStart()).fit(Classifier(), {"a": loader(), "b": loader()})


def test_manual_optimization_is_refused_with_what_to_do():
    module = Classifier()
    module.automatic_optimization = False
    with pytest.raises(ValueError, match=r"theta0\.capture"):
        diagnose(module, loader())
