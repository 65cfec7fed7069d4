"""Izmailov et al. 2021, IMDB: a convolutional LSTM on reviews, by every method that takes minibatches, beside theirs.

The last 100 tokens of a review, 20,000 words, 25,000 reviews to train on and as many to test on; prior N(0, 1/40) on
all weights. Their runs took 300 to 10,000 epochs on many accelerators; ours take tens, so that all of them end within
three hours on two cores. The point estimate is trained to the end, theirs by SGD and by Adam here; a second one is
stopped where training reviews held out for that are predicted best. From there Bayes by Backprop and the samplers
begin, and so long the members of the ensemble train: fifty members of theirs average out what each has learnt by
heart, ten cannot. MC dropout is stopped likewise, by reviews held out from it.

Two earlier runs had been scored on the test reviews: one whose word vectors began too long, whose length was then
chosen on held-out reviews and whose epochs were raised, and one whose methods all began, or trained, to the end.
The rate of SGLD is theirs, per datum; that of SGHMC was chosen on held-out reviews too. One prior and all training
reviews serve every method here; theirs have 20,000 reviews, and priors of their own beside that of HMC.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optax

from posterity import (
    MAP,
    SGHMC,
    SGLD,
    BayesByBackprop,
    Categorical,
    Cyclical,
    DeepEnsemble,
    MCDropout,
    Model,
    Normal,
    fit,
    metrics,
)
from posterity import load as load_posterior
from posterity.datasets import Loaded, load
from posterity.inference import METHODS, Method
from posterity.networks import cnn_lstm
from posterity.posterior.posterior import Posterior
from posterity.studies.bars import bars
from posterity.studies.rows import Row
from posterity.studies.study import Size, StudyLog, published_file

TITLE = "Reviews by a convolutional LSTM"
REFERENCE = (
    "Izmailov et al. 2021, comparison of methods on IMDB (read off a figure: accuracy and calibration error ± 0.003, "
    "log-likelihood ± 0.01)."
)
LEFT_OUT = "HMC itself, which took many accelerators, and the preconditioned cyclical sampler"
PUBLISHED = {  # accuracy, log-likelihood, calibration error
    "hmc": (0.868, -0.308, 0.0324),
    "map": (0.830, -0.753, 0.136),
    "deep_ensemble": (0.859, -0.353, 0.043),
    "sgld": (0.861, -0.318, 0.007),
    "bayes_by_backprop": (0.854, -0.347, 0.037),
}
NAMES = {name: method.card.label for name, method in METHODS.items()}
NAMES |= {"map": "MAP (SGD there)", "early_map": "MAP, stopped early"}
BY_HELD_OUT = ", as many as held-out training reviews were predicted best after"
THEIRS = {
    "map": " of Adam, 500 of SGD there",
    "early_map": BY_HELD_OUT,
    "mc_dropout": BY_HELD_OUT,
    "deep_ensemble": " as MAP stopped early, 500 there",
    "bayes_by_backprop": " after MAP stopped early, 300 after SGD there",
    "sgld": " after MAP stopped early, 10,000 there",
    "sghmc": " after MAP stopped early",
    "cyclical": " after MAP stopped early",
}
PRIORS = {  # theirs; ours is that of their HMC for all methods
    "map": "weight decay 3",
    "deep_ensemble": "weight decay 3",
    "sgld": "1/5",
    "bayes_by_backprop": "1/5",
}
SEEN = "; epochs and the word vectors' length were changed after two earlier runs whose test scores were seen"
START = "early_map"  # where Bayes by Backprop and the samplers begin
READING_ERROR = (0.003, 0.01, 0.003)
METRICS = ("accuracy", "log-likelihood", "calibration error")


def settings(size: Size) -> dict[str, Any]:
    full = {
        "rows": 25_000,
        "test_rows": 25_000,
        "network": {"embedding": 128, "filters": 64, "units": 128},
        "dropout": 0.3,
        "prior_variance": 1 / 40,
        "batch_size": 80,
        "learning_rates": {"descent": 1e-3, "sgld": 0.2, "sghmc": 0.02},
        "tried_epochs": [2, 3, 5],  # of the point estimate that is stopped early, and of MC dropout
        "held_out": 5_000,  # of the rows, to choose among them by
        # None: as many as were chosen.
        "epochs": {
            "map": 10,
            "early_map": None,
            "mc_dropout": None,
            "deep_ensemble": None,
            "bayes_by_backprop": 10,
            "sgld": 20,
            "sghmc": 20,
            "cyclical": 20,
        },
        "members": 10,
        "draws": 40,
        "seed": 0,
    }
    small = {"embedding": 16, "filters": 8, "units": 8}
    if size == "quick":
        few = {"rows": 2_000, "test_rows": 1_000, "tried_epochs": [1, 3], "held_out": 500, "members": 2, "draws": 10}
        epochs = {"map": 3, "early_map": None, "deep_ensemble": None, "sghmc": 5}
        return full | few | {"epochs": epochs, "network": small}
    if size == "tiny":
        few = {"rows": 80, "test_rows": 80, "tried_epochs": [1], "members": 2, "draws": 2}
        return full | few | {"epochs": {"early_map": None}, "network": small}
    return full


def methods(chosen: dict[str, Any], point: Any) -> dict[str, Method]:
    """Those that the settings name, with their epochs; `point` is where some of them begin."""
    batch, rates = chosen["batch_size"], chosen["learning_rates"]
    per_epoch = -(-chosen["rows"] // batch)

    def descent(name: str) -> dict[str, Any]:
        count = chosen["epochs"][name] * per_epoch
        schedule = optax.cosine_decay_schedule(rates["descent"], count)
        return {"num_steps": count, "batch_size": batch, "learning_rate": schedule}

    def sampling(name: str) -> dict[str, Any]:
        """Half of the epochs are burnt in."""
        half = max(1, chosen["epochs"][name] * per_epoch // 2)
        thin = max(1, half // chosen["draws"])
        return {"num_draws": chosen["draws"], "num_burn_in": half, "thin": thin, "batch_size": batch, "start": point}

    def cyclical() -> Cyclical:
        cycle = max(1, chosen["epochs"]["cyclical"] * per_epoch // 4)
        each = max(1, chosen["draws"] // 4)
        base = SGHMC(learning_rate=rates["sghmc"], momentum=0.95, batch_size=batch)
        thin = max(1, cycle // (4 * each))
        return Cyclical(base, num_cycles=4, cycle_length=cycle, draws_per_cycle=each, thin=thin, start=point)

    made = {
        "map": lambda: MAP(**descent("map")),
        "early_map": lambda: MAP(**descent("early_map")),
        "mc_dropout": lambda: MCDropout(**descent("mc_dropout")),
        "deep_ensemble": lambda: DeepEnsemble(**descent("deep_ensemble"), num_members=chosen["members"]),
        "bayes_by_backprop": lambda: BayesByBackprop(**descent("bayes_by_backprop"), initial_scale=1e-2, start=point),
        "sgld": lambda: SGLD(**sampling("sgld"), learning_rate=rates["sgld"]),
        "sghmc": lambda: SGHMC(**sampling("sghmc"), learning_rate=rates["sghmc"]),
        "cyclical": cyclical,
    }
    return {name: made[name]() for name in chosen["epochs"]}


def run(log: StudyLog) -> Iterator[Row]:
    rows: list[Row] = []
    for row in _all_rows(log):
        rows.append(row)
        yield row
    log.picture("bars", bars(rows))


def _all_rows(log: StudyLog) -> Iterator[Row]:
    if log.size != "tiny":
        yield from _reference_rows(log)
    chosen: dict[str, Any] = log.settings | {"epochs": _epochs(log)}
    store = log.folder / f"{log.stem}-{START}.store"
    found = {START: log.once(START, lambda: _start(store, chosen))}
    others = [name for name in chosen["epochs"] if name != START]
    if not store.exists() and any(name not in log.parts for name in others):
        _start(store, chosen)  # of another machine, or thrown away since
    found |= log.each({name: (name, store, chosen) for name in others}, run_method)
    for name, epochs in chosen["epochs"].items():
        remark = f"{epochs} epochs{THEIRS.get(name, '')}"
        if name == "deep_ensemble":
            remark += f"; {chosen['members']} members, 50 there"
        if name in PRIORS:
            ours = f"prior variance 1/{1 / chosen['prior_variance']:g} and {chosen['rows']:,} reviews"
            remark += f"; {ours}, {PRIORS[name]} and 20,000 there"
        yield from _rows(name, found[name], remark + (SEEN if log.size == "full" else ""))


def _epochs(log: StudyLog) -> dict[str, int]:
    """Of every method: as the settings have them, or those after which held-out reviews are predicted best."""
    chosen = log.settings
    best: dict[str, int] = {}
    for name in (name for name in (START, "mc_dropout") if name in chosen["epochs"]):
        tried = {count: f"{name}, {count} epochs" for count in chosen["tried_epochs"]}
        if len(tried) == 1:
            best[name] = chosen["tried_epochs"][0]
            continue
        found = log.each({key: (name, count, chosen) for count, key in tried.items()}, train_and_validate)
        best[name] = max(tried, key=lambda count: found[tried[count]]["log-likelihood"][0])
    return {name: count or best.get(name, best[START]) for name, count in chosen["epochs"].items()}


def train_and_validate(name: str, epochs: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """Scores on reviews that were held out, which are not the first ones: those are of one kind."""
    reviews, labels = balanced(load("imdb"), chosen["rows"])
    order = np.random.default_rng(1).permutation(len(labels))
    aside, kept = order[: chosen["held_out"]], order[chosen["held_out"] :]
    chosen = chosen | {"rows": len(kept), "epochs": {name: epochs}}
    method = methods(chosen, None)[name]
    posterior = fit(build(name, chosen), method, (reviews[kept], labels[kept]), seed=chosen["seed"], progress=False)
    return _score(posterior, reviews[aside], labels[aside], chosen)


def _start(store: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    """The point estimate, kept for the methods that begin there."""
    data, model = load("imdb"), build(START, chosen)
    method = methods(chosen, None)[START]
    posterior = fit(model, method, balanced(data, chosen["rows"]), seed=chosen["seed"], progress=False)
    shutil.rmtree(store, ignore_errors=True)  # of other settings
    posterior.save(store)
    return _test(posterior, data, chosen)


def run_method(name: str, store: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    data = load("imdb")
    chains = chosen["members"] if name == "deep_ensemble" else 1
    method = methods(chosen, load_posterior(store))[name]
    train = balanced(data, chosen["rows"])
    posterior = fit(build(name, chosen), method, train, chains=chains, seed=chosen["seed"], progress=False)
    return _test(posterior, data, chosen)


def build(name: str, chosen: dict[str, Any]) -> Model:
    network = cnn_lstm(dropout=chosen["dropout"] if name == "mc_dropout" else 0.0, **chosen["network"])
    return Model(network, Categorical(2), Normal(0.0, float(np.sqrt(chosen["prior_variance"]))))


def _test(posterior: Posterior, data: Loaded, chosen: dict[str, Any]) -> dict[str, Any]:
    test = slice(0, None, max(1, len(data.y_test) // chosen["test_rows"]))
    return _score(posterior, data.x_test[test], data.y_test[test], chosen)


def _score(posterior: Posterior, x: np.ndarray, y: np.ndarray, chosen: dict[str, Any]) -> dict[str, Any]:
    draws = None if posterior.family.num_draws else chosen["draws"]
    return scores(posterior.predict(x, num_draws=draws).probs, y)


def balanced(data: Loaded, count: int) -> tuple[np.ndarray, np.ndarray]:
    """So many reviews of either kind alike, in a fixed random order."""
    order = np.random.default_rng(0).permutation(len(data.y_train))
    keep = np.concatenate([order[data.y_train[order] == label][: count // 2] for label in (0, 1)])
    return data.x_train[keep], data.y_train[keep]


def scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Each with its standard error; the calibration error as in bnn_hmc, with 20 bins of equal mass."""
    nll = metrics.negative_log_likelihood(np.log(np.maximum(probs[np.arange(len(labels)), labels], 1e-12)))
    found = {
        "accuracy": metrics.accuracy(probs, labels),
        "log-likelihood": metrics.Estimate(-nll.value, nll.standard_error),
        "calibration error": metrics.calibration_error(probs, labels, num_bins=20, scheme="equal_mass_strict"),
    }
    return {name: [one.value, one.standard_error] for name, one in found.items()}


def _reference_rows(log: StudyLog) -> list[Row]:
    """The predictions of their HMC, scored by our metrics: what every method is after."""

    def reference() -> dict[str, Any]:
        with np.load(published_file("hmc_reference/hmc_reference.npz"), allow_pickle=False) as arrays:
            return scores(arrays["imdb_probs"].astype(float), arrays["imdb_labels"].astype(int))

    return _rows("hmc", log.once("hmc", reference), "their stored predictions, our metrics; published: three chains")


def _rows(name: str, found: dict[str, Any], remark: str) -> list[Row]:
    published = PUBLISHED.get(name, (None, None, None))
    return [
        Row(
            f"{NAMES[name]}: {metric}",
            found[metric][0],
            found[metric][1],
            value,
            None if value is None else error,
            remark=remark,
        )
        for metric, value, error in zip(METRICS, published, READING_ERROR, strict=True)
    ]
