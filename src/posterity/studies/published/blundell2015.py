"""Blundell et al. 2015, "Weight uncertainty in neural networks": MNIST, pruning, a regression curve, a bandit.

MNIST: two hidden layers of 400 ReLU units, pixels / 126, the first 50,000 rows to learn from, the last 10,000 of the
training rows to choose settings by. The paper takes 600 epochs of SGD; here SGD with momentum and a rate that falls
along a cosine needs fewer, which are in the settings. The rate and the width that the posterior starts with were set by
hand, on validation rows; the rate of dropout is chosen among three on them, after its test error at the common rate,
2.19 %, had been seen. The prior is the one whose network errs least on them with 75 % of its weights removed: one
network serves both tables, and the weights of a prior too wide to hold them at zero cannot be removed.

Curve: y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e with x in [0, 0.5], and 0.02 read as the standard
deviation of e. Bandit: see bandit.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

from posterity import (
    MLE,
    BayesByBackprop,
    Categorical,
    Gaussian,
    MCDropout,
    Model,
    Normal,
    Posterior,
    fit,
    mlp,
    scale_mixture,
)
from posterity.data.batches import num_batches
from posterity.datasets import Loaded, load
from posterity.inference.methods.descent import Descent
from posterity.models.priors import Flat
from posterity.plots.palette import DATA, IGNORANCE, LINE, name_axes, style
from posterity.posterior.pruning import prune
from posterity.studies.published import bandit
from posterity.studies.rows import Row
from posterity.studies.study import Size, StudyLog
from posterity.weights.families import Samples

TITLE = "Bayes by Backprop: MNIST, pruning, a curve and a bandit"
LEFT_OUT = (
    "layers of 800 and 1200 units, the histogram of weights, the curves of test error, priors but those of three "
    "widths, and the bandit's agent of 1 % random actions"
)
REFERENCE = "Blundell, Cornebise, Kavukcuoglu, Wierstra 2015, Weight uncertainty in neural networks (arXiv 1505.05424)."

PUBLISHED = {"sgd": 1.83, "dropout": 1.51, "gaussian": 1.82, "mixture": 1.36}  # % of the test rows, Table 1
PUBLISHED_PRUNED = {"0": 1.24, "0.5": 1.24, "0.75": 1.24, "0.95": 1.29, "0.98": 1.39}  # Table 2: 1200 units
SHARES = tuple(map(float, PUBLISHED_PRUNED))  # of the weights that are removed
CHOOSING_SHARE = 0.75  # removed while priors are compared, as the target about pruning has it
TRAINING_ROWS = 50_000  # those after them are for choosing
NAMES = {
    "sgd": "maximum likelihood",
    "dropout": "dropout",
    "gaussian": "Bayes by Backprop, Gaussian prior",
    "mixture": "Bayes by Backprop, scale mixture prior",
}


def settings(size: Size) -> dict[str, Any]:
    mnist = {
        "methods": list(NAMES),
        "rows": 50_000,
        "test_rows": 10_000,
        "hidden": [400, 400],
        "pixels_divided_by": 126,
        "batch_size": 128,
        "epochs": {"sgd": 60, "dropout": 150, "gaussian": 120, "mixture": 120},
        "learning_rate": 0.1,  # of SGD with momentum, to zero along a cosine
        "momentum": 0.9,
        "dropout": {"input": 0.2, "hidden": 0.5},  # the paper does not say; as Hinton et al. 2012
        # Tried for `choosing_epochs` each; the best on validation rows is trained in full.
        "priors": {
            "gaussian": [{"minus_log_sigma": number} for number in (0, 1, 2)],
            "mixture": [{"weight": 0.5, "minus_log_sigma_1": number, "minus_log_sigma_2": 6} for number in (0, 1, 2)],
        },
        "choosing_epochs": 12,
        "initial_scale": 0.02,
        "draws": 100,
        "seed": 0,
    }
    curve = {
        "rows": 1000,
        "hidden": [100, 100],
        "noise": 0.05,
        "num_steps": 20_000,
        "learning_rate": 1e-3,
        "draws": 500,
        "seed": 0,
    }
    game = {
        "agents": list(bandit.AGENTS),
        "runs": {"thompson": 20, "greedy": 80, "epsilon": 5},  # most where runs differ most
        "interactions": 10_000,
        "updates": 8,
        "batch_size": 64,
        "memory": 4096,
        "hidden": [100, 100],
        "draws": 2,
        "noise": 0.1,
        "prior": 1.0,
        "initial_scale": 0.02,
        "learning_rate": 1e-3,
        "epsilon": 0.05,
        "seed": 0,
    }
    if size == "quick":
        mnist |= {"rows": 5_000, "epochs": dict.fromkeys(NAMES, 5), "draws": 20, "priors": _only_last(mnist["priors"])}
        curve |= {"rows": 300, "num_steps": 3_000, "draws": 200}
        game |= {"interactions": 600, "updates": 4, **_two_agents(5)}
    if size == "tiny":
        mnist |= {"rows": 500, "test_rows": 500, "hidden": [20], "epochs": dict.fromkeys(NAMES, 10), "draws": 5}
        mnist |= {"methods": ["sgd", "mixture"], "batch_size": 50, "priors": _only_last(mnist["priors"])}
        curve |= {"rows": 100, "hidden": [20], "num_steps": 500, "draws": 50}
        game |= {"interactions": 100, "updates": 2, "hidden": [20], **_two_agents(2)}
    dropout = {"learning_rates": [0.1, 0.03, 0.01] if size == "full" else [0.03]}
    return {"mnist": mnist, "dropout": dropout, "curve": curve, "bandit": game}


def _two_agents(num_runs: int) -> dict[str, Any]:
    agents = ["thompson", "greedy"]
    return {"agents": agents, "runs": dict.fromkeys(agents, num_runs)}


def run(log: StudyLog) -> Iterator[Row]:
    yield from curve(log)
    yield from bandit.run(log)
    yield from digits(log)


def _only_last(candidates: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: several[-1:] for name, several in candidates.items()}


# MNIST


class Training(NamedTuple):
    """One network to be trained."""

    name: str  # a key of NAMES
    prior: dict[str, float]
    epochs: int
    learning_rate: float

    @property
    def key(self) -> str:
        """Of the part that trains and tests it; that of dropout depends on settings of its own."""
        return f"{'dropout' if self.name == 'dropout' else 'mnist'}/{self.name}"

    @property
    def short_key(self) -> str:
        """Of the part that trains it for a few epochs, to compare it with other candidates."""
        varied = [self.learning_rate] if self.name == "dropout" else self.prior.values()
        return "-".join([self.key, *(f"{value:g}" for value in varied), f"{self.epochs}epochs"])

    def num_draws(self, chosen: dict[str, Any]) -> int:
        return 1 if self.name == "sgd" else chosen["draws"]


def digits(log: StudyLog) -> list[Row]:
    """Table 1 for 400 units, and Table 2."""
    chosen = log.settings["mnist"]
    trainings = [_best_training(log, name) for name in chosen["methods"]]
    jobs = {one.key: (one, chosen) for one in reversed(trainings)}  # the longest first
    trained = log.each(jobs, train_and_test)
    found = {one.name: trained[one.key] for one in trainings}
    return [*_table_1(found, chosen), *_comparison(found, chosen), *_table_2(found["mixture"], chosen)]


def _best_training(log: StudyLog, name: str) -> Training:
    """The candidate that errs least on validation rows after a short training; a single one as it is.

    Priors are compared by their pruned networks.
    """
    chosen = log.settings["mnist"]
    rates = log.settings["dropout"]["learning_rates"] if name == "dropout" else [chosen["learning_rate"]]
    both = itertools.product(chosen["priors"].get(name, [{}]), rates)
    candidates = [Training(name, prior, chosen["epochs"][name], rate) for prior, rate in both]
    if len(candidates) == 1:
        return candidates[0]
    short = [one._replace(epochs=chosen["choosing_epochs"]) for one in candidates]
    found = log.each({one.short_key: (one, chosen) for one in short}, train_and_validate)
    judged_by = "validation_error" if name == "dropout" else "validation_error_pruned"
    return candidates[int(np.argmin([found[one.short_key][judged_by] for one in short]))]


def train_and_validate(training: Training, chosen: dict[str, Any]) -> dict[str, Any]:
    data = load("mnist")
    posterior = _train(training, data, chosen)
    found = _validate(posterior, training, data, chosen)
    if training.prior:
        pruned = _validate(prune(posterior, CHOOSING_SHARE), training, data, chosen)
        found["validation_error_pruned"] = pruned["validation_error"]
    return found


def train_and_test(training: Training, chosen: dict[str, Any]) -> dict[str, Any]:
    data = load("mnist")
    posterior = _train(training, data, chosen)
    count, draws = chosen["test_rows"], training.num_draws(chosen)
    rows = _pixels(data.x_test[:count], chosen), data.y_test[:count]
    wrong, wrong_of_mean = _wrong(posterior, *rows, draws), _wrong(_at_mean(posterior), *rows, 1)
    errors = {"error": 100 * len(wrong) / count, "error_of_mean_weights": 100 * len(wrong_of_mean) / count}
    found = {**errors, **_validate(posterior, training, data, chosen), "wrong": wrong}
    if training.name == "mixture":
        found["wrong_pruned"] = {f"{share:g}": _wrong(prune(posterior, share), *rows, draws) for share in SHARES}
    return found


def _validate(posterior: Posterior, training: Training, data: Loaded, chosen: dict[str, Any]) -> dict[str, Any]:
    count, draws = chosen["test_rows"], training.num_draws(chosen)
    aside = slice(TRAINING_ROWS, TRAINING_ROWS + count)
    wrong = _wrong(posterior, _pixels(data.x_train[aside], chosen), data.y_train[aside], draws)
    return {
        "validation_error": 100 * len(wrong) / count,
        "training_seconds": round(posterior.receipt.seconds, 1),
        "loss": float(posterior.trace["loss"][0, -10:].mean()),
        "prior": training.prior,
        "learning_rate": training.learning_rate,
    }


def _train(training: Training, data: Loaded, chosen: dict[str, Any]) -> Posterior:
    rows = _pixels(data.x_train[: chosen["rows"]], chosen), data.y_train[: chosen["rows"]]
    return fit(_model(training, chosen), _method(training, chosen), rows, seed=chosen["seed"], progress=False)


def _model(training: Training, chosen: dict[str, Any]) -> Model:
    dropped, numbers = chosen["dropout"], training.prior
    rates = {"dropout": dropped["hidden"], "input_dropout": dropped["input"]} if training.name == "dropout" else {}
    prior: Any = Flat()
    if training.name == "gaussian":
        prior = Normal(0.0, math.exp(-numbers["minus_log_sigma"]))
    if training.name == "mixture":
        sigmas = [math.exp(-numbers[f"minus_log_sigma_{i}"]) for i in (1, 2)]
        prior = scale_mixture(numbers["weight"], *sigmas)
    return Model(mlp(chosen["hidden"], **rates), Categorical(10), prior)


def _method(training: Training, chosen: dict[str, Any]) -> Descent:
    num_steps = training.epochs * num_batches(chosen["rows"], chosen["batch_size"])
    schedule = optax.cosine_decay_schedule(training.learning_rate, num_steps)
    common = {
        "num_steps": num_steps,
        "learning_rate": schedule,
        "batch_size": chosen["batch_size"],
        "optimizer": partial(optax.sgd, momentum=chosen["momentum"]),
    }
    if training.name == "sgd":
        return MLE(**common)
    if training.name == "dropout":
        return MCDropout(**common)
    return BayesByBackprop(**common, initial_scale=chosen["initial_scale"])


def _pixels(images: np.ndarray, chosen: dict[str, Any]) -> np.ndarray:
    return (images.reshape(len(images), -1) / chosen["pixels_divided_by"]).astype(np.float32)


def _wrong(posterior: Posterior, x: np.ndarray, y: np.ndarray, num_draws: int) -> list[int]:
    """The rows whose most probable class, averaged over draws, is not theirs."""
    return np.flatnonzero(posterior.predict(x, num_draws=num_draws).label != y).tolist()


def _at_mean(posterior: Posterior) -> Posterior:
    """One draw: the mean weights, or for dropout the weights with no unit dropped."""
    family: Any = posterior.family
    draws = jax.tree.map(lambda leaf: leaf[:, None], family.point())
    return dataclasses.replace(posterior, family=Samples(draws, family.fixed))


def _binomial_error(percent: float, num_rows: int) -> float:
    """Standard error of a share of wrong answers, in per cent."""
    share = percent / 100
    return 100 * math.sqrt(share * (1 - share) / num_rows)


def _paired(wrong: Any, other: Any, num_rows: int) -> tuple[float, float]:
    """How many per cent more are wrong than in the other, and the standard error, both tried on the same rows."""
    only, only_other = (len(set(a) - set(b)) / num_rows for a, b in ((wrong, other), (other, wrong)))
    difference = only - only_other
    return 100 * difference, 100 * math.sqrt(max(only + only_other - difference**2, 0.0) / num_rows)


def _table_1(found: dict[str, Any], chosen: dict[str, Any]) -> list[Row]:
    rows, count = [], chosen["test_rows"]
    for name, one in found.items():
        epochs = f"{chosen['epochs'][name]} epochs in place of 600"
        how = f"; mean over {chosen['draws']} draws" if name != "sgd" else ", one rate tried, falling along a cosine"
        if name == "dropout":
            how += (
                f", rate {one['learning_rate']:g}, chosen on validation rows after a first run at 0.1 had been tested"
            )
        how += "".join(f", {key.replace('_', ' ')} {value:g}" for key, value in one["prior"].items())
        target, holds = ("at most 1.5", one["error"] <= 1.5) if name == "mixture" else ("", None)
        shown = Row(f"MNIST, {NAMES[name]}: test error, %", one["error"], _binomial_error(one["error"], count))
        published = {"published": PUBLISHED[name], "published_error": _binomial_error(PUBLISHED[name], 10_000)}
        rows.append(shown._replace(**published, target=target, holds=holds, remark=epochs + how))
        if name != "sgd":
            error = one["error_of_mean_weights"]
            remark = "no unit dropped" if name == "dropout" else "one pass"
            name_of_mean = f"MNIST, {NAMES[name]}: test error of the mean weights, %"
            rows.append(Row(name_of_mean, error, _binomial_error(error, count), remark=remark))
    return rows


def _comparison(found: dict[str, Any], chosen: dict[str, Any]) -> list[Row]:
    more, error = _paired(found["mixture"]["wrong"], found["sgd"]["wrong"], chosen["test_rows"])
    name = "MNIST, scale mixture less maximum likelihood: test error, %"
    published = [PUBLISHED[which] for which in ("mixture", "sgd")]
    published_error = math.hypot(*(_binomial_error(percent, 10_000) for percent in published))
    row = Row(name, more, error, published[0] - published[1], published_error, remark="the published one is not paired")
    return [row._replace(target="below 0", holds=more < 0)]


def _table_2(mixture: dict[str, Any], chosen: dict[str, Any]) -> list[Row]:
    rows, count = [], chosen["test_rows"]
    for share, wrong in mixture["wrong_pruned"].items():
        error, published = 100 * len(wrong) / count, PUBLISHED_PRUNED[share]
        name = f"MNIST, {100 * float(share):g} % of the weights removed: test error, %"
        errors = _binomial_error(error, count), published, _binomial_error(published, 10_000)
        rows.append(Row(name, error, *errors, remark="published for 1200 units a layer"))
    more, error = _paired(mixture["wrong_pruned"]["0.75"], mixture["wrong_pruned"]["0"], count)
    name = "MNIST, what removing 75 % of the weights costs: test error, %"
    cost = Row(name, more, error, 0.0, remark="published for 1200 units a layer", comparable=False)
    return [*rows, cost._replace(target="at most 0.1", holds=more <= 0.1)]


# The curve


def curve(log: StudyLog) -> list[Row]:
    """Figure 5: Bayes by Backprop beside a plain network, far beyond the data."""
    chosen = log.settings["curve"]
    x, y = _curve_rows(chosen["rows"], chosen["seed"])
    grid = np.linspace(-0.2, 1.2, 141)
    found = {
        name: log.once(f"curve/{name}", lambda name=name: _fit_curve(name, chosen, x, y, grid))
        for name in ("bayes", "plain")
    }
    _draw_curves(log, x, y, grid, found)
    spread = np.array(found["bayes"]["epistemic"])
    inside, outside = (grid >= 0) & (grid <= 0.5), (grid <= -0.1) | (grid >= 1.0)
    ratio = float(spread[outside].mean() / spread[inside].mean())
    name = "Curve: epistemic sd far outside (x < -0.1 or x > 1) / inside the data"
    return [Row(name, ratio, target="above 1", holds=ratio > 1, remark="the paper shows a picture only")]


def _curve_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, noise = rng.uniform(0, 0.5, count), rng.normal(0, 0.02, count)
    moved = 2 * np.pi * (x + noise)
    return x, x + 0.3 * np.sin(moved) + 0.3 * np.sin(2 * moved) + noise


def _fit_curve(name: str, chosen: dict[str, Any], x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> dict[str, Any]:
    common = {"num_steps": chosen["num_steps"], "learning_rate": chosen["learning_rate"]}
    method = MLE(**common) if name == "plain" else BayesByBackprop(**common)
    model = Model(mlp(chosen["hidden"]), Gaussian(chosen["noise"]), Normal(0.0, 1.0))
    posterior = fit(model, method, (x[:, None], y), seed=chosen["seed"], progress=False)
    outputs = posterior.predict(grid[:, None], num_draws=1 if name == "plain" else chosen["draws"]).outputs[..., 0]
    lower, middle, upper = np.quantile(outputs, (0.25, 0.5, 0.75), axis=0).tolist()
    return {"lower": lower, "median": middle, "upper": upper, "epistemic": outputs.std(0).tolist()}


def _draw_curves(log: StudyLog, x: np.ndarray, y: np.ndarray, grid: np.ndarray, found: dict[str, Any]) -> None:
    titles = {"bayes": "Bayes by Backprop: median and quartiles", "plain": "maximum likelihood"}
    with style():
        figure = Figure(figsize=(8.5, 3.2), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
            one = found[name]
            axes.plot(x, y, ".", ms=2, color=DATA, alpha=0.4)
            axes.fill_between(grid, one["lower"], one["upper"], color=IGNORANCE, lw=0, alpha=0.8)
            axes.plot(grid, one["median"], color=LINE)
            axes.set_title(title)
            axes.set_ylim(-1, 1.6)
            name_axes(axes, "x", "y")
    log.picture("curve", figure)
