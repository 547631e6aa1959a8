"""What a network puts out, and what it loses against the best predictor that ignores its input."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from theta0._batches import Batch
from theta0._losses import Loss, class_logits, constant_loss, uniform_loss
from theta0._models import main_output
from theta0._moments import SampleMoments, fetched, floats, merged_samples, real_entries, sample_moments, squares_of
from theta0._records import Record
from theta0.measurements.degeneracy import starved


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass: what went in, what came out, detached where it is a tensor, and its loss, if any."""

    batch: Batch
    outputs: Any
    loss: float | None


def output_records(passes: Sequence[Pass], loss: Loss) -> list[Record]:
    """Whole-network numbers (layer "") over several forward passes, and how many `batches` these are.

    `loss`, `loss_constant` and, for cross-entropies, `loss_uniform` (of equal probabilities) are means over batches, as
    is `starved_class_share` (see `degeneracy.starved_share`); `output_rms` and `output_sample_std` are taken over the
    rows of the main output, `output_sample_std` being the root of the variance between rows, averaged over the row's
    entries. Those that do not exist for this network are left out.
    """
    records = [Record("", "batches", float(len(passes)))]
    losses = [p.loss for p in passes if p.loss is not None]
    if losses:
        records.append(Record("", "loss", sum(losses) / len(losses)))
    constants = [
        constant_loss(loss, p.outputs, batch) for p, batch in zip(passes, _with_targets_here(passes), strict=True)
    ]
    known = [value for value in constants if value is not None]
    if known and len(known) == len(constants):
        records.append(Record("", "loss_constant", sum(known) / len(known)))
    uniform = [uniform_loss(loss, p.outputs, p.batch) for p in passes]
    if uniform and all(value is not None for value in uniform):
        records.append(Record("", "loss_uniform", sum(value or 0.0 for value in uniform) / len(uniform)))
    logits = [class_logits(loss, p.outputs, p.batch) for p in passes]
    shares = floats([starved(x.flatten(0, -2)) for x in logits if x is not None and x.dim() > 1 and x.numel()])
    if shares and len(shares) == len(passes):
        records.append(Record("", "starved_class_share", sum(shares) / len(shares)))
    rows = [main_output(p.outputs) for p in passes]
    seen = _row_moments([row for row in rows if isinstance(row, Tensor) and row.numel()])
    if seen is not None:
        deviations, means = floats([seen.squares, squares_of(seen.mean)])
        square = (deviations + seen.count * means) / seen.entries
        records.append(Record("", "output_rms", math.sqrt(square) if square >= 0 else math.nan))
        if seen.count > 1:
            between = deviations / seen.entries
            records.append(Record("", "output_sample_std", math.sqrt(between) if between >= 0 else math.nan))
    return records


def _with_targets_here(passes: Sequence[Pass]) -> list[Batch]:
    """The batches with their targets on the CPU, by one copy."""
    places = [
        i for i, p in enumerate(passes) if isinstance(p.batch.targets, Tensor) and not p.batch.targets.is_complex()
    ]
    here = dict(zip(places, fetched([passes[i].batch.targets for i in places]), strict=True))
    return [replace(p.batch, targets=here[i]) if i in here else p.batch for i, p in enumerate(passes)]


def _row_moments(outputs: list[Tensor]) -> SampleMoments | None:
    """Moments over rows; outputs whose rows differ in shape are taken entry by entry."""
    alike = len({tuple(output.shape[1:]) for output in outputs}) == 1
    total: SampleMoments | None = None
    for output in map(real_entries, outputs):
        new = sample_moments(output.flatten(1) if alike and output.dim() > 1 else output.flatten().unsqueeze(1), 0, 1)
        total = new if total is None else merged_samples(total, new)
    return total
