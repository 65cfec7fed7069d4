"""The ideas of the field in one report, on data made here: what `posterity demo` runs, within three minutes.

Each chapter is a function that fits and draws, and returns what writes it on the page. Fits run side by side: most of a
first run is compilation, which uses one core. Chapters share sizes and settings wherever they can, and with them
programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpyro.distributions import Normal

from posterity import plots
from posterity.cli.output import print_table, results, say
from posterity.core import records
from posterity.inference import (
    HMC,
    MAP,
    MILE,
    MLE,
    SGHMC,
    SWAG,
    BayesByBackprop,
    DeepEnsemble,
    Exact,
    Laplace,
    MCDropout,
    fit,
)
from posterity.metrics import SCORES, evaluate
from posterity.models.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian
from posterity.models.model import Model
from posterity.networks import linear, mlp
from posterity.plots.palette import LINE, log_axes, name_axes, new_axes
from posterity.posterior.audit import Referee
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.report.page import Page

STEPS = {"num_steps": 3000, "learning_rate": 5e-3, "batch_size": "full"}
NOISE = 0.15
SIZES = (5, 20, 200)
TEMPERATURES = (0.01, 0.1, 0.3, 1.0, 3.0)
GRID = np.linspace(-3.5, 3.5, 161)[:, None]
MIDDLE = len(GRID) // 2  # of the gap
SHOWN = ("rmse", "nll", "coverage_90")
SAMPLER = HMC(num_draws=100, num_burn_in=80)
Chapter = Callable[[Page], None]
_FITTING = Lock()


def run(folder: str | Path) -> Path:
    """Write the report into a folder; returns its path."""
    began = time.perf_counter()
    page = Page(
        "What a network does not know", "A tour of Bayesian deep learning on small data, made by posterity demo."
    )
    with ThreadPoolExecutor(2) as pool:
        made = {chapter: pool.submit(_timed, chapter) for chapter in LONGEST_FIRST}
        for chapter in (line, curve, three_kinds, classes, methods, temperatures):
            made[chapter].result()(page)
    page.footer = (
        f"Made by posterity demo in {time.perf_counter() - began:.0f} s; every picture is a fit that was just run."
    )
    path = page.write(Path(folder) / "report.html")
    results().print(f"The report is {path.resolve()}", soft_wrap=True)
    return path


def _timed(chapter: Callable[[], Chapter]) -> Chapter:
    began = time.perf_counter()
    written = chapter()
    say(f"{chapter.__doc__} ({time.perf_counter() - began:.0f} s)")
    return written


def line() -> Chapter:
    """Point estimate against Bayes where everything is known in closed form."""
    model = Model(linear(), Gaussian(0.5), Normal(0.0, 2.0))
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, (SIZES[-1], 1))
    y = 0.8 * x[:, 0] - 0.3 + 0.5 * rng.normal(size=len(x))
    panels = [
        _against_points(fit(model, Exact(), data), _points(model, data), data, (-5, 5)) for data in _growing(x, y)
    ]

    def write(page: Page) -> None:
        page.section(
            "One answer, or all that fit",
            "A straight line through noisy points. Maximum likelihood (MLE) gives one line and no doubt, and so does "
            "the peak of the posterior (MAP), which the prior draws towards zero; Bayes' rule gives every line that "
            "the points allow, each with its probability. Here the answer is exact, a formula.",
        )
        page.figure(panels, "A line through 5, 20 and 200 points.", "the orange band, which narrows as points come in.")

    return write


def curve() -> Chapter:
    """The same for a network, where HMC takes the formula's place."""
    model = _network()
    several = list(_growing(*wave(SIZES[-1], seed=0)))
    points = [_points(model, data) for data in several]
    all_rows = wave_by_hmc()  # first: whichever chapter compiles its program, the smaller sizes take it too
    posteriors = [*(fit(model, SAMPLER, data) for data in several[:-1]), all_rows]
    panels = [_against_points(*one, (-3, 3)) for one in zip(posteriors, points, several, strict=True)]

    def write(page: Page) -> None:
        page.section(
            "The same for a network",
            "A network with 32 units instead of a line. No formula is left, so Hamiltonian Monte Carlo (HMC) draws "
            "networks from the posterior. With five points it admits that it knows little; with two hundred it is as "
            "sure as they allow, but still not in the gap nor outside.",
        )
        page.figure(
            panels,
            "A network through 5, 20 and 200 points.",
            "the dashed point estimates, as sure in the gap as anywhere, and the band around them, which is not.",
        )

    return write


