"""Which frequencies a network has between two of its own samples, before and after a short training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from theta0._batches import Batch, checked_forward, prepared, sliced
from theta0._losses import Loss, checked
from theta0._models import main_output
from theta0._progress import Progress, shown
from theta0._records import Result
from theta0._state import preserve_state, snapshot
from theta0._training import Maker, probe_rate, steps_from
from theta0.spectra.amplitudes import Spectrum, Window, fourier_amplitude

Penalty = Callable[[nn.Module], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class SpectrumChange(Result):
    """Amplitudes along the segment between two samples.

    Attributes:
        between: numbers of the samples, over all batches read.
        start: the spectrum before training.
        trained: the spectra after training, by name of the penalty; "no penalty" first.
        losses: the data's loss at every step, by the same names, without the penalty.
        optimizer: its name.
        rate: the learning rate.
    """

    between: tuple[int, int]
    start: Spectrum
    trained: Mapping[str, Spectrum]
    losses: Mapping[str, tuple[float, ...]]
    optimizer: str
    rate: float

    def to_dict(self) -> dict[str, float]:
        """Losses after training, and root mean square amplitudes over the outputs: `loss/l2`, `amplitude/start/3`."""
        losses = {f"loss/{name}": values[-1] for name, values in self.losses.items()}
        amplitudes = {
            f"amplitude/{name}/{k}": float(value)
            for name, spectrum in {"start": self.start, **self.trained}.items()
            for k, value in enumerate(spectrum.amplitudes.flatten(0, -2).double().square().mean(0).sqrt())
        }
        return losses | amplitudes


def spectrum_change(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    between: tuple[int, int] = (0, 1),
    steps: int = 100,
    points: int = 128,
    penalties: Mapping[str, Penalty] | None = None,
    optimizer: str | Maker = "sgd",
    learning_rate: float | None = None,
    window: Window = "hann",
    max_batches: int | None = 4,
    progress: bool | Progress | None = None,
) -> SpectrumChange:
    """Spectrum of a network along the segment between two samples, at its start and after short trainings from it.

    Frequencies are in cycles per segment. The segment is no period, so values are faded out by the Hann window by
    default. Evaluation mode along the segment, the mode as found while training; the model is put back bit for bit.

    Args:
        model: any module with floating inputs.
        batches: `(inputs, targets)` batches, used in turn.
        loss: a name, a callable, or None where the model returns its own.
        between: numbers of the two samples, from 0, over the batches read.
        steps: updates of each training.
        points: points along the segment; frequencies go up to half of them.
        penalties: further trainings with a penalty added to the loss, `{"l2": lambda m: 0.01 * l2_norm(m)}`.
        optimizer: its name, or a function from parameters and a learning rate to it.
        learning_rate: its rate; by default the best of seven after ten steps.
        window: "hann" or "none".
        max_batches: how many batches are read; None reads all.
        progress: True for a bar, or a function of what is being done and the share that is done.

    Returns:
        The spectra.

    Raises:
        ValueError: a sample does not exist or cannot be blended, both are the same, or a training diverges.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> change = spectrum_change(model, batches, "cross_entropy", between=(0, 5), steps=2, points=16)
        >>> change.start.frequencies.shape
        torch.Size([9])
    """
    checked(loss)
    if between[0] == between[1]:
        raise ValueError(f"between: expected two different samples, got {between[0]} twice; nothing varies there")
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}; the start is measured in any case")
    model, read = prepared(model, batches, max_batches)
    ends = [_sample(read, number) for number in between]
    _require_blendable(*ends)
    measured, losses = {}, {}
    with preserve_state(model), shown(progress, "measuring the spectrum") as tell:
        restore = snapshot(model)
        start = _along(model, ends, points, window)
        if learning_rate is None:
            tell("looking for a learning rate", 0.0)
            learning_rate, _ = probe_rate(model, read, loss, optimizer=optimizer, restore=restore)
        named: dict[str, Penalty | None] = {"no penalty": None, **(penalties or {})}
        for number, (name, penalty) in enumerate(named.items()):
            tell(f"training, {name}", number / len(named))
            losses[name] = tuple(
                steps_from(model, read, loss, optimizer=optimizer, rate=learning_rate, steps=steps, penalty=penalty)
            )
            _require_converged(losses[name], name, steps, learning_rate)
            measured[name] = _along(model, ends, points, window)
            restore()
    return SpectrumChange(between, start, measured, losses, _name(optimizer), learning_rate)


def _name(optimizer: str | Maker) -> str:
    return optimizer if isinstance(optimizer, str) else type(optimizer([nn.Parameter(torch.zeros(1))], 1.0)).__name__


def _require_blendable(first: Batch, last: Batch) -> None:
    leaves = list(zip(tree_flatten(first.inputs)[0], tree_flatten(last.inputs)[0], strict=True))
    pairs = [(a, b) for a, b in leaves if isinstance(a, Tensor) and isinstance(b, Tensor)]
    discrete = [a for a, b in pairs if not a.is_floating_point() and not torch.equal(a, b)]
    if discrete or not any(a.is_floating_point() for a, _ in pairs):
        raise ValueError(
            "between: expected samples whose floating inputs can be blended, got discrete ones that differ (tokens); "
            "measure the part of the model behind the embedding"
        )
    if any(a.shape != b.shape for a, b in pairs):
        raise ValueError("between: expected samples of one shape, got two; choose samples of the same size")


def _require_converged(losses: tuple[float, ...], name: str, steps: int, rate: float) -> None:
    if len(losses) < steps or not losses[-1] < float("inf"):
        raise ValueError(
            f"training ({name}): expected finite losses, got {losses[-1]} at step {len(losses)} of {steps} at rate "
            f"{rate:g}; use a smaller learning rate (`theta0 rate` finds one) or coefficient"
        )


def _along(model: nn.Module, ends: Sequence[Batch], points: int, window: Window) -> Spectrum:
    first, last = ends

    def f(t: Float[Tensor, "n 1"]) -> Tensor:
        def blended(a: Any, b: Any) -> Any:
            if not isinstance(a, Tensor) or not a.dim():
                return a
            if not a.is_floating_point():
                return a.expand(len(t), *a.shape[1:])
            share = t.to(a).view(-1, *[1] * (a.dim() - 1))
            return a * (1 - share) + b * share

        inputs = tree_map(blended, first.inputs, last.inputs)
        output = main_output(checked_forward(model, Batch(inputs, None, len(t))))
        if output is None:
            raise ValueError("model: expected a floating output, got none")
        return output.reshape(len(t), -1)

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    spectrum = fourier_amplitude(f, torch.arange(points) / points, window=window, batch_size=64)
    for module, training in modes:
        module.training = training
    return spectrum


def _sample(batches: Sequence[Batch], number: int) -> Batch:
    total = sum(batch.size for batch in batches)
    if not 0 <= number < total:
        raise ValueError(f"between: expected samples from 0 to {total - 1}, got {number}; {total} samples were read")
    for batch in batches:
        if number < batch.size:
            found = sliced(batch, slice(number, number + 1))
            break
        number -= batch.size
    return found
