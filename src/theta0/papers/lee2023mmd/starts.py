"""The starts that are compared, pre-trained once each and kept in files."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from theta0 import load_start_, save_start
from theta0.initializers import Mmd, MmdStep, RandomLabels, RandomLabelStep, initialize
from theta0.jobs import processes
from theta0.papers.datasets import Dataset
from theta0.papers.devices import device
from theta0.papers.lee2023mmd.published import Method
from theta0.papers.lee2023mmd.setting import unlabelled
from theta0.papers.models import Draw, draw_weights_, fully_connected, small_cnn
from theta0.papers.sweeps import Progress, Store, sweep

Configuration = Mapping[str, Any]


def start(
    data: Dataset,
    draw: Draw,
    method: Method,
    run: int,
    *,
    steps: int,
    batch_norm: bool = False,
    convolutional: bool = False,
    perturbations: int = 256,
    square_scale: float = 0.5,
    weights: tuple[float, float, float] = (1.0, 0.4, 1.0),
) -> dict[str, Any]:
    """What a start is, as plain JSON.

    Args:
        data: whose unlabelled training inputs are used.
        draw: of the weights.
        method: of the pre-training.
        run: seed of the draw and of the pre-training; methods of one run share the draw.
        steps: of pre-training.
        batch_norm: FCN + BN.
        convolutional: a small CNN for all classes instead of the FCN for two.
        perturbations: of a step.
        square_scale: s².
        weights: of L_uni, L_sd (λ) and L_iod (ξ).

    Returns:
        The description.
    """
    found = {"data": data.label, "draw": draw, "batch_norm": batch_norm, "method": method, "run": run}
    if convolutional:
        found["convolutional"] = True
    if method == "none":
        return found
    found["steps"] = steps
    if method == "mmd":
        found |= {"perturbations": perturbations, "square_scale": square_scale, "weights": list(weights)}
    return found


def made_start(
    data: Dataset, folder: str | Path, description: Configuration, tell: Callable[[int], None] | None = None
) -> nn.Module:
    """A start, pre-trained or read from the file that an earlier call left.

    An interrupted pre-training goes on where its last hundred steps ended.

    Args:
        data: the data set of the description.
        folder: where starts are kept.
        description: from `start`.
        tell: called with the number of steps made after each hundred of a pre-training.

    Returns:
        The network, in training mode.
    """
    model = drawn_start(data, description)
    if description["method"] == "none":
        return model
    file = start_file(folder, description)
    if file.is_file():
        return load_start_(model, file)
    file.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = file.with_suffix(".checkpoint")
    pretrain_(model, data, description, checkpoint, tell)
    save_start(model, file, method=description["method"])
    checkpoint.unlink(missing_ok=True)
    return model


def make_missing(
    data: Dataset,
    folder: str | Path,
    descriptions: Sequence[Configuration],
    *,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Pre-train the starts that have no file yet, each in one process only.

    Args:
        data: the data set of the descriptions.
        folder: where starts are kept.
        descriptions: from `start`; those without pre-training are left out.
        backend: joblib's.
        jobs: how many at once.
        progress: called with how many are done, and of how many; steps, where one start is made after another.
    """
    wanted = {start_file(folder, d): d for d in descriptions if d["method"] != "none"}
    missing = [description for file, description in wanted.items() if not file.is_file()]
    if progress is None or processes(jobs, backend) > 1:
        if missing:
            sweep(partial(_make, data, str(folder)), missing, backend=backend, jobs=jobs, progress=progress)
        return
    made, total = 0, sum(description["steps"] for description in missing)
    for description in missing:
        made_start(data, folder, description, partial(_told, progress, made, total))
        made += description["steps"]


def _told(progress: Progress, before: int, total: int, steps: int) -> None:
    progress(before + steps, total)


def _make(data: Dataset, folder: str, description: Configuration) -> None:
    made_start(data, folder, description)


def drawn_start(data: Dataset, description: Configuration) -> nn.Module:
    """The network before any pre-training.

    Args:
        data: the data set of the description.
        description: from `start`.

    Returns:
        The network.
    """
    generator = torch.Generator().manual_seed(description["run"])
    model: nn.Module
    if description.get("convolutional"):
        channels, side, _ = data.train_x.shape[1:]
        model = small_cnn(side, channels=channels, classes=int(data.train_y.max()) + 1)
    else:
        model = fully_connected(data.train_x[0].numel(), batch_norm=description["batch_norm"])
    return draw_weights_(model, description["draw"], generator=generator).to(device())


