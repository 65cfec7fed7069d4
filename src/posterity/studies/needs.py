"""What each study reads, looked for before it starts: a file that is absent is not to be found out after hours.

A need is the name of a data set or the path of a file of published numbers, which `load` does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from posterity.datasets.catalogue import SOURCES, UCI
from posterity.datasets.files import Folder, data_root

# The catalogue calls the red wines wine_red, beside scikit-learn's wine; the paper's tables say wine.
UCI_NAMES = {name.removesuffix("_red"): name for name in UCI}


class Published(NamedTuple):
    """Where a file of published numbers comes from."""

    origin: str
    address: str


DROPOUT_CODE = "https://github.com/yaringal/DropoutUncertaintyExps"
HMC_CODE = "https://github.com/google-research/google-research/tree/master/bnn_hmc"
PER_SPLIT = "uci/published_per_split_results.json"
TOY_DATA, TOY_TRACE = "toy/bnn_hmc_synth_reg_data.npz", "toy/bnn_hmc_synth_hmc_trace.csv"
HMC_PREDICTIONS = "hmc_reference/hmc_reference.npz"
PUBLISHED_FILES = {
    PER_SPLIT: Published("the results folders of the code of Gal & Ghahramani 2016", DROPOUT_CODE),
    TOY_DATA: Published("the code of Izmailov et al. 2021", HMC_CODE),
    TOY_TRACE: Published("the notebooks in the code of Izmailov et al. 2021", HMC_CODE),
    HMC_PREDICTIONS: Published("the samples that Izmailov et al. 2021 published", HMC_CODE),
}

Settings = dict[str, Any]


def _tables(chosen: Settings) -> list[str]:
    return [UCI_NAMES[name] for name in chosen["sets"]]


def _small(settings: Settings, size: str) -> list[str]:
    """Of the parts that the settings name."""
    del size
    found = _tables(settings["uci"]) if "uci" in settings else []
    found += [TOY_DATA, TOY_TRACE] if "toy" in settings else []
    return found + (["mnist", "fashion_mnist", "notmnist"] if "digits" in settings else [])


# By the name of the study, what a run of these settings and this size reads.
NEEDS: dict[str, Callable[[Settings, str], list[str]]] = {
    "gal2016": lambda settings, _: [*_tables(settings), PER_SPLIT, "co2"],
    "blundell2015": lambda *_: ["mnist", "mushroom"],
    "kendall2017": lambda *_: ["mnist"],
    "lakshminarayanan2017": lambda settings, _: [*_tables(settings["uci"]), "mnist", "notmnist"],
    "izmailov2021-small": _small,
    "izmailov2021-imdb": lambda _, size: ["imdb"] if size == "tiny" else ["imdb", HMC_PREDICTIONS],
    "ood": lambda *_: ["mnist", "fashion_mnist", "notmnist"],
}


def check_data(name: str, settings: Settings, size: str) -> None:
    """Name all that a study reads and the data folder does not have, in one message."""
    folder = Folder(data_root())
    absent = [need for need in NEEDS[name](settings, size) if folder.first(_paths(need)) is None]
    if not absent:
        return
    grouped: dict[str, list[str]] = {}
    for need in absent:
        grouped.setdefault(_origin(need), []).append(need if need in PUBLISHED_FILES else f"{need} ({_paths(need)[0]})")
    lines = "".join(f"\n- {', '.join(needs)}: {origin}" for origin, needs in grouped.items())
    where = f"{folder.root.absolute()}{'' if folder.root.is_dir() else ', a folder that does not exist'}"
    raise FileNotFoundError(
        f"{name} reads files that are not in {where}:{lines}\nName the folder that holds these paths with "
        f"`posterity reproduce {name} --data FOLDER` or the variable POSTERITY_DATA."
    )


def published_file(name: str) -> Path:
    """A file of published numbers among the data."""
    path = data_root() / name
    if not path.exists():
        raise FileNotFoundError(
            f"{path.absolute()} is missing. {_origin(name)} Put it there, or name the folder that holds it with the "
            "variable POSTERITY_DATA."
        )
    return path


def _paths(need: str) -> tuple[str, ...]:
    """Any of which will do."""
    return (need,) if need in PUBLISHED_FILES else SOURCES[need].files


def _origin(need: str) -> str:
    if need in PUBLISHED_FILES:
        return f"It comes from {PUBLISHED_FILES[need].origin}. See <{PUBLISHED_FILES[need].address}>."
    return f"{SOURCES[need].origin} See <{SOURCES[need].address}>."
