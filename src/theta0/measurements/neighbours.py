"""What a classifier's start offers to training, without labels: its perturbed models, its Jacobians, its dead units."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch, prepared
from theta0._models import outputs_of
from theta0._randomness import Randomness, streams
from theta0._records import Record
from theta0._state import steady, twice_differentiable
from theta0._trace.calls import NonlinearityCall, trace_calls
from theta0._trace.slopes import slope
from theta0.measurements.degeneracy import constant_share, degenerate_loss, degenerate_share
from theta0.measurements.output_jacobian import jacobian_norms
from theta0.measurements.perturbation_noise import perturbation_seeds
from theta0.measurements.perturbed_outputs import MEMORY, neighbourhood, sampled, samples_of
from theta0.measurements.simplex_discrepancy import discrepancy, uniform_simplex


def neighbours(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    perturbations: int = 256,
    scale: float = math.sqrt(0.5),
    generator: Randomness = None,
    max_batches: int | None = 4,
    memory: int = MEMORY,
) -> list[Record]:
    r"""Which tasks the models around a start solve: means over batches, of the whole network (layer "").

    * `uniformity`: the unbiased MMD² between the outputs of perturbed models and uniform points of the simplex, a mean
      over inputs (lee2023mmd, equations 9 and 10); 0 where every task has a solution nearby, so it may be negative;
    * `degenerate_softmax_share`: perturbed models that assign no sample of the batch to some class (its table 3);
    * `degenerate_distance`: L_sd (equation 14), zero where no such model is found at all;
    * `constant_output_share`: perturbed models for which no class's probability differs by more than 0.01 between two
      samples (input-output detachment, equation 11).

    Args:
        model: a classifier; left bit-identical.
        batches: bare inputs, or with targets, which are not used; at least two samples each.
        loss: ignored; every measurement takes the same arguments.
        perturbations: perturbed models, and uniform points for each input.
        scale: s (section 3.3).
        generator: a seed, a generator or None.
        max_batches: how many batches are read; None reads all.
        memory: bytes that a pass may hold, about.

    Returns:
        The records.

    Raises:
        ValueError: if there are fewer than two perturbations or samples, or the model is no classifier.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> [record.quantity for record in neighbours(model, batches, perturbations=16)]
        ['uniformity', 'degenerate_softmax_share', 'degenerate_distance', 'constant_output_share']
    """
    model, found = _read(model, batches, max_batches)
    if perturbations < 2:
        raise ValueError(f"perturbations: expected at least two, since pairs of them are compared, got {perturbations}")
    base = streams(generator)
    rows: list[dict[str, float]] = []
    with twice_differentiable(model):
        around = neighbourhood(model, found[0].inputs, scale)
        for batch in found:
            stream = streams(base(f"batch {batch.number}").initial_seed())
            seeds = perturbation_seeds(perturbations, stream("perturbations"))
            with torch.no_grad():
                logits = sampled(around, batch.inputs, seeds, memory=memory).logits
            rows.append(_of_logits(logits, stream("simplex")))
    return [Record("", name, sum(row[name] for row in rows) / len(rows)) for name in rows[0]]


def jacobians(
    model: nn.Module, batches: Iterable[Any], loss: Any = None, *, max_batches: int | None = 4
) -> list[Record]:
    r"""How strongly each logit depends on the input and on each layer's preactivations (lee2023mmd, section 3.2.2).

    For the input (layer "(input)") and each linear map but the last: `jacobian_norm`, the mean over samples and classes
    of $\|∂ f_i / ∂ x_l\|$, and `jacobian_norm_class_i` over samples alone. For the whole network: `detachment`, L_iod
    (equation 22) over all classes.

    Args:
        model: a classifier; left bit-identical.
        batches: bare inputs, or with targets, which are not used.
        loss: ignored; every measurement takes the same arguments.
        max_batches: how many batches are read; None reads all.

    Returns:
        The records.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.tensor([[3.0, 4.0], [5.0, 0.0]])
        >>> {r.layer: r.value for r in jacobians(model, [torch.randn(8, 2)]) if r.quantity == "jacobian_norm"}
        {'(input)': 5.0}
    """
    model, found = _read(model, batches, max_batches, least=1)
    with twice_differentiable(model):
        measured = [jacobian_norms(model, batch.inputs) for batch in found]
    norms = torch.cat([m.norms for m in measured], dim=2).double()
    records: list[Record] = []
    for layer, rows in zip(measured[0].layers, norms.mean(2), strict=True):
        records.append(Record(layer, "jacobian_norm", float(rows.mean())))
        records += [Record(layer, f"jacobian_norm_class_{i}", float(row)) for i, row in enumerate(rows)]
    return [*records, Record("", "detachment", float((1 - norms).square().amax(0).mean()))]


def dead_units(
    model: nn.Module, batches: Iterable[Any], loss: Any = None, *, max_batches: int | None = 4
) -> list[Record]:
    """`fully_dead_share` of each layer: units whose nonlinearity is flat for every sample of a batch, averaged.

    Counted batch by batch as in lee2023mmd, table 4: a unit that some other batch revives counts for this one.

    Args:
        model: any module; left bit-identical.
        batches: bare inputs, or with targets, which are not used.
        loss: ignored; every measurement takes the same arguments.
        max_batches: how many batches are read; None reads all.

    Returns:
        A record for each layer that a nonlinearity follows.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> nn.init.constant_(model[0].bias, -100.0)[0].item()
        -100.0
        >>> [record.value for record in dead_units(model, [torch.randn(16, 4)])]
        [1.0]
    """
    model, found = _read(model, batches, max_batches, least=1)
    shares: dict[str, list[float]] = {}

    def observe(call: NonlinearityCall) -> None:
        alive = slope(call.function, call.input, call.arguments, call.options) != 0
        axis = call.after.unit_axis % alive.dim()
        others = [a for a in range(alive.dim()) if a != axis]
        shares.setdefault(call.after.layer, []).append(
            float((~alive.any(others) if others else ~alive).double().mean())
        )

    with twice_differentiable(model), torch.no_grad():
        for batch in found:
            with steady(model), trace_calls(model, nonlinearity=observe):
                outputs_of(model, batch.inputs)
    return [Record(layer, "fully_dead_share", sum(values) / len(values)) for layer, values in shares.items()]


def _of_logits(logits: Tensor, generator: torch.Generator) -> dict[str, float]:
    probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
    count, samples, classes = probabilities.shape
    uniform = uniform_simplex(samples, count, classes, generator, probabilities.dtype)
    return {
        "uniformity": float(discrepancy(probabilities.transpose(0, 1), uniform).double().mean()),
        "degenerate_softmax_share": degenerate_share(probabilities),
        "degenerate_distance": float(degenerate_loss(probabilities)),
        "constant_output_share": constant_share(probabilities),
    }


def _read(
    model: nn.Module, batches: Iterable[Any], max_batches: int | None, least: int = 2
) -> tuple[nn.Module, list[Batch]]:
    model, found = prepared(model, batches, max_batches)
    for batch in found:
        if samples_of(batch.inputs) < least:
            raise ValueError(
                f"batch {batch.number}: expected at least {least} samples, got {samples_of(batch.inputs)}; whether "
                "outputs differ between inputs shows only over several: use larger batches"
            )
    return model, found
