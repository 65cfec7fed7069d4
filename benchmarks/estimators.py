"""The estimators at their defaults beside their peers at theirs, by the density they give to rows they have not seen.

    python benchmarks/estimators.py                       fills in what results/estimators.json lacks
    python benchmarks/estimators.py posterity forest      computes these anew
    make peers                                            NGBoost and CatBoost, in an environment of their own

Regression: mean negative log density of the test rows, in standard deviations of the training targets.
Classification: log loss. Peers that predict a number get a Gaussian with the variance of residuals that they were not
trained on, by cross-validation, out of bag for the forest; the Gaussian process, NGBoost and CatBoost also as they are,
with their own variance. Every method sees the same rows of raw columns, at most 1,000 to train on: a Gaussian process
takes long for more. No density counts as less than exp(-20), or single rows would decide. Tables are read from the
folder that POSTERITY_DATA names.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

RESULTS = Path("results/estimators.json")
DATA = Path(os.environ.get("POSTERITY_DATA", "../shared/data"))
NUM_SPLITS = 2
TRAIN_ROWS, TEST_ROWS = 1_000, 2_000
UCI = {"boston": "bostonHousing", "concrete": "concrete", "energy": "energy", "kin8nm": "kin8nm", "yacht": "yacht"}
UCI |= {"naval": "naval-propulsion-plant", "power": "power-plant", "protein": "protein-tertiary-structure"}
UCI |= {"wine": "wine-quality-red"}
NUMBERS = ["servo", "concreteslump", "machine", "autos", "forest", "pendulum", "solar", "sml", "pumadyn32nm", "kin40k"]
CLASSES = [
    "bupa",
    "pima",
    "vehicle",
    "vowel",
    "german",
    "crx",
    "mammographic",
    "saheart",
    "contraceptive",
    "segment",
    "phoneme",
]
LEAST_LOG_DENSITY = -20.0
SMALLEST_PROBABILITY = 1e-7  # a forest may give a class none
CHOSEN = (
    "How the defaults were chosen: depth and width, learned scales, the variational metric and its start are those of "
    "a prototype; the floor of the noise for rounded targets, the restarts of the step size and the number of draws by "
    "the density of a quarter of the training rows, held out, of split 0 of these tables. Quantile-normal inputs were "
    "tried there on nine tables and left out: better by 0.1 on one, by 0.02 on another, elsewhere no better or worse. "
    "The prototype had been chosen with test scores of a split in sight, so our columns may be a little too good."
)


class Rows(NamedTuple):
    """One split: raw columns, and targets as numbers or as classes 0, 1, ..."""

    x: pd.DataFrame
    y: np.ndarray
    x_new: pd.DataFrame
    y_new: np.ndarray

    def encoded(self) -> tuple[np.ndarray, np.ndarray]:
        """Columns of 0 and 1 for texts; what is missing is the median."""
        both = pd.get_dummies(pd.concat([self.x, self.x_new], ignore_index=True), dtype=float)
        both = both.fillna(both.iloc[: len(self.x)].median()).fillna(0.0).to_numpy(float)
        return both[: len(self.x)], both[len(self.x) :]

    def scaled(self) -> tuple[np.ndarray, np.ndarray]:
        """The same in standard deviations of the training rows."""
        x, x_new = self.encoded()
        mean, deviation = x.mean(0), x.std(0)
        deviation[deviation == 0] = 1.0
        return (x - mean) / deviation, (x_new - mean) / deviation


def tables() -> Iterator[tuple[str, str, list[Rows]]]:
    """(name, task, splits) of thirty tables."""
    for name, file in UCI.items():
        with np.load(DATA / "uci" / f"{file}.npz") as data:
            x, y, splits = pd.DataFrame(data["X"]), data["y"], list(zip(data["train"], data["test"], strict=True))
        x.columns = [f"x{i}" for i in range(x.shape[1])]
        yield name, "regression", [cut(x, y, *splits[number], number) for number in range(NUM_SPLITS)]
    for name in NUMBERS + CLASSES:
        frame = pd.read_csv(DATA / "tables" / f"{name}.csv")
        target = frame.columns[-1]
        task = "classification" if target == "class" else "regression"
        y = pd.factorize(frame[target], sort=True)[0] if task == "classification" else frame[target].to_numpy(float)
        orders = [np.random.default_rng(number).permutation(len(y)) for number in range(NUM_SPLITS)]
        fifth = len(y) // 5
        rows = [cut(frame.drop(columns=target), y, order[fifth:], order[:fifth], i) for i, order in enumerate(orders)]
        yield name, task, rows


def cut(x: pd.DataFrame, y: np.ndarray, train: np.ndarray, test: np.ndarray, number: int) -> Rows:
    """At most so many rows, numbers in standard deviations of the training rows."""
    rng = np.random.default_rng([number, len(y)])
    train, test = rng.permutation(train)[:TRAIN_ROWS], rng.permutation(test)[:TEST_ROWS]
    if y.dtype.kind == "f":
        y = (y - y[train].mean()) / y[train].std()
    parts = [part.reset_index(drop=True) for part in (x.iloc[train], x.iloc[test])]
    return Rows(parts[0], y[train], parts[1], y[test])


# Each method takes rows and returns log densities [N] of the test rows.


def posterity_regressor(rows: Rows) -> np.ndarray:
    from posterity import BayesianRegressor

    return BayesianRegressor().fit(rows.x, rows.y).log_prob(rows.x_new, rows.y_new)


def posterity_classifier(rows: Rows) -> np.ndarray:
    from posterity import BayesianClassifier

    model = BayesianClassifier().fit(rows.x, rows.y)
    return of_classes(model.classes_, model.predict_proba(rows.x_new), rows.y_new)


def gaussian(mean: np.ndarray, deviation: Any, y: np.ndarray) -> np.ndarray:
    return -0.5 * np.square((y - mean) / deviation) - np.log(deviation) - 0.5 * np.log(2 * np.pi)


def of_classes(classes: np.ndarray, probs: np.ndarray, y: np.ndarray) -> np.ndarray:
    whole = np.zeros((len(y), int(max(classes.max(), y.max())) + 1))
    whole[:, classes.astype(int)] = probs
    return np.log(np.maximum(whole[np.arange(len(y)), y], SMALLEST_PROBABILITY))


def with_residuals(make: Callable[[], Any], scaled: bool = False) -> Callable[[Rows], np.ndarray]:
    """A regressor with the variance of cross-validated residuals."""

    def log_prob(rows: Rows) -> np.ndarray:
        from sklearn.model_selection import cross_val_predict

        x, x_new = rows.scaled() if scaled else rows.encoded()
        deviation = np.std(rows.y - cross_val_predict(make(), x, rows.y, cv=5))
        return gaussian(make().fit(x, rows.y).predict(x_new), deviation, rows.y_new)

    return log_prob


def with_classes(make: Callable[[], Any], scaled: bool = False) -> Callable[[Rows], np.ndarray]:
    def log_prob(rows: Rows) -> np.ndarray:
        x, x_new = rows.scaled() if scaled else rows.encoded()
        model = make().fit(x, rows.y)
        return of_classes(np.asarray(model.classes_), model.predict_proba(x_new), rows.y_new)

    return log_prob


def forest_regressor(rows: Rows) -> np.ndarray:
    from sklearn.ensemble import RandomForestRegressor

    x, x_new = rows.encoded()
    forest = RandomForestRegressor(200, oob_score=True, random_state=0).fit(x, rows.y)
    return gaussian(forest.predict(x_new), np.std(rows.y - forest.oob_prediction_), rows.y_new)


def process_regressor(rows: Rows) -> np.ndarray:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x, x_new = rows.scaled()
    kernel = ConstantKernel(1.0) * RBF(np.full(x.shape[1], 3.0), (1e-2, 1e3)) + WhiteKernel(0.1, (1e-8, 1e1))
    mean, deviation = GaussianProcessRegressor(kernel).fit(x, rows.y).predict(x_new, return_std=True)
    return gaussian(mean, deviation, rows.y_new)


def ngboost_regressor(rows: Rows) -> np.ndarray:
    from ngboost import NGBRegressor

    x, x_new = rows.encoded()
    found = NGBRegressor(verbose=False, random_state=0).fit(x, rows.y).pred_dist(x_new)
    return gaussian(found.loc, found.scale, rows.y_new)


def catboost_regressor(rows: Rows) -> np.ndarray:
    from catboost import CatBoostRegressor

    x, x_new = rows.encoded()
    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", verbose=False, random_seed=0, thread_count=2)
    mean, variance = model.fit(x, rows.y).predict(x_new).T
    return gaussian(mean, np.sqrt(variance), rows.y_new)


def sklearn_peers() -> dict[str, dict[str, Callable[[Rows], np.ndarray]]]:
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
        RandomForestClassifier,
    )
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    return {
        "forest": {
            "regression": forest_regressor,
            "classification": with_classes(lambda: RandomForestClassifier(200, random_state=0)),
        },
        "boosting": {
            "regression": with_residuals(lambda: HistGradientBoostingRegressor(random_state=0)),
            "classification": with_classes(lambda: HistGradientBoostingClassifier(random_state=0)),
        },
        "MLP": {
            "regression": with_residuals(lambda: MLPRegressor(max_iter=500, random_state=0), scaled=True),
            "classification": with_classes(lambda: MLPClassifier(max_iter=500, random_state=0), scaled=True),
        },
        "GP": {"regression": process_regressor},
    }


def ngboost_classifier(rows: Rows) -> np.ndarray:
    from ngboost import NGBClassifier
    from ngboost.distns import k_categorical

    x, x_new = rows.encoded()
    num_classes = int(rows.y.max()) + 1
    model = NGBClassifier(Dist=k_categorical(num_classes), verbose=False, random_state=0).fit(x, rows.y)
    return of_classes(np.arange(num_classes), model.predict_proba(x_new), rows.y_new)


def catboost_rmse(rows: Rows) -> np.ndarray:
    from catboost import CatBoostRegressor

    return with_residuals(lambda: CatBoostRegressor(verbose=False, random_seed=0, thread_count=2))(rows)


def catboost_classifier(rows: Rows) -> np.ndarray:
    from catboost import CatBoostClassifier

    return with_classes(lambda: CatBoostClassifier(verbose=False, random_seed=0, thread_count=2))(rows)


METHODS: dict[str, dict[str, Callable[[Rows], np.ndarray]]] = {
    "posterity": {"regression": posterity_regressor, "classification": posterity_classifier},
    **sklearn_peers(),
    "NGBoost": {"regression": ngboost_regressor, "classification": ngboost_classifier},
    "CatBoost": {"regression": catboost_rmse, "classification": catboost_classifier},
    "CatBoost, own": {"regression": catboost_regressor},
}
IN_PEERS = ("NGBoost", "CatBoost", "CatBoost, own")  # of the environment that `make peers` makes


def measure(splits: list[Rows], method: Callable[[Rows], np.ndarray]) -> dict[str, Any]:
    """Of each split the mean negative log density and its standard error; seconds of a fit with its predictions."""
    scores, errors, seconds = [], [], []
    for rows in splits:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on convergence: all are taken as they are
            log_prob = np.maximum(method(rows), LEAST_LOG_DENSITY)
        seconds.append(time.perf_counter() - began)
        scores.append(-float(log_prob.mean()))
        errors.append(float(log_prob.std(ddof=1) / np.sqrt(len(log_prob))))
    return {"scores": scores, "errors": errors, "seconds": seconds}


def summary(found: dict[str, Any]) -> str:
    """The results as two tables, mean ranks, and how often ours is better than each peer."""
    lines = ["# Estimators at their defaults", "", "Written by `python benchmarks/estimators.py`; lower is better.", ""]
    lines += [CHOSEN, "", "Seconds are of each split, the first with compiling. A dash: not measured.", ""]
    for task, what in (("regression", "mean negative log density"), ("classification", "log loss")):
        chosen = {name: entry for name, entry in found.items() if entry["task"] == task}
        methods = [name for name in METHODS if any(name in entry for entry in chosen.values())]
        complete = [name for name in methods if all(name in entry for entry in chosen.values())]
        scores = pd.DataFrame(index=methods)
        for name, entry in chosen.items():
            scores[name] = [np.mean(entry[m]["scores"]) if m in entry else np.nan for m in methods]
        lines += [f"## {task.capitalize()}: {what}, mean of {NUM_SPLITS} splits", ""]
        lines += [f"| table | rows | {' | '.join(methods)} | seconds (ours) |", "|---" * (len(methods) + 3) + "|"]
        for name, entry in chosen.items():
            best = scores[name].idxmin()
            shown = {m: "-" if np.isnan(scores[name][m]) else f"{scores[name][m]:.3f}" for m in methods}
            cells = [f"**{shown[m]}**" if m == best else shown[m] for m in methods]
            seconds = ", ".join(f"{one:.0f}" for one in entry["posterity"]["seconds"])
            lines.append(f"| {name} | {entry['rows']} | {' | '.join(cells)} | {seconds} |")
        ranks = scores.loc[complete].rank().mean(axis=1)
        lines += [
            "| mean rank | | " + " | ".join(f"{ranks[m]:.2f}" if m in complete else "-" for m in methods) + " | |"
        ]
        wins = {peer: int((scores.loc["posterity"] < scores.loc[peer]).sum()) for peer in methods[1:]}
        first = int((scores.idxmin() == "posterity").sum())
        pairs = ", ".join(f"{peer} on {count} of {scores.loc[peer].notna().sum()}" for peer, count in wins.items())
        behind = {}
        for peer in methods[1:]:
            gap = scores.loc["posterity"] - scores.loc[peer]
            behind[peer] = f"{peer} by {gap.max():.2f} ({gap.idxmax()})"
        lines += [
            "",
            f"Posterity is the best on {first} of {len(chosen)} tables; it is better than {pairs}. "
            f"Where it is furthest behind: {', '.join(behind.values())}.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    again = sys.argv[1:]
    unknown = set(again) - set(METHODS)
    if unknown:
        raise SystemExit(f"{', '.join(unknown)} is not known; choose from {', '.join(METHODS)}.")
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for key, task, splits in tables():
        entry = found.setdefault(key, {"task": task})
        entry["rows"] = len(splits[0].y)
        for name, of_task in METHODS.items():
            if task in of_task and (name in again or (not again and name not in entry and name not in IN_PEERS)):
                entry[name] = measure(splits, of_task[task])
                print(key, name, json.dumps(entry[name]), flush=True)
                RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(summary(found))
    print(summary(found))


if __name__ == "__main__":
    main()
