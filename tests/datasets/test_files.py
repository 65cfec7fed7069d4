"""Formats of data files: idx, pickled batches and archives are read, and what is damaged or harmful is refused."""

import gzip
import io
import os
import pickle
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from posterity.datasets import load
from posterity.datasets.catalogue import uci_arrays
from posterity.datasets.files import NUMBERS, Folder, check, digest_of


def write_idx(path: Path, array: np.ndarray) -> None:
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_idx_files_are_read_packed_or_not(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (7, 28, 28), np.uint8)
    labels = np.arange(7, dtype=np.uint8)
    folder = tmp_path / "fashion_mnist"
    write_idx(folder / "train-images-idx3-ubyte.gz", images)
    write_idx(folder / "train-labels-idx1-ubyte", labels)
    write_idx(folder / "t10k-images-idx3-ubyte", images[:2])
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte\.gz is missing beside"):
        load("fashion_mnist", tmp_path)
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", labels[:2])
    data = load("fashion_mnist", tmp_path)
    np.testing.assert_array_equal(data.x_train, images)
    np.testing.assert_array_equal(data.y_train, labels)
    np.testing.assert_array_equal(data.x_test, images[:2])
    data.x_train[0] = 0  # the arrays are the caller's own
    write_idx(folder / "t10k-labels-idx1-ubyte.gz", labels[:1])
    with pytest.raises(ValueError, match="2 test inputs and 1 targets"):
        load("fashion_mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "does not begin as an idx file"),
        (b"", "does not begin as an idx file"),
        (b"\0\0\x08\x01\0\0\0\x03ab", "promises 3 bytes and holds 2"),
    ],
)
def test_a_damaged_idx_file_is_refused(tmp_path, content, message):
    (tmp_path / "labels").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Folder(tmp_path).idx("labels")
    (tmp_path / "labels.gz").write_bytes(gzip.compress(content)[:-4])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        Folder(tmp_path).idx("labels.gz")


