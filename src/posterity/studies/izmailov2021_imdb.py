"""Izmailov et al. 2021, IMDB: a convolutional LSTM on reviews, by every method that takes minibatches, beside theirs.

The last 100 tokens of a review, 20,000 words, 25,000 reviews to train on and as many to test on; prior N(0, 1/40) on
all weights. Their runs took 300 to 10,000 epochs on many accelerators; ours take 4 to 6, those of the samplers and of
Bayes by Backprop after the 4 of a point estimate, so that all of them end within an hour on two cores. The rates of
the samplers are per datum: their steps, on the sum over 20,000 reviews, times 20,000. The point estimate, theirs by
SGD, is by Adam here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
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
from posterity.comparison import LABELS
from posterity.data import Loaded, load
from posterity.inference import Method
from posterity.networks import cnn_lstm
from posterity.studies.rows import Row
from posterity.studies.study import Record, Size, published_file

TITLE = "Reviews by a convolutional LSTM"
REFERENCE = (
    "Izmailov et al. 2021, comparison of methods on IMDB (read off a figure: accuracy and calibration error ± 0.003, "
    "log-likelihood ± 0.01)."
)
LEFT_OUT = "HMC itself, which took many accelerators, and the preconditioned cyclical sampler"
PRIOR_VARIANCE = 1 / 40
BATCH = 80
PUBLISHED = {  # accuracy, log-likelihood, calibration error
    "hmc": (0.868, -0.308, 0.0324),
    "sgd": (0.830, -0.753, 0.136),
    "deep ensemble": (0.859, -0.353, 0.043),
    "sgld": (0.861, -0.318, 0.007),
    "bayes by backprop": (0.854, -0.347, 0.037),
}
THEIRS = {
    "sgd": " of Adam, 500 of SGD there",
    "deep ensemble": ", 500 there",
    "bayes by backprop": " after the point estimate's, 300 there",
    "sgld": " after the point estimate's, 10,000 there",
}
READING_ERROR = (0.003, 0.01, 0.003)
NAMES = {"sgd": "MAP (theirs: SGD)", "cyclical sghmc": LABELS["cyclical"]}
METRICS = ("accuracy", "log-likelihood", "calibration error")


def settings(size: Size) -> dict[str, Any]:
    full = {
        "rows": 25_000,
        "test_rows": 25_000,
        "network": {},
        "epochs": {
            "sgd": 4,
            "mc dropout": 6,
            "deep ensemble": 4,
            "bayes by backprop": 5,
            "sgld": 6,
            "sghmc": 6,
            "cyclical sghmc": 6,
        },
        "members": 3,
        "draws": 40,
        "seed": 0,
    }
    small = {"embedding": 16, "filters": 8, "units": 8}
    if size == "quick":
        epochs = {"sgd": 3, "deep ensemble": 3, "sghmc": 5}
        return full | {"rows": 2_000, "test_rows": 1_000, "epochs": epochs, "members": 2, "draws": 10, "network": small}
    if size == "tiny":
        epochs = {"sgd": 1}
        return full | {"rows": 80, "test_rows": 80, "epochs": epochs, "members": 2, "draws": 2, "network": small}
    return full


def methods(chosen: dict[str, Any]) -> dict[str, Method]:
    """Those that the settings name."""
    per_epoch = -(-chosen["rows"] // BATCH)

    def descent(name: str, rate: float = 1e-3) -> dict[str, Any]:
        count = chosen["epochs"].get(name, 1) * per_epoch
        return {"num_steps": count, "batch_size": BATCH, "learning_rate": optax.cosine_decay_schedule(rate, count)}

    def sampling(name: str) -> dict[str, Any]:
        """Half of the epochs are burnt in."""
        half = max(1, chosen["epochs"].get(name, 1) * per_epoch // 2)
        return {"num_draws": chosen["draws"], "num_burn_in": half, "thin": max(1, half // chosen["draws"])}

    point = MAP(**descent("sgd"))
    cycle = max(1, chosen["epochs"].get("cyclical sghmc", 1) * per_epoch // 4)
    each = max(1, chosen["draws"] // 4)
    made = {
        "sgd": lambda: point,
        "mc dropout": lambda: MCDropout(**descent("mc dropout")),
        "deep ensemble": lambda: DeepEnsemble(**descent("deep ensemble"), num_members=chosen["members"]),
        "bayes by backprop": lambda: BayesByBackprop(**descent("bayes by backprop"), initial_scale=1e-2, start=point),
        "sgld": lambda: SGLD(**sampling("sgld"), learning_rate=0.2, batch_size=BATCH, start=point),
        "sghmc": lambda: SGHMC(**sampling("sghmc"), learning_rate=6e-3, batch_size=BATCH, start=point),
        "cyclical sghmc": lambda: Cyclical(
            base=SGHMC(learning_rate=6e-3, momentum=0.95, batch_size=BATCH),
            num_cycles=4,
            cycle_length=cycle,
            draws_per_cycle=each,
            thin=max(1, cycle // (4 * each)),
            start=point,
        ),
    }
    return {name: made[name]() for name in chosen["epochs"]}


def run(record: Record) -> Iterator[Row]:
    chosen = record.settings
    if record.size != "tiny":
        yield from _reference_rows(record)
    found = record.each({name: (name, chosen) for name in chosen["epochs"]}, run_method)
    for name, epochs in chosen["epochs"].items():
        remark = f"{epochs} epochs{THEIRS.get(name, '')}"
        if name == "deep ensemble":
            remark += f", {chosen['members']} members, 50 there"
        yield from _rows(name, found[name], remark)


def run_method(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    data = load("imdb")
    network = cnn_lstm(dropout=0.3 if name == "mc dropout" else 0.0, **chosen["network"])
    model = Model(network, Categorical(2), Normal(0.0, float(np.sqrt(PRIOR_VARIANCE))))
    train = balanced(data, chosen["rows"])
    chains = chosen["members"] if name == "deep ensemble" else 1
    posterior = fit(model, methods(chosen)[name], train, chains=chains, seed=chosen["seed"], progress=False)
    test = slice(0, None, max(1, len(data.y_test) // chosen["test_rows"]))
    draws = None if posterior.family.num_draws else chosen["draws"]
    probs = posterior.predict(data.x_test[test], num_draws=draws).probs
    jax.clear_caches()
    return scores(probs, data.y_test[test])


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
            f"{NAMES.get(name) or LABELS[name.replace(' ', '_')]}: {metric}",
            found[metric][0],
            found[metric][1],
            value,
            None if value is None else error,
            remark=remark,
        )
        for metric, value, error in zip(METRICS, published, READING_ERROR, strict=True)
    ]
