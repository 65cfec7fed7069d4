"""A run or a posterior as a directory: safetensors for arrays, then a JSON manifest with the checksum of every file.

Files are written beside their final name, flushed to disk and renamed, the manifest last: whatever interrupts a write,
the manifest on disk names only whole files. Nothing in a file is ever executed: values are rebuilt from names in a
fixed table (records of this package, distributions of numpyro, optimisers of optax), and what is not in it is reported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from posterity import tree
from posterity.devices import wait_for_all
from posterity.networks.images import LeNet, ResNet, UNet
from posterity.networks.mlp import MLP
from posterity.networks.sequences import CNNLSTM
from posterity.priors import Fixed, Flat

FORMAT = 1
MANIFEST = "manifest.json"
LEFT_BEHIND = "job.safetensors"  # the one file that a run writes before its first manifest
DISTRIBUTIONS = ("Normal", "Laplace", "StudentT", "Cauchy", "Logistic", "Uniform", "Gumbel", "SoftLaplace")
NETWORKS = {cls.__name__: cls for cls in (MLP, LeNet, ResNet, UNet, CNNLSTM)}
PLAIN = {**NETWORKS, "Flat": Flat, "Fixed": Fixed}
KINDS = ("array", "dict", "tuple", "record", "mixture", "distribution", "optimizer", "missing")
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "adagrad", "lion", "nadam", "radam", "adabelief", "lamb", "noisy_sgd")
PASSED_AGAIN = ("model", "method")  # to `load` or `resume`: the only values of which a store may lack a part

DAMAGE = (  # what values come to that were edited, wherever they are used
    *(LookupError, TypeError, ValueError, AttributeError, AssertionError),
    *(OverflowError, ZeroDivisionError, RecursionError),
)


class StoreError(ValueError):
    """A store that cannot be read, or not for what was asked; the message says what to do."""


class Missing:
    """What a store could not hold: a function of the user's own. It must be passed again."""

    def __init__(self, what: str) -> None:
        self.what = what


