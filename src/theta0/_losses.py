"""A loss by name or callable, applied to whatever the model returns; and the best constant predictor's loss."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from theta0._batches import Batch, checked_forward
from theta0._errors import UserCodeError, guarded, shown
from theta0._models import Step, StepInputs, main_output, without_labels
from theta0._moments import fetched

LossName = Literal["cross_entropy", "mse", "l1", "bce"]
Loss = LossName | Callable[[Any, Any], Tensor] | None

_NAMED: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "bce": F.binary_cross_entropy_with_logits,
}
_MODULES: dict[type[nn.Module], LossName] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.MSELoss: "mse",
    nn.L1Loss: "l1",
    nn.BCEWithLogitsLoss: "bce",
}
_DEFAULTS = {"weight": None, "pos_weight": None, "reduction": "mean", "label_smoothing": 0.0, "ignore_index": -100}


def checked(loss: Loss, step: Step | None = None) -> Loss:
    """The loss, if it can be one: a known name, a callable, or None, as it must be where a step gives the loss."""
    if step is not None and not callable(step):
        raise ValueError(f"step: expected a function (model, batch) -> loss, got {shown(step)}")
    if step is not None and loss is not None:
        raise ValueError("step: expected either loss or step, got both; a step returns its own loss: leave loss out")
    given: Any = loss
    if isinstance(given, type):
        name = given.__name__
        raise ValueError(f"loss: expected a loss, got the class {name}; make one of it: loss = nn.{name}()")
    if loss is None or callable(loss) or (isinstance(loss, str) and loss in _NAMED):
        return loss
    raise ValueError(
        f"loss: expected {', '.join(map(repr, _NAMED))}, a callable (outputs, targets) -> scalar, or None, "
        f"got {shown(loss)}"
    )


def name_of(loss: Loss) -> LossName | None:
    """The standard loss that a name, a torch function or a torch module (with default settings) stands for, if any."""
    if isinstance(loss, str):
        return loss
    if isinstance(loss, nn.Module):
        return _MODULES.get(type(loss)) if all(getattr(loss, k, v) == v for k, v in _DEFAULTS.items()) else None
    names: dict[Any, Any] = {function: name for name, function in _NAMED.items()}
    return names.get(loss)


def loss_of(model: nn.Module, batch: Batch, loss: Loss) -> tuple[Tensor, Any]:
    """Run the model on a batch, in the mode in which it is, and apply the loss: its 0-d tensor, and the outputs."""
    inputs = batch.inputs if loss is None else without_labels(batch.inputs)
    outputs = checked_forward(model, replace(batch, inputs=inputs))
    value = applied(loss, outputs, batch)
    return value, outputs


def applied(loss: Loss, outputs: Any, batch: Batch) -> Tensor:
    """Apply a loss to outputs; it must give a scalar."""
    if loss is None:
        return _own_loss(outputs, batch)
    if isinstance(loss, str):
        value = guarded(f"batch {batch.number}: the loss {loss!r}", lambda: named_loss(loss, outputs, batch))
    else:
        value = guarded(f"batch {batch.number}: the loss", lambda: loss(_for_callable(outputs, batch), batch.targets))
    if not isinstance(value, Tensor) or value.numel() != 1:
        came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        tensor = isinstance(value, Tensor)
        advice = "reduce it over the batch, for example by .mean()" if tensor else "return what backward() is called on"
        raise UserCodeError(f"loss: expected a scalar tensor, got {came}; {advice}")
    return value.reshape(())


def backward(value: Tensor, inputs: Sequence[Tensor] | None = None) -> None:
    """`value.backward()`; what the user's own backward pass or hook raises is an error of theirs.

    Without `inputs` it works under re-entrant checkpointing, too.
    """
    guarded("the backward pass", lambda: torch.autograd.backward(value, inputs=inputs))


def returned_loss(outputs: Any) -> Any:
    """The loss that outputs carry, `.loss` or `["loss"]`; None where they carry none."""
    return outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)


def _own_loss(outputs: Any, batch: Batch) -> Tensor:
    own = returned_loss(outputs)
    if isinstance(own, Tensor) and own.numel() == 1:
        return own.reshape(())
    came = f"a tensor of shape {tuple(own.shape)}" if isinstance(own, Tensor) else type(own).__name__
    if isinstance(batch.inputs, StepInputs):
        raise ValueError(
            "step: expected step(model, batch) to return the loss, a scalar tensor, or a mapping with 'loss', got "
            f"{came}"
        )
    if isinstance(own, Tensor):
        raise ValueError(f"loss: expected the model's own .loss to be a scalar, got {came}; reduce it over the batch")
    raise ValueError(
        "loss: expected a name or a callable, got None, and the model's outputs have no .loss; "
        "define loss, or pass labels to the model"
    )


def constant_loss(loss: Loss, outputs: Any, batch: Batch) -> float | None:
    """The loss of the best predictor that ignores its input, on one batch.

    For cross-entropy the entropy of the labels, for squared error their variance per output, for absolute error the
    mean deviation from the median, for binary cross-entropy the entropy per output. None where the loss is not one of
    these or targets and outputs do not match.
    """
    name, output, targets = _kind(loss, outputs, batch), main_output(outputs), batch.targets
    if name is None or output is None or not isinstance(targets, Tensor):
        return None
    if name == "cross_entropy":
        return _label_entropy(targets)
    if targets.shape != output.shape:
        return None
    t = targets.detach().double().reshape(len(targets), -1)
    if name == "mse":
        return float(t.var(0, correction=0).mean())
    if name == "l1":
        return float((t - t.median(0).values).abs().mean())
    p = t.mean(0)
    return float(torch.special.entr(torch.stack([p, 1 - p])).sum(0).mean())


def uniform_loss(loss: Loss, outputs: Any, batch: Batch) -> float | None:
    """The cross-entropy of equal probabilities: log C for C classes, log 2 for binary cross-entropy, else None."""
    if _kind(loss, outputs, batch) == "bce":
        return None if main_output(outputs) is None else math.log(2)
    logits = class_logits(loss, outputs, batch)
    return None if logits is None else math.log(max(1, logits.shape[-1]))


def class_logits(loss: Loss, outputs: Any, batch: Batch) -> Shaped[Tensor, "... classes"] | None:
    """The logits that a cross-entropy over classes is given, classes along the last axis; None for any other loss."""
    output = main_output(outputs)
    if output is None or not output.dim() or _kind(loss, outputs, batch) != "cross_entropy":
        return None
    return output.movedim(-1 if loss is None else min(1, output.dim() - 1), -1)


def _kind(loss: Loss, outputs: Any, batch: Batch) -> LossName | None:
    """A model's own loss is a cross-entropy where it has integer labels and one more axis of logits."""
    output, targets = main_output(outputs), batch.targets
    if loss is not None or output is None or not isinstance(targets, Tensor):
        return name_of(loss)
    labelled = not targets.is_floating_point() and output.dim() == targets.dim() + 1 and output.shape[-1] > 1
    return "cross_entropy" if labelled else None