def three_kinds() -> Chapter:
    """Noise, ignorance and unfamiliar input along one axis."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-2.2, -0.7, 60), rng.uniform(0.5, 2.0, 60)])[:, None]
    y = np.sin(2 * x[:, 0]) + np.where(x[:, 0] > 0, 0.45, 0.08) * rng.normal(size=120)
    model = Model(mlp((32,), activation="tanh"), HeteroscedasticGaussian(), Normal(0.0, 1.0))
    posterior = fit(model, records.replace(SAMPLER, start=MAP(**STEPS)), (x, y), holdout=0.2)
    prediction = posterior.predict(GRID)
    above = plots.band(prediction, GRID, (x, y))
    above.set_ylim(-3.5, 3.5)
    below = new_axes()
    below.fill_between(GRID[:, 0], prediction.ood, color=LINE, alpha=0.25, lw=0)
    below.plot(GRID[:, 0], prediction.ood, color=LINE, lw=1.5)
    below.axhline(0.05, color=LINE, lw=0.8, ls=":")
    name_axes(below, "input", "p-value")

    def write(page: Page) -> None:
        page.section(
            "Three kinds of uncertainty",
            "Noise (aleatoric) is in the data: the right half is noisy, and more data will not help. Ignorance "
            "(epistemic) is in the model: nothing was seen in the middle, and data there would help. Unfamiliar "
            "input is neither: it asks whether a row looks like those held out from training, and answers with a "
            "p-value.",
        )
        page.figure(
            [above, below],
            "Left: what is predicted, and why it is unsure. Right: how usual an input is; flagging below 0.05 raises "
            "a false alarm for one row in twenty.",
            "blue on the right where data are noisy, orange in the gap, and p-values near zero outside the data.",
        )

    return write


def classes() -> Chapter:
    """Between the classes "60/40" is the truth; far away it is a confession."""
    rng = np.random.default_rng(4)
    label = rng.integers(0, 2, 120)
    x = np.where(label[:, None] == 0, -1.0, 1.0) * np.array([1.0, 0.3]) + 0.9 * rng.normal(size=(120, 2))
    model = Model(mlp((24,), activation="tanh"), Categorical(2), Normal(0.0, 1.5))
    posterior = fit(model, SAMPLER, (x, label), holdout=0.2)
    axis = np.linspace(-7, 7, 61)
    rows = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    maps = posterior.predict(rows)
    drawn = {
        "P(class 1)": maps.probs[:, 1],
        "noise (nats)": maps.aleatoric,
        "ignorance (nats)": maps.epistemic,
        "p-value": maps.ood,
    }
    panels = []
    for title, values in drawn.items():
        axes = plots.class_map(values.reshape(61, 61), (axis, axis), (x, label), cmap="viridis")
        axes.set_title(title)
        panels.append(axes)
    near, far = maps.ood > 0.3, np.abs(rows).max(-1) > 6
    sure = np.where(near, maps.probs[:, 1], 0.0).argmax()
    places = {"inside class 1": sure, "between the classes": _sixty(maps, near), "far away": _sixty(maps, far)}
    chosen = np.array(list(places.values()))

    def write(page: Page) -> None:
        page.section(
            "Sixty to forty",
            "Two classes that overlap. A classifier may say 60/40 for two reasons: it has seen such rows, and the "
            "classes do mix there (noise), or it has seen nothing of the kind, and the networks that fit the data "
            "disagree (ignorance).",
        )
        page.figure(panels, "What HMC says over the plane.", "noise along the border, ignorance away from the data.")
        header = ("where", "P(class 1)", "noise", "ignorance", "p-value")
        numbers = np.stack([maps.probs[:, 1], maps.aleatoric, maps.epistemic, maps.ood], 1)[chosen]
        cells = [(name, *(f"{number:.2f}" for number in row)) for name, row in zip(places, numbers, strict=True)]
        page.table(header, cells, "The same at three places (noise and ignorance in nats; at most 0.69 together).")

    return write


def methods() -> Chapter:
    """Every method on one curve with a gap, and how far each is from HMC."""
    data, test = wave(SIZES[-1], seed=0), wave(len(GRID), seed=1)
    plain, dropping = _network(), _network(dropout=0.05)
    point, ensemble = MAP(**STEPS), DeepEnsemble(num_members=4, **STEPS)
    chosen: list[tuple[Model, Any]] = [
        (plain, MLE(**STEPS)),
        (plain, point),
        (dropping, MCDropout(**STEPS)),
        (plain, BayesByBackprop(**STEPS)),
        (plain, ensemble),
        (plain, Laplace(start=point)),
        (plain, SWAG(start=point)),
        (plain, SGHMC(num_draws=100, num_burn_in=2000, start=point)),
        (plain, MILE(num_draws=100, num_burn_in=1500, start=ensemble)),
    ]
    contestants = {method.card.label: (model, method) for model, method in chosen}
    first = SAMPLER.card.label
    with ThreadPoolExecutor(2) as pool:
        fits = {first: pool.submit(wave_by_hmc)}
        fits |= {name: pool.submit(fit, *contestants[name], data) for name in reversed(contestants)}
        referee = Referee(fits[first].result().predict(test[0]))
        rows, panels = [], []
        for name in (first, *contestants):
            posterior = fits[name].result()
            prediction = posterior.predict(GRID)
            rows.append(_scores(name, posterior, posterior.predict(test[0]), test[1], referee, prediction))
            axes = plots.band(prediction, GRID, data)
            axes.set_ylim(-3, 3)
            axes.set_title(name)
            panels.append(axes)
    scores = (SCORES[name].label for name in SHOWN)
    header = ("method", *scores, f"distance from {first}", "ignorance in the gap", "seconds")
    print_table([dict(zip(header, map(str, row), strict=True)) for row in rows], left=("method",))

    def write(page: Page) -> None:
        page.section(
            f"Every method beside {first}",
            f"One network and one data set, {len(rows)} methods. {first} is the referee: given time, its draws are the "
            f"posterior. The distance is that between predictive distributions, in {first}'s standard deviations, "
            "averaged over test rows.",
        )
        page.figure(
            panels,
            f"{len(rows)} methods on two hundred points with a gap.",
            f"which bands open in the gap and outside, as {first}'s does.",
        )
        page.table(header, rows, f"Scores on {len(GRID)} test rows, ± one standard error.")

    return write


def temperatures() -> Chapter:
    """The cold-posterior curve: does the posterior of Bayes' rule predict best?"""
    data, test = wave(SIZES[-1], seed=0), wave(len(GRID), seed=1)
    found = []
    for temperature in TEMPERATURES:
        model = records.replace(_network(), temperature=temperature)
        posterior = fit(model, records.replace(SAMPLER, start=MAP(**STEPS)), data)
        found.append(evaluate(posterior.predict(test[0]), test[1])["nll"])
    axes = new_axes()
    axes.errorbar(TEMPERATURES, [e.value for e in found], [e.standard_error for e in found], color=LINE, marker="o")
    axes.axvline(1.0, color=LINE, lw=0.8, ls=":")
    log_axes(axes)
    name_axes(axes, "temperature", "negative log-likelihood")

    def write(page: Page) -> None:
        page.section(
            "Cold and warm posteriors",
            "Dividing the log posterior by a temperature below one sharpens it towards its mode; above one it "
            "spreads towards anything goes. Some networks predict best when cold, which says that prior, likelihood "
            "or sampler is off. Where the model is right, as here, temperature one should be as good as any.",
        )
        page.figure(
            axes, "Test score of HMC at five temperatures (lower is better).", "the curve near its lowest point at one."
        )

    return write


