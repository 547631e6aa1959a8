"""Data sets: files written here in the published formats, and scikit-learn's digits."""

import gzip
import io
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from theta0.papers.datasets import load, pca_whiten, standardize, two_classes

RNG = np.random.default_rng(3)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, *, compress=False, dotted=False):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, n in (("train", 7), ("t10k", 3)):
        for kind, shape in (("images-idx3", (n, 28, 28)), ("labels-idx1", (n,))):
            arrays[part, kind] = RNG.integers(0, 10, shape, dtype=np.uint8)
            name = f"{part}-{kind}-ubyte".replace("-idx", ".idx" if dotted else "-idx")
            content = idx(arrays[part, kind])
            (folder / (name + ".gz" * compress)).write_bytes(gzip.compress(content) if compress else content)
    return arrays


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize(("compress", "dotted", "inside"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_idx_files_are_read_back(tmp_path, name, compress, dotted, inside):
    arrays = write_idx(tmp_path / name if inside else tmp_path, compress=bool(compress), dotted=bool(dotted))
    data = load(name, tmp_path)
    assert data.train_x.shape == (7, 1, 28, 28)
    np.testing.assert_array_equal((data.train_x[:, 0] * 255).round().byte().numpy(), arrays["train", "images-idx3"])
    np.testing.assert_array_equal(data.test_y.numpy(), arrays["t10k", "labels-idx1"])
    assert data.train_y.dtype == torch.int64


def test_a_cut_idx_file_is_named(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"train-images.*5488 bytes, but 5487 follow"):
        load("mnist", tmp_path)
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="expected an IDX file"):
        load("mnist", tmp_path)


def cifar_images(n):
    return RNG.integers(0, 256, (n, 3072), dtype=np.uint8)


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar10_batches(tmp_path, protocol):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    written = []
    for file in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        written.append((cifar_images(2), [int(v) for v in RNG.integers(0, 10, 2)]))
        batch = {b"data": written[-1][0], b"labels": written[-1][1], b"batch_label": b"one"}
        (folder / file).write_bytes(pickle.dumps(batch, protocol=protocol))
    data = load("cifar10", tmp_path)
    assert data.train_x.shape == (10, 3, 32, 32)
    assert data.label == "CIFAR-10"
    np.testing.assert_array_equal((data.train_x[2:4] * 255).round().byte().numpy().reshape(2, -1), written[1][0])
    assert data.test_y.tolist() == written[-1][1]


def test_cifar100_batches(tmp_path):
    for file in ("train", "test"):
        batch = {b"data": cifar_images(4), b"fine_labels": [9, 8, 7, 99], b"coarse_labels": [0, 0, 1, 1]}
        (tmp_path / file).write_bytes(pickle.dumps(batch))
    assert load("cifar100", tmp_path).train_y.tolist() == [9, 8, 7, 99]


class Malicious:
    def __reduce__(self):
        return os.system, ("touch should-not-exist",)


def test_a_batch_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("train", "test"):
        (tmp_path / file).write_bytes(pickle.dumps({b"data": Malicious()}))
    with pytest.raises(ValueError, match=r"asks for (posix|nt|os)\.system"):
        load("cifar100", tmp_path)
    assert not (tmp_path / "should-not-exist").exists()


def test_a_torn_batch_is_named(tmp_path):
    for file in ("train", "test"):
        (tmp_path / file).write_bytes(pickle.dumps({b"data": cifar_images(4)})[:50])
    with pytest.raises(ValueError, match=r"train: not a CIFAR Python batch"):
        load("cifar100", tmp_path)


def test_jpeg_archive_is_labelled_as_a_copy(tmp_path):
    entries = {}
    for part, shades in (("train", [10, 200, 90]), ("test", [40])):
        files = []
        for shade in shades:
            buffer = io.BytesIO()
            Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(buffer, "JPEG", quality=95)
            files.append(buffer.getvalue())
        entries[f"jpeg_{part}"] = np.frombuffer(b"".join(files), np.uint8)
        entries[f"offset_{part}"] = np.cumsum([0, *map(len, files)])
        entries[f"y_{part}"] = np.arange(len(files), dtype=np.uint8)
    np.savez(tmp_path / "cifar10_jpeg.npz", classes=np.array(["a", "b"]), **entries)
    data = load("cifar10", tmp_path)
    assert data.label == "CIFAR-10 (JPEG copy)"
    means = (data.train_x.mean((1, 2, 3)) * 255).round().tolist()
    assert np.allclose(means, [10, 200, 90], atol=2)
    assert data.train_y.tolist() == [0, 1, 2]


def test_plain_archives(tmp_path):
    x = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar100.npz", x_train=x, y_train=np.arange(5)[:, None], x_test=x[:2], y_test=np.arange(2))
    data = load("cifar100", tmp_path)
    assert torch.equal(data.train_x[3, 1], torch.tensor(x[3, :, :, 1]).float() / 255)
    np.savez(tmp_path / "mnist.npz", x_train=x[..., 0], y_train=np.arange(5), x_test=x[:2, ..., 0], y_test=np.arange(2))
    assert load("mnist", tmp_path).train_x.shape == (5, 1, 32, 32)
    np.savez(tmp_path / "cifar10.npz", x_train=x)
    with pytest.raises(ValueError, match="lacks"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "site"), [("mnist", "MNIST site"), ("fashion-mnist", "repository"), ("cifar10", "CIFAR page")]
)
def test_missing_files_are_explained(tmp_path, name, site):
    with pytest.raises(FileNotFoundError, match=f"(?s)Looked for.*{tmp_path.name}.*{site}"):
        load(name, tmp_path)
    with pytest.raises(FileNotFoundError, match="name the folder"):
        load(name)


def test_unknown_name():
    with pytest.raises(ValueError, match="choose one of"):
        load("imagenet")


def test_digits_two_classes_and_whitening():
    data = two_classes(load("digits"), 0, 1)
    assert set(data.train_y.tolist()) == {0, 1}
    whitened = pca_whiten(data, 50)
    x = whitened.train_x.double()
    torch.testing.assert_close(x.T @ x / len(x), torch.eye(50, dtype=torch.float64), atol=1e-4, rtol=0)
    assert x.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(whitened.test_x.shape, (len(data.test_y), 50))
    with pytest.raises(ValueError, match="directions only"):
        pca_whiten(data, 64)
    with pytest.raises(ValueError, match="no class 12"):
        two_classes(data, 0, 12)
    with pytest.raises(ValueError, match="twice"):
        two_classes(data, 1, 1)


def test_standardizing_leaves_constant_pixels_at_zero():
    data = standardize(load("digits"))
    variance = data.train_x.double().var(0, correction=0)
    assert torch.isin((variance * 1e3).round(), torch.tensor([0.0, 1e3], dtype=torch.float64)).all()
    assert data.train_x.mean(0).abs().max() < 1e-5
    assert torch.isfinite(data.test_x).all()


@pytest.mark.skipif("THETA0_DATA" not in os.environ, reason="set THETA0_DATA to a folder with MNIST's files")
def test_real_mnist():
    data = load("mnist", os.environ["THETA0_DATA"])
    assert data.train_x.shape == (60000, 1, 28, 28)
    assert torch.bincount(data.test_y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert two_classes(data, 0, 1).train_x.shape[0] == 12665


def test_standardizing_all_coordinates_together(unchecked):
    data = standardize(load("digits"), over="all")
    assert data.train_x.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert data.train_x.double().std(correction=0).item() == pytest.approx(1, abs=1e-6)
    with pytest.raises(ValueError, match="'coordinate' or 'all'"):
        standardize(load("digits"), over="image")
