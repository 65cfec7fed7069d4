"""Izmailov et al. 2021, IMDB: a convolutional LSTM on reviews, by every method that takes minibatches, beside theirs.

The last 100 tokens of a review, 20,000 words, 25,000 reviews to train on and as many to test on; prior N(0, 1/40) on
all weights. Their runs took 300 to 10,000 epochs on many accelerators; ours take tens, so that all of them end within
three hours on two cores. One point estimate, theirs by SGD and by Adam here, is where Bayes by Backprop and the
samplers begin. An earlier run, whose word vectors began too long, had been scored on the test reviews; the length was
then chosen, on training reviews held out for that, and epochs were added.
The rate of SGLD is theirs, per datum; that of SGHMC was chosen on such held-out reviews too. One prior and all training
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
from posterity.comparison import LABELS
from posterity.data import Loaded, load
from posterity.inference import Method
from posterity.networks import cnn_lstm
from posterity.posterior import Posterior
from posterity.studies.bars import bars
from posterity.studies.rows import Row
from posterity.studies.study import Record, Size, published_file

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
THEIRS = {
    "map": " of Adam, 500 of SGD there",
    "deep_ensemble": ", 500 there; ten may fit the training reviews too closely, for 3 of MAP had named 0.85 of "
    "held-out ones right",
    "bayes_by_backprop": " after the point estimate's, 300 there",
    "sgld": " after the point estimate's, 10,000 there",
    "sghmc": " after the point estimate's",
    "cyclical": " after the point estimate's",
}
PRIORS = {  # theirs; ours is that of their HMC for all methods
    "map": "weight decay 3",
    "deep_ensemble": "weight decay 3",
    "sgld": "1/5",
    "bayes_by_backprop": "1/5",
}
SEEN = (
    "; more epochs than in an earlier run whose test scores were seen, after which the word vectors' length was also "
    "chosen, on held-out training reviews"
)
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
        "epochs": {
            "map": 10,
            "mc_dropout": 10,
            "deep_ensemble": 10,
            "bayes_by_backprop": 10,
            "sgld": 20,
            "sghmc": 20,
            "cyclical": 20,
        },
        "members": 5,
        "draws": 40,
        "seed": 0,
    }
    small = {"embedding": 16, "filters": 8, "units": 8}
    if size == "quick":
        epochs = {"map": 3, "deep_ensemble": 3, "sghmc": 5}
        return full | {"rows": 2_000, "test_rows": 1_000, "epochs": epochs, "members": 2, "draws": 10, "network": small}
    if size == "tiny":
        return full | {"rows": 80, "test_rows": 80, "epochs": {"map": 1}, "members": 2, "draws": 2, "network": small}
    return full


def methods(chosen: dict[str, Any], point: Any) -> dict[str, Method]:
    """Those that the settings name; `point` is where some of them begin."""
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
        "mc_dropout": lambda: MCDropout(**descent("mc_dropout")),
        "deep_ensemble": lambda: DeepEnsemble(**descent("deep_ensemble"), num_members=chosen["members"]),
        "bayes_by_backprop": lambda: BayesByBackprop(**descent("bayes_by_backprop"), initial_scale=1e-2, start=point),
        "sgld": lambda: SGLD(**sampling("sgld"), learning_rate=rates["sgld"]),
        "sghmc": lambda: SGHMC(**sampling("sghmc"), learning_rate=rates["sghmc"]),
        "cyclical": cyclical,
    }
    return {name: made[name]() for name in chosen["epochs"]}


def run(record: Record) -> Iterator[Row]:
    rows: list[Row] = []
    for row in _all_rows(record):
        rows.append(row)
        yield row
    record.picture("bars", bars(rows))


def _all_rows(record: Record) -> Iterator[Row]:
    chosen = record.settings
    if record.size != "tiny":
        yield from _reference_rows(record)
    store = record.folder / f"{record.stem}-map.store"
    found = {"map": record.once("map", lambda: _point_estimate(store, chosen))}
    others = [name for name in chosen["epochs"] if name != "map"]
    if not store.exists() and any(name not in record.parts for name in others):
        _point_estimate(store, chosen)  # of another machine, or thrown away since
    found |= record.each({name: (name, store, chosen) for name in others}, run_method)
    for name, epochs in chosen["epochs"].items():
        remark = f"{epochs} epochs{THEIRS.get(name, '')}"
        if name == "deep_ensemble":
            remark += f"; {chosen['members']} members, 50 there"
        if name in PRIORS:
            ours = f"prior variance 1/{1 / chosen['prior_variance']:g} and {chosen['rows']:,} reviews"
            remark += f"; {ours}, {PRIORS[name]} and 20,000 there"
        yield from _rows(name, found[name], remark + (SEEN if record.size == "full" else ""))


def _point_estimate(store: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    """MAP, kept for the methods that begin there."""
    data, model = load("imdb"), build("map", chosen)
    method = methods(chosen, None)["map"]
    posterior = fit(model, method, balanced(data, chosen["rows"]), seed=chosen["seed"], progress=False)
    shutil.rmtree(store, ignore_errors=True)  # of other settings
    posterior.save(store)
    return _score(posterior, data, chosen)


def run_method(name: str, store: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    data = load("imdb")
    chains = chosen["members"] if name == "deep_ensemble" else 1
    method = methods(chosen, load_posterior(store))[name]
    train = balanced(data, chosen["rows"])
    posterior = fit(build(name, chosen), method, train, chains=chains, seed=chosen["seed"], progress=False)
    return _score(posterior, data, chosen)


def build(name: str, chosen: dict[str, Any]) -> Model:
    network = cnn_lstm(dropout=chosen["dropout"] if name == "mc_dropout" else 0.0, **chosen["network"])
    return Model(network, Categorical(2), Normal(0.0, float(np.sqrt(chosen["prior_variance"]))))


def _score(posterior: Posterior, data: Loaded, chosen: dict[str, Any]) -> dict[str, Any]:
    test = slice(0, None, max(1, len(data.y_test) // chosen["test_rows"]))
    draws = None if posterior.family.num_draws else chosen["draws"]
    return scores(posterior.predict(data.x_test[test], num_draws=draws).probs, data.y_test[test])


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


def _reference_rows(record: Record) -> list[Row]:
    """The predictions of their HMC, scored by our metrics: what every method is after."""

    def reference() -> dict[str, Any]:
        with np.load(published_file("hmc_reference/hmc_reference.npz"), allow_pickle=False) as arrays:
            return scores(arrays["imdb_probs"].astype(float), arrays["imdb_labels"].astype(int))

    return _rows("hmc", record.once("hmc", reference), "their stored predictions, our metrics; published: three chains")


def _rows(name: str, found: dict[str, Any], remark: str) -> list[Row]:
    published = PUBLISHED.get(name, (None, None, None))
    return [
        Row(
            f"{'MAP (SGD there)' if name == 'map' else LABELS[name]}: {metric}",
            found[metric][0],
            found[metric][1],
            value,
            None if value is None else error,
            remark=remark,
        )
        for metric, value, error in zip(METRICS, published, READING_ERROR, strict=True)
    ]
