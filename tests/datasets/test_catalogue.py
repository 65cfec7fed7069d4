"""Data sets by name: what is read is what is in the files, nothing else is, and every refusal says what to do."""

import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from posterity.datasets import NAMES, data_root, load
from posterity.datasets.catalogue import BUNDLED, SOURCES, UCI, _from_frames
from posterity.studies.published import uci

REPOSITORY = Path(__file__).parents[2]
DATA = Path(os.environ.get("POSTERITY_DATA", REPOSITORY.parent / "shared" / "data"))
ROWS = {  # training rows, test rows, shape of a row
    "diabetes": (354, 88, (10,)),
    "iris": (120, 30, (4,)),
    "wine": (142, 36, (13,)),
    "breast_cancer": (455, 114, (30,)),
    "digits": (1438, 359, (64,)),
    "boston": (455, 51, (13,)),
    "concrete": (927, 103, (8,)),
    "energy": (691, 77, (8,)),
    "kin8nm": (7373, 819, (8,)),
    "naval": (10741, 1193, (16,)),
    "power": (8611, 957, (4,)),
    "protein": (41157, 4573, (9,)),
    "wine_red": (1439, 160, (11,)),
    "yacht": (277, 31, (6,)),
    "mnist": (60000, 10000, (28, 28)),
    "fashion_mnist": (60000, 10000, (28, 28)),
    "notmnist": (0, 10000, (28, 28)),
    "cifar10": (4000, 1000, (32, 32, 3)),
    "imdb": (25000, 25000, (100,)),
    "co2": (2225, 0, (1,)),
    "mushroom": (8124, 0, (117,)),
}
INPUTS = {"imdb": np.int32, **dict.fromkeys(("mnist", "fashion_mnist", "notmnist", "cifar10"), np.uint8)}


def there(name: str, file: str):
    """A parameter that is skipped where its file is absent."""
    absent = not (DATA / file).exists()
    return pytest.param(name, marks=pytest.mark.skipif(absent, reason=f"{DATA / file} is absent; set POSTERITY_DATA"))


def needs(file: str):
    return pytest.mark.skipif(not (DATA / file).exists(), reason=f"{DATA / file} is absent; set POSTERITY_DATA")


FILES = {
    **{name: f"uci/{file}.npz" for name, file in UCI.items()},
    "mnist": "mnist/mnist.npz",
    "fashion_mnist": "fashion_mnist/fashion_mnist.npz",
    "notmnist": "notmnist/t10k-images-idx3-ubyte.gz",
    "cifar10": "cifar10/cifar10_lossless_subset.npz",
    "imdb": "imdb/imdb_tok20000_len100.npz",
    "co2": "co2/co2_weekly.csv",
    "mushroom": "mushroom/mushrooms.csv",
}


@pytest.mark.parametrize("name", [*BUNDLED, *(there(name, file) for name, file in FILES.items())])
def test_a_set_has_its_rows_types_and_classes(name):
    data = load(name, DATA)
    num_train, num_test, shape = ROWS[name]
    assert data.name == name
    assert data.x_train.shape == (num_train, *shape)
    assert data.x_test.shape == (num_test, *shape)
    assert data.y_train.shape == (num_train,)
    assert data.y_test.shape == (num_test,)
    assert {data.x_train.dtype, data.x_test.dtype} == {np.dtype(INPUTS.get(name, np.float64))}
    labels = np.concatenate([data.y_train, data.y_test])
    if data.task == "classification":
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(np.unique(labels), np.arange(len(data.classes)))
    else:
        assert (labels.dtype, data.classes) == (np.float64, ())
    assert len(data.columns) in (0, data.x_train.shape[-1])


def test_every_name_is_tested_and_in_the_guide():
    assert set(ROWS) == set(NAMES)
    text = (REPOSITORY / "docs" / "data.md").read_text()
    table = text[text.index("| names |") : text.index("## Where")]
    table = "\n".join(re.findall(r"^\| (`.*?) \|", table, re.M))
    assert set(re.findall(r"`([\w:]+)`", table)) == {*NAMES, "openml:NAME"}


def test_the_guide_has_the_address_of_every_set():
    text = (REPOSITORY / "docs" / "data.md").read_text()
    assert {source.address for source in SOURCES.values()} == set(re.findall(r"^\| .* \| <(https.*)> \|$", text, re.M))


def test_a_bundled_set_is_split_by_its_seed_and_loses_no_row():
    first, again, other = load("iris"), load("iris"), load("iris", split=1)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)
    whole = [np.sort(np.concatenate([one.x_train, one.x_test]), axis=0) for one in (first, other)]
    np.testing.assert_array_equal(whole[0], whole[1])
    assert (first.classes[0], first.columns[0]) == ("setosa", "sepal length (cm)")


@needs("uci/protein-tertiary-structure.npz")
@needs("uci/wine-quality-red.npz")
def test_a_uci_set_has_the_splits_of_its_file():
    with np.load(DATA / "uci" / "wine-quality-red.npz", allow_pickle=False) as arrays:
        data = load("wine_red", DATA, split=3)
        np.testing.assert_array_equal(data.x_test, arrays["X"][arrays["test"][3]])
        np.testing.assert_array_equal(data.y_train, arrays["y"][arrays["train"][3]])
    with pytest.raises(ValueError, match="has 5 splits, 0 to 4; there is no split 5"):
        load("protein", DATA, split=5)


