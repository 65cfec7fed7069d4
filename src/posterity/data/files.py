"""Files of data, read without executing anything in them: npz, idx, CIFAR's pickled batches, csv.

A file of CHECKSUMS is checked against its sha256, or the md5 by which it is known, before it is read: once per process
unless it changes on disk.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
import os
import pickle
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# The batches of CIFAR-10, whose originals are known by their md5 (as torchvision has them): enough to find damage.
CIFAR_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR_FOLDERS = ("cifar10/cifar-10-batches-py", "cifar-10-batches-py")

# Editions of a file that are known to be good; a file that is not listed is read without a check.
CHECKSUMS: dict[str, tuple[str, ...]] = {
    **{f"{folder}/{name}": (digest,) for folder in CIFAR_FOLDERS for name, digest in CIFAR_MD5.items()},
    "cifar10/cifar10_lossless_subset.npz": ("8281d0f34ecd4b0cae77d2cf0278e8bc93b29b228a4dc2ce96c0079c60a44330",),
    "co2/co2_weekly.csv": ("16695fa2786e53414e5a6b54767a3fdf5de99cfbc68617f69d1362d92776a92f",),
    "fashion_mnist/fashion_mnist.npz": ("5b6d2c4c694a91887af8ab7d039c04f80af3c29378d731c93a538d2e831aa469",),
    "imdb/imdb_tok20000_len100.npz": ("f24c2db0d106e54c11b7f44c5e3c09394fd83ec1cf5b1e84f7cb188b3eab2935",),
    "mnist/mnist.npz": (
        "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
        "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",  # as Keras has it
    ),
    "mushroom/mushrooms.csv": ("f0284c7a4210c4b0793713de9c45841d66f9bb27f6408f8bfedb6b34e6d6f53c",),
    "notmnist/t10k-images-idx3-ubyte.gz": ("70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7",),
    "notmnist/t10k-labels-idx1-ubyte.gz": ("1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b",),
    "uci/bostonHousing.npz": ("d0520c15af4cb4af6b01f58dad6669030fb9988df14adfea0d981a3ea48df69b",),
    "uci/concrete.npz": ("0964e0e1dbe400e0c94ca7b8eca468670394809f77875fbcf68715be78e88bc4",),
    "uci/energy.npz": ("7bbff3e490070489eb5ac0f8366e80f2d76598b698fb2001a3a3532e0a30a83b",),
    "uci/kin8nm.npz": ("355ec58a77a27ae8428bd94bf0a9700344d2cdb4f9f31c17befa487ea35d3e07",),
    "uci/naval-propulsion-plant.npz": ("9c9f9c9d11e2e5cbc7cd2200980e910006bab72d6adf51070ad92b924e6a567c",),
    "uci/power-plant.npz": ("b2df6548fde5b78fbc678e256fa2637fc1b549fda4d22a89df7589ff8fff9522",),
    "uci/protein-tertiary-structure.npz": ("4df98f6976ec062d19df7908e7f3e9bf39ff66bf3d0186c733ddbd3d49e10d92",),
    "uci/wine-quality-red.npz": ("022d7f116bb21454d028df2cd526701488e0d4d659e06992dc53a4161e498943",),
    "uci/yacht.npz": ("18dd1ededf51e2d63323be9645d29e702dbbeefa3ac81f0f22e5c6ee705d0f46",),
}

AGAIN = "Copy the file again from its origin."
IDX_BYTES = b"\0\0\x08"  # how an idx file of unsigned bytes begins; the number of axes follows

_RECONSTRUCT = np.empty(0).__reduce__()[0]
# The only names a pickle may call upon: those that make an array. Everything else in a batch is a literal.
ARRAY_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data: the one given, else that of POSTERITY_DATA, else ../shared/data."""
    return Path(root or os.environ.get("POSTERITY_DATA") or "../shared/data").expanduser()