def _sixty(maps: Prediction, allowed: np.ndarray) -> int:
    """The allowed row whose probabilities are nearest to 60/40."""
    return int(np.where(allowed, np.abs(maps.probs[:, 1] - 0.6), np.inf).argmin())


def wave(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A wave observed on two stretches, with nothing in between."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-2.2, -0.7, count // 2), rng.uniform(0.6, 1.8, count - count // 2)])[:, None]
    return x, np.sin(2.5 * x[:, 0]) + 0.3 * x[:, 0] + NOISE * rng.normal(size=count)


def _network(dropout: float = 0.0) -> Model:
    return Model(mlp((32,), activation="tanh", dropout=dropout), Gaussian(NOISE), Normal(0.0, 1.0))


def wave_by_hmc() -> Posterior:
    """The referee, which two chapters show: whoever comes first fits it."""
    with _FITTING:
        return _wave_by_hmc()


@cache
def _wave_by_hmc() -> Posterior:
    return fit(_network(), SAMPLER, wave(SIZES[-1], seed=0))


def _growing(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The first 5, 20 and 200 rows in a random order; the others weigh nothing, so that one program fits all."""
    order = np.random.default_rng(0).permutation(len(y))
    for size in SIZES:
        yield x[order], y[order], (np.arange(len(y)) < size).astype(float)


def _points(model: Model, data: tuple[np.ndarray, ...]) -> list[Posterior]:
    """The two point estimates."""
    return [fit(model, method, data) for method in (MLE(**STEPS), MAP(**STEPS))]


def _against_points(
    posterior: Posterior, points: list[Posterior], data: tuple[np.ndarray, ...], limits: tuple[float, float]
) -> Any:
    x, y, weight = data
    seen = weight > 0
    axes = plots.band(posterior.predict(GRID), GRID, (x[seen], y[seen]))
    for point, dashes in zip(points, ("--", "-."), strict=True):
        label = f"point estimate ({point.method.card.label})"
        axes.plot(GRID[:, 0], point.predict(GRID).mean, color=LINE, lw=1.2, ls=dashes, label=label)
    axes.set_ylim(*limits)
    axes.set_title(f"{seen.sum()} points")
    return axes


def _scores(
    name: str, posterior: Posterior, tested: Prediction, y: np.ndarray, referee: Referee, drawn: Prediction
) -> tuple[Any, ...]:
    scores = evaluate(tested, y)
    gap = float(np.sqrt(drawn.epistemic[MIDDLE]))
    distance = "the referee" if name == SAMPLER.card.label else referee.distances(tested)["wasserstein"]
    told = [scores[one] for one in SHOWN]
    return (name, *told, distance, f"{gap:.3f}", f"{posterior.receipt.seconds:.1f}")


LONGEST_FIRST = (methods, curve, three_kinds, classes, temperatures, line)