class _OldPickler(pickle._Pickler):  # type: ignore[name-defined]
    """Writes bytes as Python 2 wrote its strings, which is how CIFAR-10 was published."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[bytes] = save_bytes


def old_pickle(value: object) -> bytes:
    stream = io.BytesIO()
    _OldPickler(stream, protocol=2).dump(value)
    return stream.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_batches(folder: Path, rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    folder.mkdir(parents=True)
    planes = rng.integers(0, 256, (6, 4, 3072), np.uint8)
    for name, data in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], planes, strict=True):
        content = old_pickle(
            {b"batch_label": b"some", b"labels": [3, 1, 4, 9], b"data": data, b"filenames": [b"a.png"]}
        )
        assert b"numpy.core" in content
        (folder / name).write_bytes(content)
    return planes, [3, 1, 4, 9]


@pytest.mark.parametrize("place", ["cifar10/cifar-10-batches-py", "cifar-10-batches-py"])
def test_the_python_batches_of_cifar_are_read(tmp_path, place):
    planes, labels = write_batches(tmp_path / place, np.random.default_rng(0))
    data = load("cifar10", tmp_path, verify=False)
    assert data.x_train.shape == (20, 32, 32, 3)
    np.testing.assert_array_equal(data.y_train, labels * 5)
    red, green, blue = planes[5, 2].reshape(3, 32, 32)
    np.testing.assert_array_equal(data.x_test[2], np.stack([red, green, blue], -1))
    with pytest.raises(
        ValueError, match=r"data_batch_1 has the md5 \w{32}; expected c99cafc152244af753f735de768cd75f\."
    ):
        load("cifar10", tmp_path)
    (tmp_path / place / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3 is missing"):
        load("cifar10", tmp_path, verify=False)


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_anything_is_refused_and_not_executed(tmp_path):
    write_batches(tmp_path / "cifar-10-batches-py", np.random.default_rng(0))
    made = tmp_path / "made"
    for protocol in (2, 5):
        (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(Harmful(made), protocol))
        with pytest.raises(ValueError, match=r"asks for \w+\.mkdir, and a batch of images holds arrays only"):
            load("cifar10", tmp_path, verify=False)
        assert not made.exists()
    pickle.loads(pickle.dumps(Harmful(made)))  # so it would have been
    assert made.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2], "is no CIFAR-10 batch: it holds none"),
        ({b"data": b"x", b"labels": [1]}, "is no CIFAR-10 batch: it holds data, labels"),
        ({b"data": np.zeros((1, 3072)), b"labels": [1]}, "holds float64 of the shape"),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, value, message):
    (tmp_path / "batch").write_bytes(old_pickle(value))
    with pytest.raises(ValueError, match=message):
        Folder(tmp_path).batch("batch")
    (tmp_path / "batch").write_bytes(old_pickle(value)[:-3])
    with pytest.raises(ValueError, match="was not read"):
        Folder(tmp_path).batch("batch")


def test_an_archive_with_objects_or_without_its_arrays_is_refused(tmp_path):
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10" / "cifar10.npz"
    arrays = {"x_train": np.zeros((2, 32, 32, 3), np.uint8), "y_train": np.zeros(2), "y_test": np.zeros(1)}
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="no array 'x_test', only x_train, y_train, y_test"):
        load("cifar10", tmp_path)
    np.savez(path, **arrays, x_test=np.array([{}], object))
    with pytest.raises(ValueError, match="not the archive of plain arrays expected here"):
        load("cifar10", tmp_path)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"not the archive .* Copy the file again"):
        load("cifar10", tmp_path)
    np.savez(path, **arrays, x_test=np.ones((1, 32, 32, 3), np.uint8))
    assert load("cifar10", tmp_path).x_test.sum() == 3072


@pytest.mark.parametrize("names", [("x_test", "y_test"), ("x", "y"), ("x_test", "y_test", "x", "y")])
def test_letters_are_read_from_one_archive_too(tmp_path, names):
    (tmp_path / "notmnist").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (3, 28, 28), np.uint8)
    arrays = {"x_test": images, "x": images, "y_test": np.arange(3), "y": np.arange(3)}
    np.savez(tmp_path / "notmnist" / "notmnist.npz", **{name: arrays[name] for name in names})
    data = load("notmnist", tmp_path)
    np.testing.assert_array_equal(data.x_test, images)
    np.testing.assert_array_equal(data.y_test, np.arange(3))
    assert (data.x_train.shape, len(data.y_train)) == ((0, 28, 28), 0)


def test_letters_for_training_or_in_fractions_are_refused(tmp_path):
    (tmp_path / "notmnist").mkdir()
    path, images, labels = tmp_path / "notmnist" / "notmnist.npz", np.zeros((3, 28, 28), np.uint8), np.arange(3)
    np.savez(path, x_train=images, y_train=labels)
    with pytest.raises(ValueError, match="no array 'x_test' or 'x', only x_train, y_train"):
        load("notmnist", tmp_path)
    np.savez(path, x=images / 255, y=labels)
    with pytest.raises(ValueError, match="holds inputs of float64; expected whole numbers"):
        load("notmnist", tmp_path)


def table_with_splits() -> dict[str, np.ndarray]:
    """Four rows of two features, and two splits of them."""
    x, y = np.arange(8.0).reshape(4, 2) / 3, np.arange(4.0) / 7
    return {"X": x, "y": y, "train": np.array([[0, 2, 3], [1, 2, 3]]), "test": np.array([[1], [0]])}


def test_another_edition_of_a_known_file_is_refused_unless_asked_for(tmp_path, monkeypatch):
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "yacht.npz", **table_with_splits())
    known = NUMBERS["uci/yacht.npz"]
    with pytest.raises(ValueError, match=rf"holds numbers of the sha256 \w{{64}}; expected {known}.*verify=False"):
        load("yacht", tmp_path)
    assert load("yacht", tmp_path, verify=False).x_train.shape == (3, 2)
    monkeypatch.setenv("POSTERITY_UNCHECKED", "1")  # by `posterity reproduce --unchecked`
    assert load("yacht", tmp_path).x_train.shape == (3, 2)
    assert uci_arrays("yacht", tmp_path)["train"].shape == (2, 3)


def test_an_archive_is_known_by_its_numbers_however_it_was_packed(tmp_path, monkeypatch):
    arrays, path = table_with_splits(), tmp_path / "uci" / "yacht.npz"
    path.parent.mkdir()
    monkeypatch.setitem(NUMBERS, "uci/yacht.npz", digest_of(list(arrays.values())))
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in arrays.items()}
    narrow = arrays | {"train": arrays["train"].astype(np.int32), "test": arrays["test"].astype(np.uint8)}
    columns = arrays | {"X": np.asfortranarray(arrays["X"])}
    for number, (save, packed) in enumerate(
        [
            (np.savez, arrays),
            (np.savez_compressed, arrays),
            (np.savez, dict(reversed(arrays.items()))),
            (np.savez, arrays | {"note": np.arange(3)}),  # which is not read
            (np.savez, swapped),
            (np.savez, narrow),
            (np.savez, columns),
        ]
    ):
        save(path, **packed)
        os.utime(path, (number, number))  # the clock of the disk may be too coarse to tell two writes apart
        np.testing.assert_array_equal(load("yacht", tmp_path).x_train, arrays["X"][[0, 2, 3]])
    changes = {
        "X": np.nextafter(arrays["X"], 9),
        "y": arrays["y"].astype(np.float32),
        "train": arrays["train"][:, ::-1],
        "test": arrays["test"].T,
    }
    for number, (name, changed) in enumerate(changes.items(), 100):
        np.savez(path, **arrays | {name: changed})
        os.utime(path, (number, number))
        with pytest.raises(ValueError, match="holds numbers of the sha256"):
            load("yacht", tmp_path)


@pytest.mark.parametrize("place", ["uci", "UCI_Datasets"])
def test_uci_sets_are_read_from_the_text_files_of_the_dropout_code(tmp_path, place):
    arrays, folder = table_with_splits(), tmp_path / place / "yacht" / "data"
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", np.column_stack([arrays["y"], arrays["X"]]))
    np.savetxt(folder / "index_features.txt", [1, 2])
    np.savetxt(folder / "index_target.txt", [0])
    with pytest.raises(FileNotFoundError, match=r"index_train_0\.txt is missing beside"):
        load("yacht", tmp_path)
    for side in ("train", "test"):
        for number, rows in enumerate(arrays[side]):
            np.savetxt(folder / f"index_{side}_{number}.txt", rows)
    data = load("yacht", tmp_path, split=1)
    np.testing.assert_array_equal(data.x_train, arrays["X"][[1, 2, 3]])
    np.testing.assert_array_equal(data.y_test, arrays["y"][[0]])
    for name, array in uci_arrays("yacht", tmp_path).items():
        np.testing.assert_array_equal(array, arrays[name])
    with pytest.raises(ValueError, match="has 2 splits, 0 to 1; there is no split 2"):
        load("yacht", tmp_path, split=2)
    (folder / "index_target.txt").write_text("zero")
    with pytest.raises(ValueError, match=r"index_target\.txt is not a table of numbers.*Copy the file again"):
        load("yacht", tmp_path)


def test_a_file_is_checked_once_until_it_changes(tmp_path):
    path, digest = tmp_path / "file", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    path.write_bytes(b"hello")
    check(path, (digest,))
    state = path.stat()
    path.write_bytes(b"jello")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    check(path, (digest,))  # the same size and time: not read again
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    with pytest.raises(ValueError, match="expected 2cf24d"):
        check(path, (digest,))
