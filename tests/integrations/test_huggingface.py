"""Hugging Face transformers, the real ones; skipped where they are not installed or do not import."""

import copy

import pytest
import torch

import theta0

try:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
except Exception as error:  # an installation that does not import is none
    pytest.skip(f"transformers do not import here: {error!r:.80}", allow_module_level=True)

from theta0.integrations.huggingface import DiagnoseStart, diagnose

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # their own


def model(std=0.02):
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=24, n_positions=12, n_embd=16, n_layer=2, n_head=2, initializer_range=std)
    )


def trainer(tmp_path, model, samples=24, callbacks=(), **arguments):
    start = torch.arange(samples)[:, None]
    dataset = [{"input_ids": row, "labels": row} for row in (start + torch.arange(12)) % 24]
    settings = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-3, warmup_steps=3,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, logging_steps=1, seed=1, **arguments,
    )  # fmt: skip
    return Trainer(model=model, args=settings, train_dataset=dataset, callbacks=list(callbacks))


@pytest.mark.parametrize("samples", [12, 24])  # fewer batches than are read, and more
def test_training_goes_on_bit_for_bit_as_without(samples, tmp_path):
    runs = []
    for callbacks in ([], [DiagnoseStart("never", probe_steps=10)]):
        training = trainer(tmp_path, model(), samples, callbacks)
        training.train()
        losses = [entry["loss"] for entry in training.state.log_history if "loss" in entry]
        runs.append((losses, list(training.model.parameters())))
    (plain, end), (watched, end_watched) = runs
    assert len(plain) == samples // 4 * 2
    assert plain == watched
    assert all(map(torch.equal, end, end_watched))


def test_a_model_that_cannot_train_is_stopped_before_its_first_step(tmp_path):
    ill = model()
    with torch.no_grad():
        ill.transformer.ln_f.weight.zero_()
        ill.transformer.ln_f.bias.zero_()
        ill.transformer.ln_f.requires_grad_(False)
    callback = DiagnoseStart()
    training = trainer(tmp_path, ill, callbacks=[callback])
    with pytest.raises(theta0.NotTrainableError) as raised:
        training.train()
    assert training.state.global_step == 0
    assert raised.value.diagnosis is callback.diagnosis


def test_a_trainer_is_diagnosed_with_its_loss_data_and_optimizer(tmp_path):
    training = trainer(tmp_path, model().eval(), label_smoothing_factor=0.1)
    before = copy.deepcopy(training.model.state_dict())
    found = diagnose(training, probe_steps=20)
    assert found.probe.given == 1e-3
    assert found.probe.runs[0].optimizer.lower() == "adamw"
    assert not training.model.training
    assert all(torch.equal(before[name], value) for name, value in training.model.state_dict().items())
    assert "training-mode" not in [finding.code for finding in found.findings]