def pretrain_(
    model: nn.Module,
    data: Dataset,
    description: Configuration,
    checkpoint: Path,
    tell: Callable[[int], None] | None = None,
) -> nn.Module:
    """Pre-train as described, on inputs alone.

    Args:
        model: the drawn network, changed in place.
        data: whose training inputs are used.
        description: from `start`.
        checkpoint: where an interrupted run is kept; the means of every hundred steps go beside it.
        tell: called with the number of steps made after each hundred.

    Returns:
        The network.
    """
    batches, steps, seed = unlabelled(data.train_x), description["steps"], 1_000 + description["run"]
    history = history_store(checkpoint)
    if description["method"] == "random labels":
        labels = initialize(
            "random-labels", model, batches, steps=steps, generator=seed, progress=_Windows(history, ("loss",), tell)
        )
        return _kept(model, history, labels, _labels_result(labels))
    uniformity, degenerate, detachment = description["weights"]
    done = initialize(
        "mmd",
        model,
        batches,
        perturbations=description["perturbations"],
        scale=description["square_scale"] ** 0.5,
        uniformity=uniformity,
        degenerate=degenerate,
        detachment=detachment,
        steps=steps,
        generator=seed,
        progress=_Windows(history, ("loss", "uniformity", "degenerate", "detachment"), tell),
        checkpoint=checkpoint,
    )
    return _kept(model, history, done, _mmd_result(done))


def _kept(model: nn.Module, history: Store, done: Mmd | RandomLabels, result: dict[str, Any]) -> nn.Module:
    history.append({"step": "result"}, result)
    if done.interrupted:
        raise KeyboardInterrupt
    return model


def history_store(checkpoint: Path) -> Store:
    """Where the means of every hundred steps of a pre-training are.

    Args:
        checkpoint: the file of the interrupted run, or the start's.

    Returns:
        A store by `{"step": last step of the hundred}`, and `{"step": "result"}` for the outcome.
    """
    return Store(checkpoint.with_suffix(".history.jsonl"))


def start_file(folder: str | Path, description: Configuration) -> Path:
    """The file of a pre-trained start.

    Args:
        folder: where starts are kept.
        description: from `start`.

    Returns:
        Its path.
    """
    return Path(folder) / f"{_name(description)}.safetensors"


class _Windows:  # a class because it adds up between calls
    """Writes the mean of each hundred steps to a store."""

    def __init__(
        self, store: Store, names: tuple[str, ...], tell: Callable[[int], None] | None, window: int = 100
    ) -> None:
        self.store, self.names, self.tell, self.window = store, names, tell, window
        self.sums, self.count = dict.fromkeys(names, 0.0), 0

    def __call__(self, step: MmdStep | RandomLabelStep) -> None:
        values = step.terms if isinstance(step, MmdStep) else step
        for name in self.names:
            self.sums[name] += getattr(values, name)
        self.count += 1
        if step.step % self.window == 0 or step.step == step.steps:
            self.store.append({"step": step.step}, {name: total / self.count for name, total in self.sums.items()})
            self.sums, self.count = dict.fromkeys(self.names, 0.0), 0
            if self.tell is not None:
                self.tell(step.step)


def _mmd_result(done: Mmd) -> dict[str, Any]:
    return {"before": vars(done.before), "after": vars(done.after), "kept": done.best_step, "cost": done.cost}


def _labels_result(done: RandomLabels) -> dict[str, Any]:
    return {"kept": done.best_step, "cost": done.cost}


def _name(description: Configuration) -> str:
    parts = [str(description["data"]).split(",", maxsplit=1)[0].lower(), description["draw"]]
    parts += ["cnn"] if description.get("convolutional") else []
    parts += ["bn"] if description["batch_norm"] else []
    parts += [str(description["method"]).replace(" ", "-"), f"{description['steps']}-steps"]
    if description["method"] == "mmd":
        uniformity, degenerate, detachment = description["weights"]
        parts += [f"{description['perturbations']}-perturbed", f"s2-{description['square_scale']:g}"]
        parts += [f"uni-{uniformity:g}", f"sd-{degenerate:g}", f"iod-{detachment:g}"]
    return "_".join([*parts, f"run-{description['run']}"])