class Folder(NamedTuple):
    """A folder of data files, named by their paths within it."""

    root: Path
    verify: bool = True

    def first(self, names: Sequence[str]) -> str | None:
        """The first of `names` that is there."""
        return next((name for name in names if (self.root / name).exists()), None)

    def checked(self, name: str) -> Path:
        """The path of a file that is there and has its checksum."""
        path = self.root / name
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing beside the other files of its folder; copy it there too.")
        if self.verify and name in CHECKSUMS:
            check(path, CHECKSUMS[name])
        return path

    def npz(self, name: str, *keys: str | tuple[str, ...]) -> list[np.ndarray]:
        """The plain arrays of a NumPy archive that are called `keys`, or `key_...`; a tuple holds names to choose from.

        Names in a tuple are not gone on with: "x" would be x_train as well.
        """
        path = self.checked(name)
        try:
            with np.load(path, allow_pickle=False) as archive:
                return [archive[_full_name(key, archive.files)] for key in keys]
        except (ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is not the archive of plain arrays expected here: {error}. {AGAIN}") from error

    def idx(self, name: str) -> np.ndarray:
        """An array of unsigned bytes in the format of MNIST: a head of big-endian numbers, then the bytes."""
        path = self.checked(name)
        content = _unpacked(path)
        num_axes = content[3] if content.startswith(IDX_BYTES) and len(content) > 3 else 0
        body = 4 + 4 * num_axes
        if not num_axes or len(content) < body:
            raise ValueError(f"{path} does not begin as an idx file of bytes (it has {content[:4]!r}). {AGAIN}")
        shape = tuple(int(size) for size in np.frombuffer(content, ">u4", num_axes, offset=4))
        if len(content) - body != math.prod(shape):
            raise ValueError(f"{path} promises {math.prod(shape)} bytes and holds {len(content) - body}. {AGAIN}")
        return np.frombuffer(content, np.uint8, offset=body).reshape(shape).copy()  # which can be written to

    def batch(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Images [N, 32, 32, 3] and labels [N] of a CIFAR-10 python batch."""
        path = self.checked(name)
        with path.open("rb") as stream:
            try:
                found = _ArraysOnly(stream, encoding="bytes").load()
            except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
                raise ValueError(f"{path} was not read: {error}. {AGAIN}") from error
        fields = {_text(key): value for key, value in found.items()} if isinstance(found, dict) else {}
        data, labels = fields.get("data"), fields.get("labels")
        if not isinstance(data, np.ndarray) or not isinstance(labels, list):
            raise ValueError(f"{path} is no CIFAR-10 batch: it holds {', '.join(map(str, fields)) or 'none'}. {AGAIN}")
        if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise ValueError(f"{path} holds {data.dtype} of the shape {data.shape}, not bytes [N, 3072]. {AGAIN}")
        return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.asarray(labels, np.int64)

    def csv(self, name: str) -> tuple[list[str], list[list[str]]]:
        """The names of the columns, and the rows."""
        with self.checked(name).open(newline="", encoding="utf-8") as stream:
            header, *rows = csv.reader(stream)
        return header, rows


def check(path: Path, digests: Sequence[str]) -> None:
    """Refuse a file whose sha256, or md5 if those are given, is not one of `digests`."""
    state = path.stat()
    kind = "md5" if len(digests[0]) == 32 else "sha256"
    found = _digest(path.resolve(), kind, state.st_size, state.st_mtime_ns)
    if found not in digests:
        raise ValueError(
            f"{path} has the {kind} {found}; expected {' or '.join(digests)}. It is damaged or another edition: "
            "copy it again from its origin, or read it as it is with load(..., verify=False)."
        )


@cache
def _digest(path: Path, kind: str, size: int, modified: int) -> str:
    del size, modified  # of the file: they make a changed file a new question
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


class _ArraysOnly(pickle.Unpickler):
    """Numbers, text, bytes, lists, dicts and NumPy arrays; any other name in the file is refused, not imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and a batch of images holds arrays only")
        return ARRAY_NAMES[module, name]


def _full_name(key: str | tuple[str, ...], names: Sequence[str]) -> str:
    if isinstance(key, str):
        found = [name for name in names if name == key or name.startswith(f"{key}_")]
    else:
        found = [name for name in key if name in names]
    if not found:
        wanted = repr(key) if isinstance(key, str) else " or ".join(map(repr, key))
        raise ValueError(f"it has no array {wanted}, only {', '.join(names)}")
    return found[0]


def _unpacked(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}. {AGAIN}") from error


def _text(key: Any) -> Any:
    return key.decode("latin-1") if isinstance(key, bytes) else key
