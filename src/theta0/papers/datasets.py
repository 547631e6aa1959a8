"""The data sets of the sources' experiments: read from their standard files, never downloaded."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from theta0.papers._extras import extra
from theta0.papers._image_files import Bytes, Parts, read_cifar_batch, read_idx, read_npz


@dataclass(frozen=True)
class Dataset:
    """Training and test samples.

    Attributes:
        train_x: training inputs; images are `[n, channels, height, width]` in [0, 1].
        train_y: their classes, from 0.
        test_x: test inputs.
        test_y: their classes.
        name: the name by which `load` found it.
        label: what figures call it, with what was done to it.
    """

    train_x: Float[Tensor, "train ..."]
    train_y: Int[Tensor, " train"]
    test_x: Float[Tensor, "test ..."]
    test_y: Int[Tensor, " test"]
    name: str
    label: str


def load(name: str, root: str | Path | None = None) -> Dataset:
    """A data set by its name, from the files that its official site publishes.

    Args:
        name: `digits` (scikit-learn's, no files; its last fifth is the test set), `mnist`, `fashion-mnist`, `cifar10`
            or `cifar100`.
        root: folder that holds the files, or a folder named like the data set that does.

    Returns:
        Its images scaled to [0, 1].

    Raises:
        ValueError: the name is none of these, or a file is damaged.
        FileNotFoundError: the files are not there; the message says which were looked for, where, and who has them.
    """
    if name == "digits":
        return _digits()
    if name not in _READERS:
        raise ValueError(f"data set {name!r} is not known: choose one of {['digits', *_READERS]}")
    reader, title, source = _READERS[name]
    if root is None:
        raise FileNotFoundError(f"{title} is read from files: name the folder that holds them (get them from {source})")
    folders = [Path(root), *(Path(root) / folder for folder in _FOLDERS[name])]
    found = reader(name, folders)
    if found is None:
        raise FileNotFoundError(
            f"{title} was not found. Looked for {_WANTED[name]}\n  in {', '.join(str(folder) for folder in folders)}.\n"
            f"Get the files from {source} and put them into one of these folders."
        )
    (train_x, train_y, test_x, test_y), compressed = found
    label = f"{title} (JPEG copy)" if compressed else title
    return Dataset(_scaled(train_x), torch.tensor(train_y), _scaled(test_x), torch.tensor(test_y), name, label)


def two_classes(dataset: Dataset, first: int, second: int) -> Dataset:
    """The samples of two classes, relabelled 0 and 1.

    Args:
        dataset: any of the data sets.
        first: the class that becomes 0.
        second: the class that becomes 1.

    Returns:
        A smaller data set.

    Raises:
        ValueError: the two are the same, or one of them has no training sample.
    """
    if first == second:
        raise ValueError(f"two different classes are needed, got {first} twice")
    present = torch.bincount(dataset.train_y).nonzero().flatten().tolist()
    for wanted in (first, second):
        if wanted not in present:
            raise ValueError(f"{dataset.label} has no class {wanted}: it has {present}")
    train = (dataset.train_y == first) | (dataset.train_y == second)
    test = (dataset.test_y == first) | (dataset.test_y == second)
    return replace(
        dataset,
        train_x=dataset.train_x[train],
        train_y=(dataset.train_y[train] == second).long(),
        test_x=dataset.test_x[test],
        test_y=(dataset.test_y[test] == second).long(),
        label=f"{dataset.label}, classes {first} and {second}",
    )


def pca_whiten(dataset: Dataset, dimensions: int, *, floor: float = 1e-6) -> Dataset:
    """Project onto the leading principal components and give each mean 0 and variance 1 (furusho2020thesis, §4.3.1).

    Components and scales come from the training samples alone, in float64; the variance divides by n, as
    normalisation layers do, so that the training covariance is the identity.

    Args:
        dataset: any of the data sets.
        dimensions: how many components to keep.
        floor: the smallest variance, as a fraction of the largest, that counts as a direction of the data.

    Returns:
        A data set with inputs `[n, dimensions]` in float32.

    Raises:
        ValueError: the data has fewer such directions.
    """
    train = dataset.train_x.flatten(1).double()
    mean = train.mean(0)
    variances, directions = torch.linalg.eigh((train - mean).T @ (train - mean) / len(train))
    usable = int((variances > floor * variances[-1]).sum())
    if not 1 <= dimensions <= usable:
        raise ValueError(
            f"{dataset.label}: {dimensions} whitened dimensions asked, but its {len(train)} training samples spread in "
            f"{usable} directions only (variance above {floor:g} of the largest): ask for 1 to {usable}"
        )
    variances, directions = variances[-dimensions:].flip(0), directions[:, -dimensions:].flip(1)
    directions = directions * directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    whiten = directions / variances.sqrt()
    return replace(
        dataset,
        train_x=((train - mean) @ whiten).float(),
        test_x=((dataset.test_x.flatten(1).double() - mean) @ whiten).float(),
        label=f"{dataset.label}, PCA-whitened to {dimensions}",
    )


def standardize(dataset: Dataset, *, over: Literal["coordinate", "all"] = "coordinate") -> Dataset:
    """Give inputs mean 0 and variance 1 over the training samples; what is constant becomes 0.

    Args:
        dataset: any of the data sets.
        over: "coordinate" does so for every input coordinate by itself, "all" once for all coordinates together.

    Returns:
        A data set with inputs of the same shape.

    Raises:
        ValueError: `over` is neither.
    """
    if over not in ("coordinate", "all"):
        raise ValueError(f"over: expected 'coordinate' or 'all', got {over!r}")
    train = dataset.train_x.double()
    values = train if over == "coordinate" else train.flatten()
    mean, deviation = values.mean(0), values.std(0, correction=0)
    scale = torch.where(deviation > 1e-12, deviation, torch.inf)
    return replace(
        dataset,
        train_x=((train - mean) / scale).float(),
        test_x=((dataset.test_x.double() - mean) / scale).float(),
        label=f"{dataset.label}, standardized",
    )


def _scaled(pixels: Bytes) -> Float[Tensor, "n channels height width"]:
    return torch.tensor(pixels).float().div_(255)


def _digits() -> Dataset:
    digits = extra("sklearn.datasets").load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target).long()
    held_out = len(x) // 5
    return Dataset(x[:-held_out], y[:-held_out], x[-held_out:], y[-held_out:], "digits", "digits")


def _first(folders: list[Path], names: list[str]) -> Path | None:
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def _archive(folders: list[Path], names: list[str]) -> tuple[Parts, bool] | None:
    path = _first(folders, names)
    return None if path is None else read_npz(path)


def _idx_files(name: str, folders: list[Path]) -> tuple[Parts, bool] | None:
    arrays = []
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            stems = [f"{part}-{kind}-ubyte", f"{part}-{kind}-ubyte".replace("-idx", ".idx")]
            path = _first(folders, [stem + suffix for stem in stems for suffix in ("", ".gz")])
            if path is None:
                return _archive(folders, [f"{name}.npz"])
            arrays.append(read_idx(path))
    if any(len(x) != len(y) for x, y in (arrays[:2], arrays[2:])):
        raise ValueError(f"{name}: {[len(a) for a in arrays]} images and labels do not match: fetch the files again")
    train_y, test_y = arrays[1].astype(np.int64), arrays[3].astype(np.int64)
    return (arrays[0][:, None], train_y, arrays[2][:, None], test_y), False


def _cifar_files(name: str, folders: list[Path]) -> tuple[Parts, bool] | None:
    train = [f"data_batch_{i}" for i in range(1, 6)] if name == "cifar10" else ["train"]
    test = "test_batch" if name == "cifar10" else "test"
    paths = [_first(folders, [file]) for file in (*train, test)]
    if None in paths:
        return _archive(folders, [f"{name}.npz", f"{name.replace('cifar', 'cifar-')}.npz", f"{name}_jpeg.npz"])
    batches = [read_cifar_batch(path) for path in paths if path is not None]
    x = np.concatenate([images for images, _ in batches[:-1]])
    y = np.concatenate([labels for _, labels in batches[:-1]])
    return (x, y, *batches[-1]), False


_IDX = "{train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte (plain or .gz), or "
_WANTED = {
    "mnist": _IDX + "mnist.npz",
    "fashion-mnist": _IDX + "fashion-mnist.npz",
    "cifar10": "data_batch_1 … data_batch_5 and test_batch (the Python version), or cifar10.npz",
    "cifar100": "train and test (the Python version), or cifar100.npz",
}
_FOLDERS = {
    "mnist": ["mnist", "MNIST", "MNIST/raw"],
    "fashion-mnist": ["fashion-mnist", "FashionMNIST", "FashionMNIST/raw"],
    "cifar10": ["cifar10", "cifar-10-batches-py", "cifar10/cifar-10-batches-py"],
    "cifar100": ["cifar100", "cifar-100-python", "cifar100/cifar-100-python"],
}
_Reader = Callable[[str, list[Path]], tuple[Parts, bool] | None]
_READERS: dict[str, tuple[_Reader, str, str]] = {
    "mnist": (_idx_files, "MNIST", "the MNIST site (yann.lecun.com/exdb/mnist)"),
    "fashion-mnist": (
        _idx_files,
        "Fashion-MNIST",
        "the Fashion-MNIST repository (github.com/zalandoresearch/fashion-mnist)",
    ),
    "cifar10": (_cifar_files, "CIFAR-10", "the CIFAR page (www.cs.toronto.edu/~kriz/cifar.html)"),
    "cifar100": (_cifar_files, "CIFAR-100", "the CIFAR page (www.cs.toronto.edu/~kriz/cifar.html)"),
}
