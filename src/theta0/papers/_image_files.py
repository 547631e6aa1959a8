"""The file formats in which image data sets are published, read without running anything that is in them."""

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from theta0.papers._extras import extra

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Parts = tuple[Bytes, Integers, Bytes, Integers]


def read_idx(path: Path) -> Bytes:
    """An array of unsigned bytes in the IDX format of MNIST, plain or gzip-compressed.

    Args:
        path: the file; compression is recognised by its first bytes, not by its name.

    Returns:
        The array in the shape that the header states.

    Raises:
        ValueError: the file is not IDX with unsigned bytes, or its length contradicts its header.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(
            f"{path}: expected an IDX file of unsigned bytes (starting 00 00 08), found it to start "
            f"{content[:3].hex(' ') or 'with nothing'}: fetch the file again"
        )
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    if len(shape) != dimensions or len(content) - start != int(np.prod(shape)):
        raise ValueError(
            f"{path}: its header announces shape {shape}, that is {int(np.prod(shape))} bytes, but "
            f"{max(len(content) - start, 0)} follow: the file is cut or damaged, fetch it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


class _ArraysOnly(pickle.Unpickler):  # the format's own extension point is a subclass
    """An unpickler that can build numpy arrays and Python's plain containers, and call nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The few constructors that a pickled array of numbers needs.

        Returns:
            The constructor.

        Raises:
            ValueError: the file asks for anything else.
        """
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if module in {"numpy.core.multiarray", "numpy._core.multiarray"} and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # the same function under whichever name this numpy keeps it
        if (module, name) == ("_codecs", "encode"):
            return _encode_latin1
        raise ValueError(
            f"a CIFAR batch holds arrays of numbers only, but this file asks for {module}.{name}: it is not loaded, "
            "because unpickling could run code; fetch the file from its official page"
        )


def _encode_latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1" if encoding in {"latin1", "latin-1"} else "ascii")


def read_cifar_batch(path: Path) -> tuple[Bytes, Integers]:
    """One of CIFAR's pickled Python batches; only arrays and plain containers are let in.

    Args:
        path: `data_batch_1`, `test_batch`, or CIFAR-100's `train`, `test`.

    Returns:
        Images `[n, 3, 32, 32]` and labels `[n]` (the fine ones of CIFAR-100).

    Raises:
        ValueError: the file asks for a constructor beyond these, or is not such a batch.
    """
    try:
        batch = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (pickle.UnpicklingError, EOFError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise ValueError(f"{path}: not a CIFAR Python batch ({error}): fetch the file again") from error
    entries = {key if isinstance(key, bytes) else str(key).encode(): value for key, value in dict(batch).items()}
    labels = entries.get(b"labels", entries.get(b"fine_labels"))
    images = entries.get(b"data")
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != 3072 or labels is None:
        raise ValueError(
            f"{path}: expected the entries `data` [n, 3072] and `labels` or `fine_labels`, "
            f"found {sorted(key.decode('latin1') for key in entries)}"
        )
    return images.astype(np.uint8).reshape(-1, 3, 32, 32), np.asarray(labels, np.int64)


def read_npz(path: Path) -> tuple[Parts, bool]:
    """Training and test images in one `.npz` archive, as arrays or as a run of JPEG files.

    Arrays: `x_train`, `y_train`, `x_test`, `y_test`, images channels-last. JPEG: `jpeg_train` (the files one after
    another), `offset_train` (`n + 1` starts), `y_train`, and the same for `test`.

    Args:
        path: the archive.

    Returns:
        Training images `[n, channels, height, width]` and labels, test images and labels; and whether they had been
        through JPEG compression, which is not lossless.

    Raises:
        ValueError: the archive has neither set of entries.
    """
    with np.load(path, allow_pickle=False) as archive:
        entries = {key: archive[key] for key in archive.files}
    compressed = "jpeg_train" in entries
    images = ("jpeg_", "offset_") if compressed else ("x_",)
    expected = [prefix + part for part in ("train", "test") for prefix in (*images, "y_")]
    missing = [key for key in expected if key not in entries]
    if missing:
        raise ValueError(f"{path}: expected the entries {expected}, lacks {missing}, holds {sorted(entries)}")
    return (*_part(entries, "train", compressed), *_part(entries, "test", compressed)), compressed


def _part(entries: dict[str, npt.NDArray[Any]], part: str, compressed: bool) -> tuple[Bytes, Integers]:
    labels: Integers = entries[f"y_{part}"].astype(np.int64).reshape(-1)
    if compressed:
        return _decode_jpegs(entries[f"jpeg_{part}"], entries[f"offset_{part}"]), labels
    pixels: Bytes = entries[f"x_{part}"].astype(np.uint8)
    return pixels[:, None] if pixels.ndim == 3 else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), labels


def _decode_jpegs(stream: Bytes, offsets: Integers) -> Bytes:
    pillow = extra("PIL.Image")
    content = stream.tobytes()
    images = [
        np.asarray(pillow.open(io.BytesIO(content[start:stop])).convert("RGB"))
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))
