"""Hugging Face transformers: a callback that diagnoses before the first step of a Trainer, and a diagnosis of one."""

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback

from theta0._state import preserve_state
from theta0.diagnosis import Diagnosis
from theta0.diagnosis import diagnose as run
from theta0.integrations._stopping import FailOn, scheduled_rate, stop, unexhausted

ComputeLoss = Callable[[nn.Module, Any], Any]


class DiagnoseStart(TrainerCallback):
    """Diagnose the model when `Trainer.train` begins, and stop where it will not train.

    The model, the random states and the data are left as they were: training goes on as it would have without. The
    result is `diagnosis`.

    Args:
        fail_on: "error" raises `theta0.NotTrainableError` on an error, "warning" on a warning too; "never" only logs.
        step: the loss of a model and a batch, where it is not the model's own: `trainer.compute_loss`.
        options: further arguments of `theta0.diagnose`, such as `probe_steps=0` or `ignore=[code]`.
    """

    def __init__(self, fail_on: FailOn = "error", *, step: ComputeLoss | None = None, **options: Any) -> None:
        self.fail_on, self.step, self.options = fail_on, step, options
        self.diagnosis: Diagnosis | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The Trainer's hook, at which optimizer and loader are there and no step is made."""
        if state.is_world_process_zero:
            parts = given["model"], given["train_dataloader"], given["optimizer"]
            self.diagnosis = _diagnosed(*parts, self.step, args, self.options)
            stop(self.diagnosis, self.fail_on)


def diagnose(trainer: Any, **options: Any) -> Diagnosis:
    """Diagnose what a Trainer would train, with its own loss, data and optimizer, without training.

    Args:
        trainer: a `transformers.Trainer`; its optimizer is made if it has none yet.
        options: further arguments of `theta0.diagnose`.

    Returns:
        The diagnosis.
    """
    if trainer.optimizer is None:
        trainer.create_optimizer()
    parts = trainer.model, trainer.get_train_dataloader(), trainer.optimizer
    return _diagnosed(*parts, trainer.compute_loss, trainer.args, options)


def _diagnosed(
    model: nn.Module, loader: Any, optimizer: Any, loss: ComputeLoss | None, args: Any, options: dict[str, Any]
) -> Diagnosis:
    step = None if loss is None else lambda model, batch: loss(model, dict(batch))  # it takes labels out of a batch
    loader, own = getattr(loader, "base_dataloader", loader), getattr(optimizer, "optimizer", optimizer)
    given = {"step": step, "optimizer": own, "learning_rate": scheduled_rate(own)}
    given |= {"clip_norm": args.max_grad_norm or None, "accumulate": args.gradient_accumulation_steps} | options
    most = unexhausted(loader, options.get("max_batches", 4))
    with preserve_state(model):
        model.train()  # as the Trainer does at its first step
        return run(model, loader, **given | {"max_batches": most})
