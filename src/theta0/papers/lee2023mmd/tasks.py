"""The downstream tasks of lee2023mmd (§4): the classes of a data set put into two groups, and few labels."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from theta0.papers.datasets import Dataset

_TASK_STREAM = 7_000_003


@dataclass(frozen=True)
class Task:
    """A task of few labels.

    Attributes:
        train_x: inputs to train on.
        train_y: their labels.
        validation_x: inputs that choose the epoch.
        validation_y: their labels.
        test_y: labels of the data set's test inputs.
    """

    train_x: Float[Tensor, "n ..."]
    train_y: Int[Tensor, " n"]
    validation_x: Float[Tensor, "v ..."]
    validation_y: Int[Tensor, " v"]
    test_y: Int[Tensor, " test"]


def binary_groups(classes: int, count: int, seed: int) -> Bool[Tensor, "{count} {classes}"]:
    """Ways to put classes into two groups, neither of them empty, drawn uniformly without repetition.

    Args:
        classes: how many classes the data set has.
        count: how many ways.
        seed: of the draw.

    Returns:
        A row per way: whether a class belongs to group 1.

    Raises:
        ValueError: if there are fewer than that many ways, 2^classes - 2.
    """
    if not 1 <= count <= 2**classes - 2:
        raise ValueError(f"expected between 1 and {2**classes - 2} tasks of {classes} classes, got {count}")
    generator = torch.Generator().manual_seed(_TASK_STREAM + seed)
    found: list[list[bool]] = []
    while len(found) < count:
        row = (torch.rand(classes, generator=generator) < 0.5).tolist()
        if 0 < sum(row) < classes and row not in found:
            found.append(row)
    return torch.tensor(found)


def binary_tasks(data: Dataset, per_class: int, count: int, seed: int) -> list[Task]:
    """The binary tasks of one run: 10 N training and 2 N validation samples each, whatever their labels.

    The samples of a task for a smaller N are among those for a larger one.

    Args:
        data: inputs as the network takes them.
        per_class: N.
        count: how many tasks.
        seed: of the run.

    Returns:
        The tasks.
    """
    groups = binary_groups(int(data.train_y.max()) + 1, count, seed)
    return [
        _task(data, group[data.train_y].long(), group[data.test_y].long(), per_class, 1009 * seed + number)
        for number, group in enumerate(groups)
    ]


def whole_tasks(data: Dataset, per_class: int, count: int, seed: int) -> list[Task]:
    """The data set's own classes from few labels: 10 N training and 2 N validation samples, drawn `count` times.

    Args:
        data: inputs as the network takes them.
        per_class: N.
        count: how many draws.
        seed: of the run.

    Returns:
        The tasks.
    """
    return [_task(data, data.train_y, data.test_y, per_class, 1009 * seed + number) for number in range(count)]


def _task(data: Dataset, train_y: Tensor, test_y: Tensor, per_class: int, seed: int) -> Task:
    order = torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(_TASK_STREAM + seed))
    if 12 * per_class > len(order):
        raise ValueError(f"{data.label} has {len(order)} training samples, too few for N = {per_class}: 12 N are drawn")
    # Validation samples come from the other end, so that training samples for a smaller N are among those for a larger.
    train, validation = order[: 10 * per_class], order.flip(0)[: 2 * per_class]
    return Task(data.train_x[train], train_y[train], data.train_x[validation], train_y[validation], test_y)
