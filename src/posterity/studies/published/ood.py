"""Unfamiliar images: a network that has seen digits meets clothes and letters, by every method that takes minibatches.

The score of an image is the predictive entropy, the mutual information of label and weights, or one minus the largest
probability; the area under the ROC curve is the chance that an unfamiliar image scores above a digit. HMC, NUTS and
MILE need all rows at every step and are left out at 60,000 of them: izmailov2021-small has the same areas on fewer
digits for every method. Budgets are not equal: Bayes by Backprop has three times the epochs of MAP, MC dropout twice;
Laplace, SWAG and the samplers begin where MAP ends, and the samplers add twice its epochs.
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
from posterity.datasets import load
from posterity.inference import METHODS, Method
from posterity.networks import lenet
from posterity.prediction.prediction import Prediction
from posterity.studies.rows import Row
from posterity.studies.study import Size, StudyLog, mean_and_error

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
    "laplace": 0.957,  # LA*
}
UNFAMILIAR = ("fashion_mnist", "notmnist")
SCORES = ("entropy", "mutual information", "maximum probability")
ALL = ["mle", "map", "mc_dropout", "bayes_by_backprop", "deep_ensemble", "laplace", "swag", "sgld", "sghmc", "cyclical"]
SAMPLERS = ("sgld", "sghmc", "cyclical")
STARTED = ("laplace", "swag", *SAMPLERS)  # by MAP
TIMES = {"mc_dropout": 2, "bayes_by_backprop": 3, "laplace": 0} | dict.fromkeys(SAMPLERS, 2)  # the epochs of MAP; or 1
FROM_MAP = "; at a hundred times the default rate, after a first run from scratch had 7-9 % of test digits wrong"
NEAR = 0.002  # a little more than a standard error of the areas
STILL = (
    f"; within {NEAR} of MAP in every score that both have, since SWAG's default learning rate hardly moves the "
    "weights from it"
)
ELSEWHERE = "published: mean over other unfamiliar sets"
TUNED = "; it is their LA*, with every choice tuned; ours is the last layer's, with none tuned"


def settings(size: Size) -> dict[str, Any]:
    full = {
        "network": "lenet",
        "rows": 60_000,
        "test_rows": 10_000,
        "epochs": epochs(5),
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
        return full | {"network": "mlp", "rows": 5_000, "test_rows": 1_000, "draws": 20, "methods": few}
    if size == "tiny":
        few = ["map", "deep_ensemble"]
        small = {"network": "mlp", "rows": 300, "test_rows": 100, "epochs": epochs(3), "draws": 5}
        return full | small | {"methods": few}
    return full


def epochs(of_map: int) -> dict[str, int]:
    """Of each method, or of each member of the ensemble; those that MAP starts have its epochs before their own."""
    return {name: of_map * TIMES.get(name, 1) for name in ALL}


def methods(chosen: dict[str, Any]) -> dict[str, Method]:
    num_rows, draws, rates = chosen["rows"], chosen["draws"], chosen["learning_rates"]
    batch = min(chosen["batch_size"], num_rows)
    steps = {name: count * -(-num_rows // batch) for name, count in chosen["epochs"].items()}

    def descent(name: str) -> dict[str, Any]:
        schedule = optax.cosine_decay_schedule(rates["descent"], steps[name])
        return {"num_steps": steps[name], "batch_size": batch, "learning_rate": schedule}

    def sampling(name: str) -> dict[str, Any]:
        """Half of the steps are burnt in."""
        half = steps[name] // 2
        return {"num_draws": draws, "num_burn_in": half, "thin": max(1, half // draws), "batch_size": batch}

    point = MAP(**descent("map"))
    return {
        "mle": MLE(**descent("mle")),
        "map": point,
        "mc_dropout": MCDropout(**descent("mc_dropout")),
        "bayes_by_backprop": BayesByBackprop(**descent("bayes_by_backprop")),
        "deep_ensemble": DeepEnsemble(**descent("deep_ensemble"), num_members=chosen["members"]),
        "laplace": Laplace(start=point, weights="last_layer", newton=False, batch_size=1024),
        "swag": SWAG(
            start=point, num_steps=steps["swag"], snapshot_every=max(1, steps["swag"] // 40), batch_size=batch
        ),
        "sgld": SGLD(**sampling("sgld"), start=point, learning_rate=rates["sgld"]),
        "sghmc": SGHMC(**sampling("sghmc"), start=point, learning_rate=rates["sghmc"]),
        "cyclical": Cyclical(
            base=SGHMC(batch_size=batch, learning_rate=rates["sghmc"]),
            num_cycles=4,
            cycle_length=max(steps["cyclical"] // 4, 4),
            draws_per_cycle=max(1, draws // 4),
            thin=max(1, steps["cyclical"] // 2 // draws // 8),
            start=point,
        ),
    }


def build(chosen: dict[str, Any], method: str) -> Model:
    rate = chosen["dropout"] if method == "mc_dropout" else 0.0
    network = lenet(dropout=rate) if chosen["network"] == "lenet" else mlp((50,), dropout=rate)
    return Model(network, Categorical(10), make_prior(Normal(0.0, chosen["prior_scale"]), fan_in=True))


def run(log: StudyLog) -> Iterator[Row]:
    chosen = log.settings
    found = log.each({name: (name, chosen) for name in chosen["methods"]}, run_method)
    for name in chosen["methods"]:
        remark = budget(name, chosen) + (FROM_MAP if name in SAMPLERS else "")
        if name == "swag" and "map" in found and _near(found["swag"], found["map"]):
            remark += STILL
        yield from _rows(name, found[name], remark)


def budget(name: str, chosen: dict[str, Any]) -> str:
    """Epochs in words, beside those of MAP."""
    own, of_map = chosen["epochs"][name], chosen["epochs"]["map"]
    if name in STARTED:
        return f"{f'{own} epochs' if own else 'one pass'} after the {of_map} epochs of MAP, where it begins"
    if name == "deep_ensemble":
        return f"{own} epochs for each of {chosen['members']} members"
    return f"{own} epochs" + (f", where MAP has {of_map}" if own != of_map else "")


def _near(found: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(abs(found[key][0] - other[key][0]) < NEAR for key in ("error", *areas_of(other)))


def areas_of(found: dict[str, Any]) -> list[str]:
    """The names of the areas of a part that it has."""
    return [area for strange in UNFAMILIAR for score in SCORES if (area := f"{strange}, {score}") in found]


def run_method(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Test error, and the areas of each score for each unfamiliar set."""
    data, count = load("mnist"), chosen["test_rows"]
    train = (scaled(data.x_train[: chosen["rows"]]), data.y_train[: chosen["rows"]])
    method = methods(chosen)[name]
    chains = None if name == "deep_ensemble" or METHODS[name].card.is_point else 1
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


def _rows(name: str, found: dict[str, Any], remark: str) -> list[Row]:
    label = METHODS[name].card.label
    rows = [Row(f"{label}: test error on MNIST", *found["error"], remark=remark)]
    for area in areas_of(found):
        published = PUBLISHED.get(name) if area.endswith("maximum probability") else None
        other = (ELSEWHERE + (TUNED if name == "laplace" else "")) if published else ""
        ours = Row(f"{label}: AUROC, {area}", *found[area], published=published, remark=other, comparable=False)
        rows.append(ours)
    return rows
