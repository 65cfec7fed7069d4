"""Unfamiliar images: a network that has seen digits meets clothes and letters, by every method that takes minibatches.

The score of an image is the predictive entropy, the mutual information of label and weights, or one minus the largest
probability; the area under the ROC curve is the chance that an unfamiliar image scores above a digit. HMC, NUTS and
MILE need all rows at every step and are left out at 60,000 of them: izmailov2021-small has the same areas on fewer
digits for every method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optax

from posterity import (
    MAP,
    MLE,
    SGHMC,
    SGLD,
    SWAG,
    BayesByBackprop,
    Categorical,
    Cyclical,
    DeepEnsemble,
    Laplace,
    MCDropout,
    Model,
    Normal,
    fit,
    metrics,
    mlp,
)
from posterity import prior as make_prior
from posterity.comparison import LABELS
from posterity.data import load
from posterity.inference import Method
from posterity.networks import lenet
from posterity.prediction import Prediction
from posterity.studies.rows import Row
from posterity.studies.study import Record, Size, mean_and_error

TITLE = "Unfamiliar images: digits against clothes and letters"
REFERENCE = (
    "Daxberger et al. 2021, Laplace Redux, Table 1 (MNIST; mean over several unfamiliar sets), for orientation: its "
    "numbers as a reproduction has them, to 1-2 %."
)
LEFT_OUT = (
    "CIFAR-10 and its residual network; HMC, NUTS and MILE, which need all rows at every step: their areas, on 3,000 "
    "digits, stand with the digits of izmailov2021-small"
)
PUBLISHED = {  # AUROC of a LeNet by maximum probability
    "map": 0.965,
    "deep_ensemble": 0.975,
    "bayes_by_backprop": 0.959,
    "cyclical": 0.961,
    "swag": 0.963,
    "laplace": 0.957,  # all of its hyper-parameters tuned; ours is the last layer's, not tuned
}
UNFAMILIAR = ("fashion_mnist", "notmnist")
SCORES = ("entropy", "mutual information", "maximum probability")
ALL = ["mle", "map", "mc_dropout", "bayes_by_backprop", "deep_ensemble", "laplace", "swag", "sgld", "sghmc", "cyclical"]
STARTED = ("sgld", "sghmc", "cyclical")
SAMPLERS = (
    "from MAP, at a hundred times the default rate, after a first run from scratch had 7-9 % of test digits wrong"
)
POINTS = ("mle", "map")  # one weight vector: no mutual information


def settings(size: Size) -> dict[str, Any]:
    full = {
        "network": "lenet",
        "rows": 60_000,
        "test_rows": 10_000,
        "epochs": 5,
        "draws": 50,
        "methods": ALL,
        "prior_scale": float(np.sqrt(2.0)),  # over sqrt(fan-in)
        "dropout": 0.2,
        "batch_size": 128,
        "learning_rates": {"descent": 2e-3, "sgld": 0.1, "sghmc": 0.01},
        "members": 5,
        "seed": 0,
    }
    if size == "quick":
        few = ["map", "mc_dropout", "deep_ensemble", "laplace"]
        return full | {"network": "mlp", "rows": 5_000, "test_rows": 1_000, "epochs": 5, "draws": 20, "methods": few}
    if size == "tiny":
        few = ["map", "deep_ensemble"]
        return full | {"network": "mlp", "rows": 300, "test_rows": 100, "epochs": 3, "draws": 5, "methods": few}
    return full


def methods(chosen: dict[str, Any]) -> dict[str, Method]:
    num_rows, draws, rates = chosen["rows"], chosen["draws"], chosen["learning_rates"]
    batch = min(chosen["batch_size"], num_rows)
    steps = chosen["epochs"] * -(-num_rows // batch)

    def descent(times: int = 1) -> dict[str, Any]:
        count = times * steps
        schedule = optax.cosine_decay_schedule(rates["descent"], count)
        return {"num_steps": count, "batch_size": batch, "learning_rate": schedule}

    thin = max(1, steps // draws)
    sampler: dict[str, Any] = {"num_draws": draws, "num_burn_in": steps, "thin": thin, "batch_size": batch}
    sampler["start"] = MAP(**descent())
    return {
        "mle": MLE(**descent()),
        "map": MAP(**descent()),
        "mc_dropout": MCDropout(**descent(2)),
        "bayes_by_backprop": BayesByBackprop(**descent(3)),
        "deep_ensemble": DeepEnsemble(**descent(), num_members=chosen["members"]),
        "laplace": Laplace(start=MAP(**descent()), structure="last_layer"),
        "swag": SWAG(start=MAP(**descent()), num_steps=steps, snapshot_every=max(1, steps // 40), batch_size=batch),
        "sgld": SGLD(**sampler, learning_rate=rates["sgld"]),
        "sghmc": SGHMC(**sampler, learning_rate=rates["sghmc"]),
        "cyclical": Cyclical(
            base=SGHMC(batch_size=batch, learning_rate=rates["sghmc"]),
            num_cycles=4,
            cycle_length=max(steps // 2, 4),
            draws_per_cycle=max(1, draws // 4),
            thin=max(1, thin // 8),
            start=sampler["start"],
        ),
    }


def build(chosen: dict[str, Any], method: str) -> Model:
    rate = chosen["dropout"] if method == "mc_dropout" else 0.0
    network = lenet(dropout=rate) if chosen["network"] == "lenet" else mlp((50,), dropout=rate)
    return Model(network, Categorical(10), make_prior(Normal(0.0, chosen["prior_scale"]), fan_in=True))


def run(record: Record) -> Iterator[Row]:
    chosen = record.settings
    found = record.each({name: (name, chosen) for name in chosen["methods"]}, run_method)
    for name in chosen["methods"]:
        yield from _rows(name, found[name])


def run_method(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Test error, and the areas of each score for each unfamiliar set."""
    data, count = load("mnist"), chosen["test_rows"]
    train = (scaled(data.x_train[: chosen["rows"]]), data.y_train[: chosen["rows"]])
    method = methods(chosen)[name]
    chains = None if name in ("deep_ensemble", *POINTS) else 1
    posterior = fit(build(chosen, name), method, train, chains=chains, seed=chosen["seed"], progress=False)
    draws = None if posterior.family.num_draws else chosen["draws"]

    def predict(images: np.ndarray) -> Prediction:
        return posterior.predict(scaled(images[:count]), num_draws=draws)

    familiar = predict(data.x_test)
    wrong = familiar.label != data.y_test[:count]
    return {"error": [float(value or 0.0) for value in mean_and_error(wrong)], **areas(familiar, predict)}