class Writer:
    """Writes arrays and a manifest into a directory; remembers what is whole.

    `together`: all processes of a run call it in step; the first one writes, and none goes on before it has.
    `ours`: the folder lies within a store, so whatever it holds without a manifest was left by a run that was killed.
    """

    def __init__(self, folder: Path, together: bool = False, ours: bool = False) -> None:
        self.folder, self.together = folder, together
        self.files: dict[str, str] = {}  # name -> checksum
        try:
            folder.mkdir(parents=True, exist_ok=True)
            begins = not (folder / MANIFEST).exists()
            if begins and not ours:
                _check_empty(folder)
        except OSError as error:
            raise StoreError(
                f"Cannot make the folder {folder} or look into it: {error.strerror}. Choose another store."
            ) from error
        self._named = set() if begins else set(_read_manifest(folder)["files"])  # by the manifest on disk
        if begins and together:
            wait_for_all("store")  # or a process that is late would find what the first one has written

    def arrays(self, name: str, values: dict[str, np.ndarray]) -> None:
        try:
            payload = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in values.items()})
        except SafetensorError as error:
            raise StoreError(f"A store cannot hold an array of {name}: {error}. Use float32 or float64.") from error
        self._write(f"{name}.safetensors", payload)
        self.files[f"{name}.safetensors"] = _digest(payload)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def drop(self, name: str) -> None:
        """Forget a file; it is removed once a manifest without it is in place."""
        self.files.pop(f"{name}.safetensors", None)

    def manifest(self, body: dict[str, Any]) -> None:
        body = {"format": FORMAT, "files": self.files, **body}
        text = json.dumps(body, sort_keys=True)
        whole = json.dumps({"checksum": _digest(text.encode()), "body": text}, indent=1)
        self._write(MANIFEST, whole.encode())
        if self._writes:
            # Only what this store itself has named: a folder may hold files of others.
            for name in self._named - set(self.files):
                with suppress(OSError):  # what stays behind costs room, nothing else
                    (self.folder / name).unlink()
        self._named = set(self.files)

    @property
    def _writes(self) -> bool:
        return not self.together or jax.process_index() == 0

    def _write(self, name: str, payload: bytes) -> None:
        if self._writes:
            self._replace(name, payload)
        if self.together:
            wait_for_all(name)

    def _replace(self, name: str, payload: bytes) -> None:
        final, temporary = self.folder / name, self.folder / f".{name}.partial"
        try:
            with open(temporary, "wb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, final)
        except OSError as error:
            with suppress(OSError):  # on a read-only disk this fails as well, and must not hide why
                temporary.unlink(missing_ok=True)
            raise StoreError(
                f"Cannot write {final}: {error.strerror}. What was stored before is whole and readable; make room, or "
                "choose another folder, then resume."
            ) from error


class Reader:
    """Reads a directory and refuses what is damaged, truncated or of a newer format."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.body = _read_manifest(self.folder)
        self.files: dict[str, str] = self.body["files"]
        self._verified: set[str] = set()

    def path(self, name: str) -> Path:
        """A file whose checksum was found right."""
        full = f"{name}.safetensors"
        if full not in self.files:
            raise StoreError(f"The store {self.folder} does not name {full}; it is damaged.")
        path = self.folder / full
        if full not in self._verified:
            if not path.is_file() or _digest_file(path) != self.files[full]:
                raise StoreError(f"{path} is missing or damaged (its checksum is wrong); restore it from a copy.")
            self._verified.add(full)
        return path

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        path = self.path(name)
        try:
            return safetensors.numpy.load_file(path)
        except (SafetensorError, LookupError, ValueError, OverflowError) as error:
            raise StoreError(f"{path} is damaged ({error}); restore it from a copy.") from error

    def check_files(self) -> None:
        """Refuse a store of which any file is damaged."""
        for name in self.files:
            self.path(name.removesuffix(".safetensors"))

    @contextmanager
    def damage_in_words(self, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """What does not fit together, although every checksum is right, is a store that someone has edited.

        `unless`: asked when an error has come up, whether it is none of the store's.
        """
        try:
            yield
        except StoreError:
            raise
        except DAMAGE as error:
            if unless():
                raise
            raise StoreError(
                f"The store {self.folder} does not hold together ({type(error).__name__}: {error}); it was edited, is "
                "from another version, or is not of the model and method passed. Restore it from a copy, or pass those "
                "it began with."
            ) from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        remedy = "; the run in it was killed as it began: call fit again" if _left_behind(folder / LEFT_BEHIND) else ""
        raise StoreError(f"{folder} is not a store: it has no {MANIFEST}{remedy}.")
    damaged = StoreError(f"{path} is damaged; restore it from a copy.")
    try:
        whole = json.loads(path.read_bytes())
        if not isinstance(whole, dict) or _digest(whole["body"].encode()) != whole["checksum"]:
            raise damaged
        body = json.loads(whole["body"])
    except (ValueError, KeyError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged from error
    if not isinstance(body, dict) or not isinstance(body.get("format"), int) or not _names_files(body.get("files")):
        raise damaged
    if body["format"] > FORMAT:
        raise StoreError(
            f"{path} has format {body['format']}, newer than the {FORMAT} this version reads: pip install -U posterity."
        )
    return body


def _names_files(files: Any) -> bool:
    """Whether this maps names of files with arrays, not of places elsewhere, to checksums."""
    return isinstance(files, dict) and all(
        Path(name).name == name and name.endswith(".safetensors") and isinstance(files[name], str) for name in files
    )


def _check_empty(folder: Path) -> None:
    """Refuse to begin a store among files of others.

    Hidden ones do not count: file managers leave them behind. Nor does what a run leaves that was killed as it began.
    """
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if found and not (found == [LEFT_BEHIND] and _left_behind(folder / LEFT_BEHIND)):
        raise StoreError(
            f"{folder} is not a store, and is not empty: it holds {', '.join(found[:3])}{' ...' if found[3:] else ''}. "
            f"Choose a new folder, for instance {folder / 'store'}, or empty this one."
        )


def _left_behind(path: Path) -> bool:
    """Whether this is the description of a run: a file of another's own could have its name."""
    try:
        with safe_open(path, "np") as file:
            return {"data/y", "outputs"} <= set(file.keys())
    except (OSError, SafetensorError):
        return False


def whole_number(values: dict[str, Any], name: str, least: int = 0) -> int:
    """A count of a manifest, which may have been edited."""
    number = values[name]
    if type(number) is not int or number < least:
        raise StoreError(
            f"The store gives {name}={number!r}; expected a whole number, at least {least}. It was edited: restore it "
            "from a copy."
        )
    return number


# Values to plain JSON and back. Arrays go into a table of their own and leave their name behind.


def encode(value: Any, arrays: dict[str, np.ndarray], name: str = "") -> Any:
    """A value as JSON; its arrays are added to `arrays` under their paths.

    `name` is the path of the value. What cannot be held is refused, but for parts of what a user can pass again.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) or (
        isinstance(value, jax.Array | np.ndarray) and np.ndim(value) == 0 and not name
    ):
        return np.asarray(value).item()
    if isinstance(value, jax.Array | np.ndarray):
        while name in arrays:  # keys may hold a slash: {"a/b": ..., "a": {"b": ...}}
            name += "+"
        arrays[name] = np.asarray(value)
        return {"array": name}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        return {"dict": [[key, encode(item, arrays, f"{name}/{key}")] for key, item in value.items()]}
    if isinstance(value, tuple | list) and not _is_named(value):
        return {"tuple": [encode(item, arrays, f"{name}/{i}") for i, item in enumerate(value)]}
    if _is_record(value) or isinstance(value, tuple(PLAIN.values())):
        parts = {f.name: _plain(getattr(value, f.name), f) for f in _stored_fields(value)}
        fields = {field: encode(part, arrays, f"{name}/{field}") for field, part in parts.items()}
        return {"record": type(value).__name__, "fields": fields}
    return _encode_named(value, arrays, name)


def _encode_named(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    if isinstance(value, dist.MixtureSameFamily):
        parts = (value.mixing_distribution.probs, value.component_distribution)
        return {"mixture": [encode(part, arrays, f"{name}/{i}") for i, part in enumerate(parts)]}
    if type(value).__name__ in DISTRIBUTIONS and isinstance(value, dist.Distribution):
        names = type(value).arg_constraints
        return {
            "distribution": type(value).__name__,
            "arguments": {n: encode(getattr(value, n), arrays, f"{name}/{n}") for n in names},
        }
    for optimizer in OPTIMIZERS:
        if value is getattr(optax, optimizer):
            return {"optimizer": optimizer}
    if name.split("/")[0] not in PASSED_AGAIN:
        raise StoreError(
            f"A store cannot hold {name.strip('/') or 'the value'} of type {type(value).__name__}: use arrays in a "
            "dict, list or tuple instead, a dict with texts or whole numbers as keys."
        )
    return {"missing": f"{name}: {type(value).__name__}"}


def decode(stored: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value again; `Missing` where the store could not hold it."""
    if not isinstance(stored, dict):
        return stored
    kind = next((kind for kind in KINDS if kind in stored), "none of them")
    content: Any = stored.get(kind)
    if kind == "array":
        return arrays[content]
    if kind == "dict":
        return {key: decode(item, arrays) for key, item in content}
    if kind == "tuple":
        return tuple(decode(item, arrays) for item in content)
    if kind == "record":
        return _decode_record(content, {n: decode(v, arrays) for n, v in stored["fields"].items()})
    if kind == "mixture":
        probs, components = (decode(part, arrays) for part in content)
        return dist.MixtureSameFamily(dist.Categorical(probs=jnp.asarray(probs)), components)
    if kind == "distribution":
        if content not in DISTRIBUTIONS:
            raise StoreError(f"The store names a distribution {content!r} that is not allowed; it is damaged.")
        arguments = {name: decode(item, arrays) for name, item in stored["arguments"].items()}
        return getattr(dist, content)(**{n: _unwrap(v) for n, v in arguments.items()})
    if kind == "optimizer" and content in OPTIMIZERS:
        return getattr(optax, content)
    if kind == "missing":
        return Missing(content)
    raise StoreError(f"The store holds a value of the unknown kind {kind!r}; it is damaged or from another version.")


def _decode_record(name: str, fields: dict[str, Any]) -> Any:
    table = {**PLAIN, **tree.RECORDS}
    if name not in table:
        raise StoreError(f"The store names {name!r}, which this version does not know: pip install -U posterity.")
    cls = table[name]
    value = object.__new__(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    for field in set(fields) - set(known):
        raise StoreError(f"The store gives {name} a field {field!r}, which this version does not have.")
    for field, described in known.items():
        given = fields.get(field, None if field == "start" else described.default)
        named = isinstance(given, tuple) and _is_named(described.default) and not _is_named(given)
        object.__setattr__(value, field, type(described.default)(*given) if named else given)
    return value


def _is_record(value: Any) -> bool:
    """By its class and not by its name alone: numpyro has a Laplace and a StudentT of its own."""
    return tree.RECORDS.get(type(value).__name__) is type(value)


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _plain(value: Any, field: Any) -> Any:
    """A NamedTuple as the tuple it is, where the default of a record's field says which one to make of it again."""
    return tuple(value) if _is_named(field.default) and type(value) is type(field.default) else value


def find_missing(value: Any) -> list[str]:
    """What a decoded value lacks."""
    if isinstance(value, Missing):
        return [value.what]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [what for f in dataclasses.fields(value) for what in find_missing(getattr(value, f.name))]
    if isinstance(value, dict | tuple | list):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return [what for item in items for what in find_missing(item)]
    return []


def fingerprint(values: Any) -> str:
    """A digest of a pytree of arrays: the same for the same numbers, shapes and types."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{tree.path_name(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def plain_json(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """The user's metadata as it will come back from a manifest."""
    try:
        return json.loads(json.dumps(metadata or {}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StoreError(f"metadata must be plain JSON (texts, finite numbers, lists, dicts): {error}.") from error


def _stored_fields(value: Any) -> list[Any]:
    """All but a `start` that is no record: a posterior or weights, which have served once a run has ended."""

    def serves(field: Any) -> bool:
        return field.name != "start" or _is_record(getattr(value, "start", None))

    return [f for f in dataclasses.fields(value) if serves(f)]


def _unwrap(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _digest_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
