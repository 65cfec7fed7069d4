"""Files of data, read without executing anything in them: npz, idx, CIFAR's pickled batches, csv, text.

A file of CHECKSUMS is checked against its sha256, or the md5 by which it is known, before it is read. Archives that
users pack themselves have no bytes to go by, so what is checked is the sha256 of their numbers (NUMBERS). Either is
done once per process unless the file changes on disk.
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
    "co2/co2_weekly.csv": ("16695fa2786e53414e5a6b54767a3fdf5de99cfbc68617f69d1362d92776a92f",),
    "mushroom/mushrooms.csv": ("f0284c7a4210c4b0793713de9c45841d66f9bb27f6408f8bfedb6b34e6d6f53c",),
    "notmnist/t10k-images-idx3-ubyte.gz": ("70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7",),
    "notmnist/t10k-labels-idx1-ubyte.gz": ("1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b",),
}
# Of an archive, the sha256 of the arrays that are read from it, by `digest_of`: however it was packed.
NUMBERS: dict[str, str] = {
    "cifar10/cifar10_lossless_subset.npz": "ebe292ed2652852cdb945996f9d064e03a5a29e3083cff04ee45590b233634e4",
    "fashion_mnist/fashion_mnist.npz": "8035d6b6ebfa3a85bd76bc2f83dc22ffdf47ef3dfd72c2198af2457c730a6a99",
    "imdb/imdb_tok20000_len100.npz": "273d58c0dd3e0a5ffa22f602d284cd4489d420e882a901df7c71f7a07549712b",
    "mnist/mnist.npz": "b24b06c7f82492e214276c2737bd1c19b067ff2fe97fe31e21e38ce0cb76fc42",
    "uci/bostonHousing.npz": "36c5f184b8e7af7d935bf9772de3598092eebbac4ff30071f727fe0e162c28e9",
    "uci/concrete.npz": "fd5a8742a9f27226d08fe56c830b1d855327bf5bbef8fa775b73a08ef122e521",
    "uci/energy.npz": "1e26818863d20f05b9ad42dd4a75077f58368b67185e5a02ad4c074c690d7197",
    "uci/kin8nm.npz": "e53c88437a4defa054195e8a39c37a857c76eb61419f7056384714a8c803d788",
    "uci/naval-propulsion-plant.npz": "790c7aec0e7f78c83788b792304ef06164668e1dd7e4c60af0557615e4cd5696",
    "uci/power-plant.npz": "1ac98c48edba252faae2eb78654a57a937e9bc84bf57112c2a7149ca4eb42bfc",
    "uci/protein-tertiary-structure.npz": "89e8f35dd25db2d487dbf297ce0f2f8537a7575f16b1abc49ded26cc500837e1",
    "uci/wine-quality-red.npz": "0fb20c27b6beb3d1a3804d870e8d8e9cb6575528be0b48796386b828653b5e7b",
    "uci/yacht.npz": "3deb112b46d59a6f3553b79ff3cd4c76082d3ada7de285d15e877f80917c1e34",
}

AGAIN = "Copy the file again from its origin."
REFUSED = (
    "It is damaged or another edition: copy it again from its origin, or read it as it is with load(..., "
    "verify=False), in a study with `posterity reproduce NAME --unchecked`."
)
_GOOD: set[tuple[Path, str, int, int]] = set()  # archives whose numbers were found to be as expected
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
    """The folder of the data: the one given, else that of POSTERITY_DATA, else ~/.cache/posterity.

    XDG_CACHE_HOME may name another place than ~/.cache.
    """
    given = root or os.environ.get("POSTERITY_DATA")
    return Path(given or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "posterity").expanduser()


def checks_files() -> bool:
    """False where POSTERITY_UNCHECKED is 1: so `posterity reproduce --unchecked` tells the processes it starts."""
    return os.environ.get("POSTERITY_UNCHECKED") != "1"


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

        Names in a tuple must match in full: "x" would be x_train as well.
        """
        path = self.checked(name)
        try:
            with np.load(path, allow_pickle=False) as archive:
                arrays = [archive[_full_name(key, archive.files)] for key in keys]
        except (ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is not the archive of plain arrays expected here: {error}. {AGAIN}") from error
        if self.verify and name in NUMBERS:
            check_numbers(path, arrays, NUMBERS[name])
        return arrays

    def text(self, name: str) -> np.ndarray:
        """A table of numbers with white space between them, [rows, columns]."""
        path = self.checked(name)
        try:
            return np.loadtxt(path, ndmin=2)
        except ValueError as error:
            raise ValueError(f"{path} is not a table of numbers: {error}. {AGAIN}") from error

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
        raise ValueError(f"{path} has the {kind} {found}; expected {' or '.join(digests)}. {REFUSED}")


def check_numbers(path: Path, arrays: Sequence[np.ndarray], digest: str) -> None:
    """Refuse an archive whose numbers have another sha256."""
    state = path.stat()
    edition = (path.resolve(), digest, state.st_size, state.st_mtime_ns)
    if edition in _GOOD:
        return
    found = digest_of(arrays)
    if found != digest:
        raise ValueError(f"{path} holds numbers of the sha256 {found}; expected {digest}. {REFUSED}")
    _GOOD.add(edition)


def digest_of(arrays: Sequence[np.ndarray]) -> str:
    """The sha256 of shapes and numbers, whatever the byte order, the layout in memory and the width of the integers."""
    state = hashlib.sha256()
    for array in arrays:
        numbers = np.ascontiguousarray(array, _plain_type(array))
        state.update(f"{numbers.dtype.str} {numbers.shape}\n".encode())
        state.update(numbers.tobytes())
    return state.hexdigest()


def _plain_type(array: np.ndarray) -> np.dtype:
    """float64, or the narrowest integers that hold the least and the greatest number; text as it is."""
    if array.dtype.kind not in "biu":
        return np.dtype("<f8") if array.dtype.kind == "f" else array.dtype.newbyteorder("<")
    ends = [array.min(), array.max()] if array.size else [0]
    return np.result_type(*(np.min_scalar_type(int(end)) for end in ends)).newbyteorder("<")


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
