"""Figure 5: fifty sigmoid layers under every normalisation, and what their starts look like (section 6.1)."""

import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, nn

from theta0.measurements import signals
from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish
from theta0.papers.kutsuna2019lcw.deep_mlp_figure import drawn, sentence
from theta0.papers.kutsuna2019lcw.training import Plan, Source, plan_of, prepared, source_of, train
from theta0.papers.kutsuna2019lcw.variants import VARIANTS, Variant, start_
from theta0.papers.models import deep_perceptron
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep

_ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}
_MEASURED = ("preactivation_variance", "gradient_variance", "shift_share")
_SHALLOW = 20  # hidden layers of the source's Fig. 4


@dataclass(frozen=True)
class Scale:
    """How large the experiment is.

    Attributes:
        depth: hidden layers, as a share of the source's.
        width: their units.
        seeds: runs of the variants whose test losses are compared; the others run once.
        plan: each run.
        data: the data set when none is named.
    """

    depth: float
    width: int
    seeds: int
    plan: Plan
    data: str


SCALES = {
    "smoke": Scale(0.2, 24, 2, Plan(256, 128, 3, 3, 1e-4, batch=64), "digits"),
    "laptop": Scale(1.0, 256, 3, Plan(None, 5000, 3, 14, 1e-4), "fashion-mnist"),
    "paper": Scale(1.0, 256, 3, Plan(None, None, 100, 100, 1e-4), "cifar10"),
}
_RELU_RATES = (0.003, 3e-5)  # first and last; at 0.1 only networks with batch normalization train
COMPARED = ("LCW", "BN", "BN+LCW")
RELU_VARIANTS = ("plain", "unit variance", "LCW", "BN", "BN+LCW", "LN")


def draw_perceptrons(
    name: str,
    activation: str,
    depth: int,
    variants: tuple[str, ...],
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
    """Train the deep perceptron under each normalisation and measure every start.

    Args:
        name: of the files.
        activation: `sigmoid` or `relu`.
        depth: hidden layers at full size.
        variants: names from `VARIANTS`.
        data: a data set of images or its name; None for the scale's (digits, Fashion-MNIST, CIFAR-10).
        root: where its files are.
        scale: `smoke` (seconds), `laptop` (half an hour with two processes) or `paper` (the source's own settings).
        out_dir: where `name.png` and `name.json` go.
        store: results kept across interruptions; `name.jsonl` in `out_dir` when None.
        backend: joblib's.
        jobs: networks trained at once.
        progress: called with how many runs are done, and of how many.

    Returns:
        One line that compares with the source.

    Raises:
        ValueError: there is no such scale.
    """
    size = scale_named(SCALES, scale)
    source = source_of(data, root, size.data)
    plan, (rate, floor) = size.plan, _RELU_RATES
    plan = replace(plan, rate=rate, floor=floor) if activation == "relu" else plan
    shared = {
        "experiment": f"deep {activation} perceptron",
        "data": source.label if isinstance(source, Dataset) else source[0],
        "activation": activation,
        "width": size.width,
        "plan": plan.settings(),
    }
    deep = max(round(depth * size.depth), 2)
    runs = [
        {**shared, "variant": variant, "seed": seed, "depth": deep, "trained": True}
        for seed in range(size.seeds)
        for variant in variants
        if seed == 0 or variant in COMPARED
    ]
    starts = [
        {**shared, "variant": variant, "seed": 0, "depth": max(round(_SHALLOW * size.depth), 2), "trained": False}
        for variant in ("plain", "unit variance", "LCW")
    ]
    compute, kept = partial(run, source), store or Store(Path(out_dir) / f"{name}.jsonl")
    results = sweep(compute, [*runs, *starts], store=kept, backend=backend, jobs=jobs, progress=progress)
    rows = [{**c, **r} for c, r in zip([*runs, *starts], results, strict=True)]
    label = rows[0]["label"]
    finish(drawn(rows, f"{deep} {activation} layers · {label}"), {"label": label, "rows": rows}, out_dir, name)
    return f"{name}, {label}: {sentence(rows)}"


fig5 = partial(draw_perceptrons, "fig5", "sigmoid", 50, tuple(VARIANTS))
relu = partial(draw_perceptrons, "relu", "relu", 30, RELU_VARIANTS)


def run(source: Source, configuration: Configuration) -> dict[str, Any]:
    """One network: its start measured, then trained.

    Args:
        source: where the data is.
        configuration: `variant`, `seed`, `depth`, `width`, `activation`, `plan`, `trained`.

    Returns:
        `start`, by layer, and the curves of `training.train`.
    """
    torch.set_flush_denormal(True)
    plan, variant = plan_of(configuration), VARIANTS[configuration["variant"]]
    data = prepared(source, plan)
    generator = torch.Generator().manual_seed(configuration["seed"])
    with torch.random.fork_rng():
        torch.manual_seed(configuration["seed"])  # spectral normalization's first vectors; put back on leaving
        model = network(variant, configuration, data, generator)
        result: dict[str, Any] = {"label": data.label, "classes": int(data.train_y.max()) + 1}
        result["start"] = start_measured(model, data, plan.batch)
        if configuration["trained"]:
            result |= train(model, data, plan, generator)
    return result


def network(variant: Variant, configuration: Configuration, data: Dataset, generator: Generator) -> nn.Module:
    """The deep perceptron under a normalisation, at its start.

    Args:
        variant: which.
        configuration: `depth`, `width`, `activation`, `plan`.
        data: from `prepared`; a minibatch of it sets the starts by data.
        generator: source of weights and minibatch.

    Returns:
        The network.
    """
    model = deep_perceptron(
        data.train_x[0].numel(),
        int(data.train_y.max()) + 1,
        depth=configuration["depth"],
        width=configuration["width"],
        activation=_ACTIVATIONS[configuration["activation"]],
        before=variant.before,
        after=variant.after,
        generator=generator,
    )
    chosen = torch.randperm(len(data.train_x), generator=generator)[: configuration["plan"]["batch"]]
    return start_(model, variant, [data.train_x[chosen]])


def start_measured(model: nn.Module, data: Dataset, samples: int) -> dict[str, list[float]]:
    """Preactivation and gradient variance and the share of activation shift in each hidden layer, in float64.

    Args:
        model: left as it is.
        data: the first training samples are looked at.
        samples: how many of them.

    Returns:
        One list per quantity, first hidden layer first.
    """
    wide = copy.deepcopy(model).double()
    batch = (data.train_x[:samples].double(), data.train_y[:samples])
    found = signals(wide, [batch], "cross_entropy")
    return {
        quantity: [r.value for r in found if r.quantity == quantity and r.layer.startswith("hidden")]
        for quantity in _MEASURED
    }