@needs("uci/wine-quality-red.npz")
def test_the_studies_read_the_same_rows(monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(DATA))
    assert uci.NAMES["wine"] == "wine-quality-red"
    assert len(uci.NAMES) == 9
    split, data = uci.split(uci.read("wine"), 3), load("wine_red", split=3)
    np.testing.assert_allclose(split.x_train.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(split.y_train * split.y_std + split.y_mean, data.y_train)
    np.testing.assert_array_equal(split.y_test, data.y_test)


@needs("cifar10/cifar10_lossless_subset.npz")
@needs("cifar10/test_labels.npy")
def test_cifar_labels_are_those_of_the_whole_test_set():
    labels = np.load(DATA / "cifar10" / "test_labels.npy", allow_pickle=False)
    np.testing.assert_array_equal(load("cifar10", DATA).y_test, labels[:1000])


@needs("co2/co2_weekly.csv")
def test_co2_is_by_decimal_year():
    data = load("co2", DATA)
    assert data.x_train[0, 0] == pytest.approx(1958 + 87 / 365)  # 29 March
    assert data.y_train[0] == 316.1
    assert (np.diff(data.x_train[:, 0]) > 0).all()


@needs("mushroom/mushrooms.csv")
def test_mushrooms_have_one_value_of_each_property():
    data = load("mushroom", DATA)
    np.testing.assert_array_equal(data.x_train.sum(1), 22)
    assert data.y_train.sum() == 3916  # poisonous, as the repository counts them
    foul = data.x_train[:, data.columns.index("odor=f")] == 1
    assert data.y_train[foul].all()


def test_the_folder_is_the_argument_or_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path / "variable"))
    assert data_root() == tmp_path / "variable"
    assert data_root(tmp_path) == tmp_path
    monkeypatch.delenv("POSTERITY_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_root() == tmp_path / "cache" / "posterity"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "posterity"
    assert data_root("~/sets") == Path.home() / "sets"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BUNDLED])
def test_an_absent_file_is_named_with_its_origin_and_the_way_to_name_a_folder(tmp_path, name):
    pattern = rf"^{name} is not in {re.escape(str(tmp_path))}: looked there for .*{re.escape(FILES[name])}.*\. It is .*"
    pattern += r" See <https://\S+>\. Name the folder .*"
    with pytest.raises(FileNotFoundError, match=pattern + r"root=FOLDER\) or the variable POSTERITY_DATA\.$"):
        load(name, tmp_path)


def test_mistaken_names_and_splits_are_answered():
    with pytest.raises(ValueError, match="no data set 'fashion-mnist'; did you mean 'fashion_mnist'"):
        load("fashion-mnist")
    with pytest.raises(ValueError, match="mnist has no split 2"):
        load("mnist", split=2)
    with pytest.raises(ValueError, match="split=-1 must be 0 or above"):
        load("iris", split=-1)


ARFF = """@relation toy
@attribute size numeric
@attribute colour {red,green}
@attribute kind {good,bad}
@data
1.5,red,good
?,green,bad
3.5,red,bad
4.5,green,good
5.5,red,good
"""


def write_openml(home: Path) -> None:
    """The answers of OpenML as scikit-learn keeps them."""
    import hashlib

    answers = {
        "data/list/data_name/toy/limit/2/status/active/": {"data": {"dataset": [{"did": 7, "version": 1}]}},
        "data/7": {
            "data_set_description": {
                "id": "7",
                "name": "toy",
                "version": "1",
                "format": "ARFF",
                "status": "active",
                "file_id": "7",
                "description": "",
                "url": "https://www.openml.org/data/v1/download/7/toy.arff",
                "md5_checksum": hashlib.md5(ARFF.encode()).hexdigest(),
            }
        },
        "data/features/7": {
            "data_features": {"feature": [_feature(0, "size"), _feature(1, "colour"), _feature(2, "kind")]}
        },
        "data/qualities/7": {"data_qualities": {"quality": [{"name": "NumberOfInstances", "value": "5"}]}},
    }
    files = {f"api/v1/json/{path}": json.dumps(answer) for path, answer in answers.items()}
    for path, text in {**files, "data/v1/download/7/toy.arff": ARFF}.items():
        target = Path(f"{home}/openml/openml.org/{path}.gz")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(text.encode()))


def _feature(index: int, name: str) -> dict[str, str]:
    kind = "numeric" if name == "size" else "nominal"
    flags = {"is_target": str(name == "kind").lower(), "is_ignore": "false", "is_row_identifier": "false"}
    return {"index": str(index), "name": name, "data_type": kind, "number_of_missing_values": "0", **flags}


@pytest.fixture
def no_network(monkeypatch):
    """Connections go to a port of this machine at which nobody answers."""
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)


def test_openml_is_read_from_an_earlier_download(tmp_path, no_network):
    write_openml(tmp_path)
    data = load("openml:toy", tmp_path)
    assert (data.task, data.classes) == ("classification", ("bad", "good"))
    assert data.columns == ("size", "colour=green", "colour=red")
    assert (len(data.y_train), len(data.y_test)) == (4, 1)
    rows = np.concatenate([data.x_train, data.x_test])
    assert np.isnan(rows[:, 0]).sum() == 1
    np.testing.assert_array_equal(rows[:, 1:].sum(1), 1)


def test_openml_without_a_network_says_so(tmp_path, no_network):
    with pytest.raises(ConnectionError, match=r"OpenML did not answer .* needs a network the first time.*iris"):
        load("openml:toy", tmp_path)


def test_a_frame_with_numbers_to_predict_is_a_regression():
    inputs, target = pd.DataFrame({"a": np.arange(10.0)}), pd.Series([*range(9), None], dtype=float)
    data = _from_frames("openml:toy", inputs, target, 0)
    assert (data.task, data.classes, len(data.y_train) + len(data.y_test)) == ("regression", (), 9)
    np.testing.assert_array_equal(data.x_train[:, 0], data.y_train)
    with pytest.raises(ValueError, match="no single target column"):
        _from_frames("openml:toy", inputs, None, 0)
