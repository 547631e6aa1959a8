"""Fine-tuning on many tasks at once: one stacked network, a member per task, each as if it were alone."""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from theta0.papers.lee2023mmd.tasks import Task

_EVALUATED = 2000  # test inputs at once


def fine_tuned_accuracies(
    model: nn.Module,
    tasks: Sequence[Task],
    test_x: Float[Tensor, "test ..."],
    *,
    epochs: int = 10,
    batch: int = 50,
    rate: float = 1e-3,
    seed: int = 0,
) -> list[float]:
    """Train the start on each task and test it where its validation loss was lowest (lee2023mmd, §4).

    Adam at a fixed rate on mini-batches of 50, shuffled every epoch; the validation loss is taken in evaluation mode
    after every epoch.

    Args:
        model: the start, left as it is.
        tasks: of equal sizes.
        test_x: the data set's test inputs.
        epochs: how many at most.
        batch: samples per update.
        rate: Adam's.
        seed: of the shuffles; task t of a run gets the same shuffles from every start.

    Returns:
        The test accuracy of each task, in percent.
    """
    here = next(model.parameters()).device
    x, y = (torch.stack(parts).to(here) for parts in ([t.train_x for t in tasks], [t.train_y for t in tasks]))
    held_x, held_y = (
        torch.stack(parts).to(here) for parts in ([t.validation_x for t in tasks], [t.validation_y for t in tasks])
    )
    skeleton = copy.deepcopy(model)
    state = _stack(skeleton, len(tasks))
    parameters = [value for value in state[0].values() if value.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=rate)
    shuffles = [torch.Generator().manual_seed(1009 * seed + number) for number in range(len(tasks))]
    best = torch.full((len(tasks),), torch.inf, device=here)
    kept = _copied(state)
    for _ in range(epochs):
        order = torch.stack([torch.randperm(x.shape[1], generator=generator) for generator in shuffles])
        for part in torch.split(order, batch, dim=1):
            loss = _losses(skeleton.train(), state, _rows(x, part), _rows(y, part)).sum()
            for value, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                value.grad = gradient
            optimizer.step()
        with torch.no_grad():
            now = _losses(skeleton.eval(), state, held_x, held_y)
        better = now < best
        best = torch.where(better, now, best)
        _keep(kept, state, better)
    return _accuracies(skeleton.eval(), kept, test_x, torch.stack([t.test_y for t in tasks]))


State = tuple[dict[str, Tensor], dict[str, Tensor]]


def _stack(model: nn.Module, members: int) -> State:
    parameters, buffers = stack_module_state([model] * members)
    leaves = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
    return leaves, {name: value.clone() for name, value in buffers.items()}


def _outputs(model: nn.Module, state: State, x: Tensor, axis: int | None = 0) -> Tensor:
    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(model, (parameters, buffers), (inputs,))
        return output

    stacked: Tensor = vmap(one, (0, 0, axis))(*state, x)
    return stacked


def _losses(model: nn.Module, state: State, x: Tensor, y: Tensor) -> Float[Tensor, " members"]:
    outputs = _outputs(model, state, x)
    return F.cross_entropy(outputs.transpose(1, 2), y, reduction="none").mean(1)


def _accuracies(model: nn.Module, state: State, x: Tensor, y: Tensor) -> list[float]:
    with torch.no_grad():
        here = next(iter(state[0].values())).device
        parts = [_outputs(model, state, part.to(here), None).argmax(2).cpu() for part in torch.split(x, _EVALUATED)]
        guesses = torch.cat(parts, 1)
    accuracies: list[float] = (100 * (guesses == y).double().mean(1)).tolist()
    return accuracies


def _rows(values: Tensor, index: Tensor) -> Tensor:
    return torch.stack([value[rows] for value, rows in zip(values, index, strict=True)])


def _copied(state: State) -> State:
    copied = tuple({name: value.detach().clone() for name, value in part.items()} for part in state)
    return copied[0], copied[1]


def _keep(kept: State, state: State, better: Tensor) -> None:
    with torch.no_grad():
        for into, part in zip(kept, state, strict=True):
            for name, value in part.items():
                into[name][better] = value[better]