def areas(familiar: Prediction, predict: Callable[[np.ndarray], Prediction]) -> dict[str, list[float]]:
    """Of each score for each unfamiliar set, with its standard error; `predict` is given the set's test images."""
    known, found = scores(familiar), {}
    for strange in UNFAMILIAR:
        unfamiliar = scores(predict(load(strange).x_test))
        for score, inside in known.items():
            both = np.concatenate([inside, unfamiliar[score]])
            area = metrics.auroc(both, np.arange(len(both)) >= len(inside))
            found[f"{strange}, {score}"] = [area.value, area.standard_error]
    return found


def scores(prediction: Prediction) -> dict[str, np.ndarray]:
    """Large for an image that the posterior does not know; one weight vector has no mutual information with it."""
    found = {"entropy": prediction.total, "maximum probability": 1 - prediction.probs.max(-1)}
    if prediction.num_draws > 1:
        found["mutual information"] = prediction.mutual_information
    return found


def scaled(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32) / 255


def _rows(name: str, found: dict[str, Any]) -> list[Row]:
    label = LABELS[name]
    rows = [Row(f"{label}: test error on MNIST", *found["error"], remark=SAMPLERS if name in STARTED else "")]
    for strange in UNFAMILIAR:
        for score in SCORES:
            if f"{strange}, {score}" not in found:
                continue
            published = PUBLISHED.get(name) if score == "maximum probability" else None
            remark = "published: mean over other unfamiliar sets" if published else ""
            heading, (area, error) = f"{label}: AUROC, {strange}, {score}", found[f"{strange}, {score}"]
            rows.append(Row(heading, area, error, published, remark=remark, comparable=False))
    return rows
