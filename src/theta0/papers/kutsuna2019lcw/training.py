"""How section 6 of kutsuna2019lcw trains: data, augmentation, the falling rate, and the curves that are kept."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from theta0.papers.datasets import Dataset, load
from theta0.papers.devices import device
from theta0.papers.sweeps import Configuration

Source = Dataset | tuple[str, str | None]
_STAGES = 100  # 100 epochs × 1, 300 / 3 and 500 / 5: in all three schedules the rate falls a hundred times


@dataclass(frozen=True)
class Plan:
    """One training run; a shorter run than the source's goes through the same falling rates.

    Attributes:
        train: most training samples used; None for all.
        test: most test samples used; None for all.
        epochs: passes over them.
        points: how often the curves are written down.
        weight_decay: of SGD.
        batch: samples of a minibatch; what is left over of an epoch is dropped.
        rate: the first learning rate.
        decay: its factor from stage to stage.
        floor: the smallest rate.
        momentum: of SGD.
    """

    train: int | None
    test: int | None
    epochs: int
    points: int
    weight_decay: float
    batch: int = 128
    rate: float = 0.1
    decay: float = 0.95
    floor: float = 0.001
    momentum: float = 0.9

    def rate_at(self, progress: float) -> float:
        """The learning rate after a share of the run.

        Returns:
            max(floor, rate · decay^⌊100 · progress⌋): per epoch over 100, per three of 300, per five of 500.
        """
        return float(max(self.floor, self.rate * self.decay ** int(_STAGES * progress + 1e-9)))

    def settings(self) -> dict[str, Any]:
        """What a configuration says of the run.

        Returns:
            The attributes.
        """
        return asdict(self)


def plan_of(configuration: Configuration) -> Plan:
    """The plan that a configuration was made with.

    Returns:
        The plan.
    """
    return Plan(**configuration["plan"])


def source_of(data: Dataset | str | None, root: str | Path | None, default: str) -> Source:
    """Data as a small thing that a process can be sent and read by itself.

    Args:
        data: a data set, its name, or None for the default.
        root: where its files are.
        default: name of the data set when none is given.

    Returns:
        The data set as given, or its name and folder.
    """
    return data if isinstance(data, Dataset) else (data or default, None if root is None else str(root))


def prepared(source: Source, plan: Plan) -> Dataset:
    """Thinned to the plan's numbers, channels standardised (kutsuna2019lcw, section 6).

    Args:
        source: from `source_of`.
        plan: how many samples.

    Returns:
        The data; the last ones read are kept in memory.
    """
    if isinstance(source, Dataset):
        return _prepared(source, plan.train, plan.test)
    return _loaded(*source, plan.train, plan.test)


@lru_cache(maxsize=1)
def _loaded(name: str, root: str | None, train: int | None, test: int | None) -> Dataset:
    return _prepared(load(name, root), train, test)


def _prepared(data: Dataset, train: int | None, test: int | None) -> Dataset:
    keep, keep_test = (_even(len(x), most) for x, most in ((data.train_x, train), (data.test_x, test)))
    x, test_x = data.train_x[keep], data.test_x[keep_test]
    axes = (0, 2, 3)
    mean, deviation = x.mean(axes, keepdim=True), x.std(axes, keepdim=True)
    return replace(
        data,
        train_x=(x - mean) / deviation,
        train_y=data.train_y[keep],
        test_x=(test_x - mean) / deviation,
        test_y=data.test_y[keep_test],
    )


def _even(count: int, most: int | None) -> Int[Tensor, " kept"]:
    if most is None or most >= count:
        return torch.arange(count)
    return torch.linspace(0, count - 1, most, dtype=torch.float64).round().long()


def train(model: nn.Module, data: Dataset, plan: Plan, generator: Generator) -> dict[str, Any]:
    """SGD with momentum through the falling rates.

    Args:
        model: trained in place, on `devices.device`, and back on the CPU afterwards.
        data: from `prepared`; images of CIFAR are cropped and flipped at random.
        plan: the run.
        generator: source of the order of samples and of the augmentation.

    Returns:
        `step` and `train_loss`, `train_accuracy` (running means since the point before, in training mode),
        `test_loss`, `test_accuracy` at each point; None from where the loss is not finite; and the number of updates.
    """
    here = device()
    model.to(here)
    optimizer = torch.optim.SGD(model.parameters(), plan.rate, momentum=plan.momentum, weight_decay=plan.weight_decay)
    per_epoch = max(len(data.train_x) // plan.batch, 1)
    total = per_epoch * plan.epochs
    points = {round(total * (number + 1) / plan.points) for number in range(plan.points)}
    curves: dict[str, list[Any]] = {"step": sorted(points)} | {key: [] for key in _CURVES}
    losses, right = [], []
    for step in range(total):
        if step % per_epoch == 0:
            order = torch.randperm(len(data.train_x), generator=generator)
        chosen = order[step % per_epoch * plan.batch :][: plan.batch]
        x = data.train_x[chosen]
        x = augmented(x, generator) if data.name.startswith("cifar") else x
        for group in optimizer.param_groups:
            group["lr"] = plan.rate_at(step / total)
        outputs, y = model(x.to(here)), data.train_y[chosen].to(here)
        loss = F.cross_entropy(outputs, y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
        right.append((outputs.argmax(1) == y).float().mean())
        if step + 1 in points:
            row = (float(torch.stack(losses).mean()), float(torch.stack(right).mean()), *evaluated(model, data))
            losses, right = [], []
            if not torch.isfinite(torch.tensor(row)).all():
                break
            for key, value in zip(_CURVES, row, strict=True):
                curves[key].append(value)
    model.cpu()
    lost = [None] * (plan.points - len(curves["train_loss"]))
    return {"updates": total, "step": curves["step"]} | {key: [*curves[key], *lost] for key in _CURVES}


_CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


@torch.no_grad()
def evaluated(model: nn.Module, data: Dataset) -> tuple[float, float]:
    """Mean cross-entropy and accuracy on the test samples, in evaluation mode.

    Args:
        model: left in the mode it was in.
        data: from `prepared`.

    Returns:
        Both.
    """
    here, training = next(model.parameters()).device, model.training
    model.eval()
    loss, right = 0.0, 0
    for x, y in zip(torch.split(data.test_x, 500), torch.split(data.test_y, 500), strict=True):
        outputs = model(x.to(here)).cpu()
        loss += float(F.cross_entropy(outputs, y, reduction="sum"))
        right += int((outputs.argmax(1) == y).sum())
    model.train(training)
    return loss / len(data.test_y), right / len(data.test_y)


def augmented(
    x: Float[Tensor, "n channels height width"], generator: Generator, padding: int = 4
) -> Float[Tensor, "n channels height width"]:
    """Random crops of the padded images, half of them mirrored (kutsuna2019lcw, section 6).

    Args:
        x: images.
        generator: source of the draws.
        padding: zeros around each image, the largest shift.

    Returns:
        Images of the same shape.
    """
    n, _, height, width = x.shape
    windows = F.pad(x, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    down, right = torch.randint(2 * padding + 1, (2, n), generator=generator)
    mirrored: Bool[Tensor, " n"] = torch.rand(n, generator=generator) < 0.5
    cropped = windows[torch.arange(n), :, down, right]
    return torch.where(mirrored[:, None, None, None], cropped.flip(3), cropped)