def _label_entropy(targets: Tensor) -> float:
    if targets.is_floating_point():
        frequencies = targets.double().flatten(2).mean((0, 2)) if targets.dim() > 2 else targets.double().mean(0)
    else:
        labels = fetched([targets])[0]
        counts = torch.bincount(labels[labels >= 0].flatten()).double()
        frequencies = counts / counts.sum()
    return float(torch.special.entr(frequencies).sum())


def named_loss(loss: str, outputs: Any, batch: Batch, reduction: str = "mean") -> Tensor:
    """A named loss of a model's main output, in single precision at least."""
    output, targets = main_output(outputs), batch.targets
    if output is None or not isinstance(targets, Tensor):
        missing = "a floating output" if output is None else "targets"
        raise ValueError(f"expected {missing}, got {type(outputs if output is None else targets).__name__}")
    output = output.float() if output.dtype in (torch.float16, torch.bfloat16) else output
    if loss == "cross_entropy":
        _require_labels(output, targets)
    if targets.is_floating_point() or loss != "cross_entropy":
        targets = targets.to(output.dtype)
    return _NAMED[loss](output, targets, reduction=reduction)


def _require_labels(output: Tensor, targets: Tensor) -> None:
    if output.dim() < 2:
        return
    wanted = (output.shape[0], *output.shape[2:])
    if targets.is_floating_point() and targets.shape != output.shape:
        raise ValueError(
            f"expected class numbers of shape {wanted}, or probabilities of shape {tuple(output.shape)}, got "
            f"{targets.dtype} of shape {tuple(targets.shape)}; class numbers are made by targets.long()"
        )
    if not targets.is_floating_point() and targets.shape != torch.Size(wanted):
        squeezed = targets.numel() == math.prod(wanted)
        advice = (
            f"reshape them: targets.reshape({', '.join(map(str, (-1, *wanted[1:])))})"
            if squeezed
            else "one for each sample"
        )
        raise ValueError(
            f"expected class numbers of shape {wanted} for outputs of shape {tuple(output.shape)}, got shape "
            f"{tuple(targets.shape)}; {advice}"
        )
    if targets.is_floating_point():
        return
    if not targets.numel():
        return
    classes = output.shape[1]
    low, high = torch.stack(torch.aminmax(targets.where(targets != -100, 0).long())).tolist()  # one wait for the device
    if low < 0 or high >= classes:
        valid = targets[targets != -100]
        raise ValueError(
            f"expected labels from 0 to {classes - 1} (the model has {classes} outputs), "
            f"got {int(valid.min())} to {int(valid.max())}; renumber the labels or widen the last layer"
        )


def _for_callable(outputs: Any, batch: Batch) -> Any:
    """A transformers-style output is handed to a loss as its logits when the batch was a dict."""
    logits = getattr(outputs, "logits", None)
    return logits if isinstance(batch.inputs, Mapping) and isinstance(logits, Tensor) else outputs
