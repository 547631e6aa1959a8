"""Tables 3 and 4: what the neighbours of a start do without the two regularizers (§B.3)."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theta0.measurements import dead_units, neighbours
from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish_table
from theta0.papers.lee2023mmd.published import DEAD, DEGENERATE, Value, words
from theta0.papers.lee2023mmd.setting import BATCH, SCALES, image_data, store_in
from theta0.papers.lee2023mmd.starts import made_start, make_missing, start
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep


def tabulate_degeneracies(
    name: str,
    data: Dataset | str | None = None,
    root: str | Path | None = None,
    *,
    scale: str = "laptop",
    out_dir: str | Path = ".",
    store: Store | None = None,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Pre-train with and without each regularizer, from Xavier, and look at the neighbours.

    Args:
        name: `table3` (degenerate softmax) or `table4` (dead units).
        data: a data set or its name; None for MNIST (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where the table, its numbers and the pre-trained starts go.
        store: results kept across interruptions; None keeps them in `out_dir`.
        backend: joblib's.
        jobs: starts made at once.
        progress: called with how many are done, and of how many.

    Returns:
        One line that compares with the source.
    """
    chosen, size = image_data(data, root, scale), scale_named(SCALES, scale)
    plain = start(chosen, "xavier", "none", 0, steps=0)
    described = [
        plain,
        *(
            start(chosen, "xavier", "mmd", 0, steps=size.steps, perturbations=size.perturbations, weights=(1.0, *pair))
            for pair in size.pairs
        ),
    ]
    folder = str(Path(out_dir) / "starts")
    make_missing(chosen, folder, described, backend=backend, jobs=jobs, progress=progress)
    compute = partial(shares_of_start, chosen, folder)
    results = sweep(
        compute,
        [shares_wanted(found, size.perturbations, size.mini_batches) for found in described],
        store=store_in(out_dir, store),
        backend=backend,
        jobs=jobs,
        progress=progress,
    )
    labels = [
        ("before", "pre-training"),
        *((f"{degenerate:g}", f"{detachment:g}") for degenerate, detachment in size.pairs),
    ]
    keys = ("degenerate", "constant") if name == "table3" else tuple(f"dead_{layer}" for layer in (1, 2, 3))
    sources = [(None,) * len(keys), *(_published(name, pair) for pair in size.pairs)]
    rows = [
        [*label, *(part for key, value in zip(keys, source, strict=True) for part in (_cell(found[key]), words(value)))]
        for label, found, source in zip(labels, results, sources, strict=True)
    ]
    header = ["λ", "ξ", *(part for key in keys for part in (f"{key.replace('_', ' ')} (%)", "source"))]
    finish_table(header, rows, {"starts": described, "results": results, "source": sources}, out_dir, name)
    ours = dict(zip(size.pairs, results[1:], strict=True))
    return f"{name}, {chosen.label}, {size.steps} steps: {_sentence(name, ours)}"


table3 = partial(tabulate_degeneracies, "table3")
table4 = partial(tabulate_degeneracies, "table4")


def shares_wanted(
    description: Configuration, perturbations: int, mini_batches: int, square_scale: float = 0.5
) -> dict[str, Any]:
    """The configuration of `shares_of_start`.

    Args:
        description: of the start.
        perturbations: per mini-batch.
        mini_batches: how many.
        square_scale: s² of the perturbations.

    Returns:
        Plain JSON.
    """
    return {
        "experiment": "shares",
        "start": dict(description),
        "perturbations": perturbations,
        "mini_batches": mini_batches,
        "square_scale": square_scale,
    }


def shares_of_start(data: Dataset, folder: str, configuration: Configuration) -> dict[str, list[float]]:
    """Degenerate and dead shares of one start, as `shares`.

    Args:
        data: as the networks take it.
        folder: of the pre-trained starts.
        configuration: from `shares_wanted`.

    Returns:
        Percent, one number per mini-batch.
    """
    generator = torch.Generator().manual_seed(configuration["start"]["run"])
    count = configuration["mini_batches"]
    rows = torch.randperm(len(data.train_x), generator=generator)[: count * BATCH]
    model = made_start(data, folder, configuration["start"])
    return shares(
        model,
        torch.split(data.train_x[rows], BATCH),
        perturbations=configuration["perturbations"],
        scale=math.sqrt(configuration["square_scale"]),
    )


def shares(
    model: nn.Module, batches: Sequence[Float[Tensor, "n ..."]], *, perturbations: int, scale: float
) -> dict[str, list[float]]:
    """Per mini-batch: perturbed models that miss a class, that are constant, and units dead at the start itself.

    Args:
        model: the network.
        batches: inputs.
        perturbations: how many perturbed models.
        scale: s.

    Returns:
        `degenerate`, `constant` and `dead_1`, `dead_2` … by hidden layer, in percent; `uniformity`, L_uni.
    """
    found: dict[str, list[float]] = {"degenerate": [], "constant": [], "uniformity": []}
    for number, batch in enumerate(batches):
        around = neighbours(model, [batch], perturbations=perturbations, scale=scale, generator=number)
        values = {record.quantity: record.value for record in around}
        found["degenerate"].append(100 * values["degenerate_softmax_share"])
        found["constant"].append(100 * values["constant_output_share"])
        found["uniformity"].append(values["uniformity"])
        for layer, record in enumerate(dead_units(model, [batch]), 1):
            found.setdefault(f"dead_{layer}", []).append(100 * record.value)
    return found


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation over mini-batches.

    Args:
        values: at least one.

    Returns:
        Both; the deviation of a single value is 0.
    """
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(tensor.mean()), float(tensor.std()) if len(values) > 1 else 0.0


def _cell(values: Sequence[float]) -> str:
    return "{:.2f} ± {:.2f}".format(*mean_and_deviation(values))


def _published(name: str, pair: tuple[float, float]) -> tuple[Value | None, ...]:
    """The source's values for the columns of a table; it does not count constant neighbours."""
    return (DEGENERATE.get(pair), None) if name == "table3" else DEAD.get(pair, (None,) * 3)


def _sentence(name: str, results: dict[tuple[float, float], dict[str, list[float]]]) -> str:
    parts = []
    for pair, found in results.items():
        keys = ("degenerate",) if name == "table3" else ("dead_1", "dead_2", "dead_3")
        ours = ", ".join(f"{mean_and_deviation(found[key])[0]:.1f}" for key in keys)
        source = ", ".join(f"{value[0]:.1f}" for value in _published(name, pair) if value is not None)
        published = f"{source} %" if source else "none"
        parts.append(f"λ = {pair[0]:g}, ξ = {pair[1]:g}: {ours} % (source {published})")
    return "; ".join(parts)
