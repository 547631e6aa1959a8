"""Independent float64 routes: hooks on modules, activations kept and concatenated, moments in two passes by numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.Embedding)
LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


def call(model: nn.Module, inputs: Any, *, labelled: bool) -> Any:
    if isinstance(inputs, Mapping) and labelled:
        return model(**inputs)
    if isinstance(inputs, Mapping):
        return model(**{k: v for k, v in inputs.items() if k != "labels"})
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def doubled(batch: Any) -> tuple[Any, Tensor]:
    inputs, targets = (batch, batch["labels"]) if isinstance(batch, Mapping) else batch
    double = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
    if isinstance(inputs, Mapping):
        return {k: double(v) for k, v in inputs.items()}, targets
    return (tuple(map(double, inputs)) if isinstance(inputs, tuple) else double(inputs)), double(targets)


def units_last(z: np.ndarray, module: nn.Module, samples: int) -> np.ndarray:
    """(samples, positions, units)."""
    if "Conv" in type(module).__name__:
        z = np.moveaxis(z, 1, -1)
    elif z.shape[0] != samples:  # length first
        z = np.moveaxis(z, 1, 0)
    return z.reshape(len(z), -1, z.shape[-1])


class Kept:
    """Outputs of plain modules by layer call, with their gradients, over batches."""

    def __init__(self, model: nn.Module) -> None:
        self.outputs: dict[str, list[Tensor]] = {}
        self.modules: dict[str, nn.Module] = {}
        self.counts: dict[str, int] = {}
        self.sizes: dict[str, list[int]] = {}
        self.samples = 0
        for path, module in model.named_modules():
            if isinstance(module, PLAIN):
                module.register_forward_hook(lambda m, i, z, path=path or "(model)": self.keep(path, m, z))

    def keep(self, path: str, module: nn.Module, z: Tensor) -> Tensor | None:
        n = self.counts[path] = self.counts.get(path, 0) + 1
        name = path if n == 1 else f"{path}#{n}"
        if z.requires_grad:
            z.retain_grad()
        self.outputs.setdefault(name, []).append(z)
        self.modules[name] = module
        self.sizes.setdefault(name, []).append(self.samples)
        return z.clone()  # what follows may overwrite it


def dense(model: nn.Module, batches: list[Any], loss: Any) -> dict[str, dict[str, float]]:
    """Every number of `signals` that has a plain definition, on a float64 model that is used up."""
    kept = Kept(model)
    losses, rows = [], []
    loss = LOSSES.get(loss, loss)
    for batch in batches:
        kept.counts.clear()
        inputs, targets = doubled(batch)
        kept.samples = len(targets)
        outputs = call(model, inputs, labelled=loss is None)
        value = outputs.loss if loss is None else loss(getattr(outputs, "logits", outputs), targets)
        value.backward()
        losses.append(value.item())
        main = outputs[0] if isinstance(outputs, tuple) else getattr(outputs, "logits", outputs)
        rows.append(main.detach().numpy())
    table = {name: of_layer(zs, kept.modules[name], kept.sizes[name]) for name, zs in kept.outputs.items()}
    for name, p in model.named_parameters():
        table[name] = {"value_rms": float(np.sqrt((p.detach().numpy() ** 2).mean()))}
        if p.grad is not None:
            table[name]["gradient_norm"] = float(np.linalg.norm(p.grad.numpy() / len(batches)))
    out = np.concatenate(rows)
    table[""] = {
        "loss": float(np.mean(losses)),
        "output_rms": float(np.sqrt((out**2).mean())),
        "output_sample_std": float(np.sqrt(out.var(0).mean())),
    }
    return table


def of_layer(zs: list[Tensor], module: nn.Module, sizes: list[int]) -> dict[str, float]:
    z = np.concatenate([units_last(t.detach().numpy(), module, n) for t, n in zip(zs, sizes, strict=True)])
    grand = z.sum() / z.size
    variance = ((z - grand) ** 2).sum() / z.size
    unit_means = z.mean((0, 1))
    between = ((unit_means - grand) ** 2).mean()
    found = {
        "preactivation_mean": grand,
        "preactivation_variance": variance,
        "preactivation_max": np.abs(z).max(),
        "between_unit_variance": between,
        "within_unit_variance": ((z - unit_means) ** 2).mean(),
        "shift_share": between / variance,
        "sample_share": ((z - z.mean(0)) ** 2).mean() / variance,
    }
    if all(t.grad is not None for t in zs):
        g = np.concatenate([t.grad.numpy().ravel() for t in zs])
        found["gradient_variance"] = ((g - g.mean()) ** 2).mean()
        found["backward_norm"] = np.sqrt((g**2).sum())
    return {name: float(value) for name, value in found.items()}
