"""PyTorch Lightning: a callback that diagnoses before the first step, and a diagnosis without a Trainer."""

from collections.abc import Callable
from contextlib import nullcontext
from inspect import signature
from typing import Any
from unittest.mock import patch

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

from theta0.diagnosis import Diagnosis
from theta0.diagnosis import diagnose as run
from theta0.integrations._stopping import FailOn, scheduled_rate, stop, unexhausted


class DiagnoseStart(Callback):
    """Diagnose the module when `Trainer.fit` starts to train, and stop where it will not train.

    The fit goes on as it would have without; what `self.log` is given meanwhile is dropped. The result is `diagnosis`.

    Args:
        fail_on: "error" raises `theta0.NotTrainableError` on an error, "warning" on a warning too; "never" only logs.
        options: further arguments of `theta0.diagnose`, such as `probe_steps=0` or `ignore=[code]`.
    """

    def __init__(self, fail_on: FailOn = "error", **options: Any) -> None:
        self.fail_on, self.options = fail_on, options
        self.diagnosis: Diagnosis | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lightning's hook, at which optimizers and loaders are there and no step is made."""
        if trainer.is_global_zero:
            clip = trainer.gradient_clip_val if trainer.gradient_clip_algorithm in (None, "norm") else None
            options = {"clip_norm": clip or None, "accumulate": trainer.accumulate_grad_batches} | self.options
            self.diagnosis = _diagnosed(pl_module, trainer.train_dataloader, trainer.optimizers, trainer, options)
            stop(self.diagnosis, self.fail_on)


def diagnose(module: LightningModule, data: LightningDataModule | Any, **options: Any) -> Diagnosis:
    """Diagnose a LightningModule by its own `training_step` and `configure_optimizers`, without a Trainer.

    Args:
        module: left as it was; of several optimizers the first counts.
        data: a LightningDataModule, of which `prepare_data` and `setup("fit")` are called, or a loader.
        options: further arguments of `theta0.diagnose`.

    Returns:
        The diagnosis.
    """
    if isinstance(data, LightningDataModule):
        data.prepare_data()
        data.setup("fit")
        data = data.train_dataloader()
    made = module.configure_optimizers()
    while isinstance(made, (tuple, list, dict)):  # (optimizers, schedulers), or {"optimizer": …, "lr_scheduler": …}
        made = made["optimizer"] if isinstance(made, dict) else made[0]
    return _diagnosed(module, data, [made] if made is not None else [], None, options)


def _diagnosed(
    module: LightningModule, loader: Any, optimizers: list[Any], trainer: Trainer | None, options: dict[str, Any]
) -> Diagnosis:
    if not module.automatic_optimization or (trainer is not None and isinstance(loader, (dict, list, tuple))):
        raise ValueError("module: expected automatic optimization and one loader; use `theta0.capture` on the script")
    takes = len(signature(module.training_step).parameters)
    precision: Callable[[], Any] = nullcontext if trainer is None else trainer.precision_plugin.train_step_context

    def step(model: Any, batch: Any) -> Any:
        with precision():
            return model.training_step(batch, *([0] if takes > 1 else []))

    given = {"optimizer": optimizers[0], "learning_rate": scheduled_rate(optimizers[0])} if optimizers else {}
    given |= options | {"max_batches": unexhausted(loader, options.get("max_batches", 4))}
    with patch.dict(vars(module), log=_nothing, log_dict=_nothing):
        return run(module, loader, step=step, **given)


def _nothing(*_: Any, **__: Any) -> None:
    """In place of `self.log`: there is no step to log."""
