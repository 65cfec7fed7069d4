"""The information theory of variational inference, measured.

    KL(q || p)  = cross-entropy(q, p) - entropy(q)
    free energy = complexity - fit = KL(q || prior) - E_q log p(D | w)

Two ways to take a gradient of an expectation under q = N(m, s^2): through the draw w = m + s e (reparameterisation), or
through the density, E[f(w) d log q / dm] (the score function). Both are unbiased; their variances differ.

Dropout as q (Gal & Ghahramani 2016): a row of weights is N(m, s^2 I) with probability p, else N(0, s^2 I). As s falls
to 0, its divergence from N(0, I) becomes p/2 ||m||^2 and constants: K/2 (s^2 - log s^2 - 1) - H(p), K weights in a row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Key
from posterity.inference import BayesByBackprop, MCDropout, fit
from posterity.metrics import Estimate, mean_over_rows
from posterity.metrics.information import cross_entropy, entropy, kl_divergence, self_information
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.networks import mlp
from posterity.plots.palette import CYCLE, FAINT, INK, LINE, log_axes, name_axes, new_axes
from posterity.studies.questions.claims import Wording, claim
from posterity.studies.questions.question import Report, Study
from posterity.studies.questions.subject import rounded
from posterity.studies.questions.trajectories import whole_batch
from posterity.studies.rows import Row
from posterity.studies.study import Size

TITLE = "What does variational inference minimise?"
REFERENCE = "Blundell et al. 2015; Gal & Ghahramani 2016, appendix; Kingma & Welling 2014; Williams 1992."
DATA: str | None = None
NOISE = 0.15
KEEP, ROW = 0.9, 10  # of a dropout row: the probability to keep it, and its weights
MASKS = (1, 2, 8)
TEMPERATURES = (0.1, 1.0, 10.0)
AXIS = np.linspace(-6, 6, 601)
INPUT = np.array([[0.0]])  # in the gap of the data


def settings(size: Size) -> dict[str, Any]:
    return {
        "full": {"hidden": [32], "steps": 5000, "samples": 2000, "draws": 200_000, "passes": 1000},
        "quick": {"hidden": [32], "steps": 2000, "samples": 300, "draws": 50_000, "passes": 300},
        "tiny": {"hidden": [8], "steps": 200, "samples": 60, "draws": 5_000, "passes": 50},
    }[size]


def curve() -> tuple[np.ndarray, np.ndarray]:
    """A wave with a gap in the middle."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2.2, -0.7, 60), rng.uniform(0.6, 1.8, 60)])[:, None]
    return x, np.sin(2.5 * x[:, 0]) + NOISE * rng.normal(size=len(x))


def network(chosen: dict[str, Any], dropout: float = 0.0, temperature: float = 1.0) -> Model:
    made = mlp(chosen["hidden"], activation="tanh", dropout=dropout)
    return Model(made, Gaussian(NOISE), None, temperature, "likelihood")


def measure(study: Study) -> dict[str, Any]:
    parts = {
        "information": _information,
        "directions": _directions,
        "free_energy": _free_energy,
        "gradients": _gradients,
        "dropout_kl": _dropout_divergence,
        "masks": _masks,
        "passes": _passes,
    }
    return {name: study.log.once(name, partial(part, study.settings)) for name, part in parts.items()}


def _information(chosen: dict[str, Any]) -> dict[str, Any]:
    """Of two distributions over six outcomes."""
    del chosen
    p, q = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05]), np.array([0.25, 0.25, 0.2, 0.1, 0.1, 0.1])
    return {
        "p": p.tolist(),
        "q": q.tolist(),
        "self_information": rounded(self_information(p)),
        "entropy": float(entropy(p)),
        "cross_entropy": float(cross_entropy(p, q)),
        "kl_pq": float(kl_divergence(p, q)),
        "kl_qp": float(kl_divergence(q, p)),
        "total_variation": float(np.abs(p - q).sum() / 2),
        "chi_square": float(((p - q) ** 2 / q).sum()),
    }


def _directions(chosen: dict[str, Any]) -> dict[str, Any]:
    """The Gaussian nearest to two bumps in each direction of KL, on a grid."""
    del chosen
    target = 0.5 * _normal(-2.0, 0.6) + 0.5 * _normal(2.0, 0.6)
    means, scales = np.linspace(-3, 3, 61), np.linspace(0.3, 3.0, 55)
    found = {}
    for name in ("KL(q, p)", "KL(p, q)"):
        best = (np.inf, 0.0, 0.0)
        for mean in means:
            for scale in scales:
                q = _normal(mean, scale)
                first, second = (q, target) if name == "KL(q, p)" else (target, q)
                value = float(np.trapezoid(first * (np.log(first + 1e-300) - np.log(second + 1e-300)), AXIS))
                best = min(best, (value, float(mean), float(scale)))
        found[name] = {"divergence": best[0], "mean": best[1], "scale": best[2]}
    return {"by_direction": found}


def _normal(mean: float, scale: float) -> np.ndarray:
    return np.exp(-(((AXIS - mean) / scale) ** 2) / 2) / (scale * np.sqrt(2 * np.pi))


def _free_energy(chosen: dict[str, Any]) -> dict[str, Any]:
    """Complexity and misfit in training, and where they end at three temperatures of the likelihood."""
    ends, trace = {}, {}
    for temperature in TEMPERATURES:
        method = BayesByBackprop(num_steps=chosen["steps"], learning_rate=5e-3, batch_size="full", num_samples=2)
        posterior = fit(network(chosen, temperature=temperature), method, curve(), progress=False)
        # Means over stretches of a fiftieth of the run: single steps are noisy.
        series = {name: np.array_split(np.ravel(posterior.trace[name][0]), 50) for name in posterior.trace}
        means = {name: [float(stretch.mean()) for stretch in stretches] for name, stretches in series.items()}
        last = np.concatenate(series["complexity"][-10:])
        misfit = np.concatenate(series["negative_log_likelihood"][-10:])
        ends[f"{temperature:g}"] = {"complexity": [*mean_over_rows(last)], "misfit": [*mean_over_rows(misfit)]}
        if temperature == 1:
            trace = means
    return {"ends": ends, "trace": trace}


def _gradients(chosen: dict[str, Any]) -> dict[str, Any]:
    """Variance of both gradients of E_q log p(D, w) in the means, at a trained q, for every weight."""
    model = network(chosen)
    method = BayesByBackprop(num_steps=chosen["steps"], learning_rate=5e-3, batch_size="full")
    posterior = fit(model, method, curve(), progress=False)
    family, batch = posterior.family, whole_batch(curve())
    mean, scale = (pytrees.take_rows(part, 0) for part in (family.mean, family.scale))  # type: ignore[attr-defined]

    def log_joint(weights: Any) -> Array:
        return model.log_joint(weights, batch)

    def both(key: Key) -> tuple[Any, Any]:
        noise = pytrees.normal_like(key, mean)
        weights = jax.tree.map(lambda m, s, e: m + s * e, mean, scale, noise)
        value, path = jax.value_and_grad(log_joint)(weights)
        return path, jax.tree.map(lambda s, e: value * e / s, scale, noise)

    keys = jax.random.split(jax.random.key(0), chosen["samples"])
    draws = jax.lax.map(both, keys)
    variances = [np.concatenate([np.ravel(leaf.var(0)) for leaf in jax.tree.leaves(one)]) for one in draws]
    return {"path": np.asarray(variances[0], float).tolist(), "score": np.asarray(variances[1], float).tolist()}


def _dropout_divergence(chosen: dict[str, Any]) -> dict[str, Any]:
    """KL of a dropout row from N(0, I) by Monte Carlo, its constants taken off, over p/2 ||m||^2."""
    rng = np.random.default_rng(1)
    row = rng.normal(size=ROW)
    target = KEEP / 2 * float(row @ row)
    mixing = -(KEEP * np.log(KEEP) + (1 - KEEP) * np.log(1 - KEEP))
    found = []
    for scale in (1.0, 0.5, 0.2, 0.1, 0.03, 0.01):
        kept = rng.random(chosen["draws"]) < KEEP
        weights = kept[:, None] * row + scale * rng.normal(size=(chosen["draws"], ROW))
        log_q = np.logaddexp(
            np.log(KEEP) + _log_normal(weights - row, scale), np.log(1 - KEEP) + _log_normal(weights, scale)
        )
        divergence = mean_over_rows(log_q - _log_normal(weights, 1.0))
        constants = ROW / 2 * (scale**2 - np.log(scale**2) - 1) - mixing
        found.append([scale, (divergence.value - constants) / target, divergence.standard_error / target])
    return {"by_scale": found}


def _log_normal(values: np.ndarray, scale: float) -> np.ndarray:
    return -0.5 * (values**2).sum(1) / scale**2 - values.shape[1] / 2 * np.log(2 * np.pi * scale**2)


def _masks(chosen: dict[str, Any]) -> dict[str, Any]:
    """Variance of the gradient of the loss, the mean over weights, by the number of masks of each datum."""
    model = network(chosen, dropout=0.1)
    batch = whole_batch(curve())
    weights = model.init(jax.random.key(1), batch.x)

    def gradient(key: Key, masks: int) -> Array:
        keys = jax.random.split(key, masks * len(batch.y)).reshape(masks, len(batch.y))

        def loss(weights: Any) -> Array:
            def of_row(key_row: Key, x: Array, y: Array) -> Array:
                return model.log_likelihood(weights, Batch(x[None], y[None], jnp.ones(1)), key_row)[0]

            rows = jax.vmap(jax.vmap(of_row), (0, None, None))(keys, batch.x, batch.y)
            return rows.mean(0).sum()

        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(jax.grad(loss)(weights))])

    found = []
    for masks in MASKS:
        draw = partial(gradient, masks=masks)
        draws = np.asarray(jax.lax.map(draw, jax.random.split(jax.random.key(masks), chosen["samples"])), float)
        squares = ((draws - draws.mean(0)) ** 2).sum(1)
        found.append([masks, *mean_over_rows(squares)])
    return {"by_masks": found}


def _passes(chosen: dict[str, Any]) -> dict[str, Any]:
    """Outputs of single passes with dropout on, at an input in the gap."""
    model = network(chosen, dropout=0.1)
    method = MCDropout(num_steps=chosen["steps"], learning_rate=5e-3, batch_size="full")
    posterior = fit(model, method, curve(), progress=False)
    outputs = posterior.predict(INPUT, num_draws=chosen["passes"]).outputs[:, 0, 0]
    return {"outputs": rounded(outputs)}


def conclude(figures: dict[str, Any]) -> list[Row]:
    directions = figures["directions"]["by_direction"]
    narrow = Estimate(directions["KL(p, q)"]["scale"] - directions["KL(q, p)"]["scale"], 0.05)  # a step of the grid
    rows = [
        claim(
            "two bumps: width of the q that KL(p, q) chooses minus that of KL(q, p)",
            narrow,
            Wording(
                "KL(q, p), which variational inference minimises, takes one of two bumps, KL(p, q) covers both: the "
                "latter's Gaussian is wider by {}.",
                "KL(q, p) covers both of two bumps and KL(p, q) takes one: the former's Gaussian is wider by {}.",
                "both directions of KL choose about the same Gaussian (difference in width {}).",
            ),
        )
    ]
    ends = figures["free_energy"]["ends"]
    cold, warm = (Estimate(*ends[name]["complexity"]) for name in (f"{TEMPERATURES[0]:g}", f"{TEMPERATURES[-1]:g}"))
    rows.append(
        claim(
            "tempering: complexity at T = 0.1 minus that at T = 10, nats a datum",
            Estimate(cold.value - warm.value, float(np.hypot(cold.standard_error, warm.standard_error))),
            Wording(
                "a colder likelihood buys fit with complexity: KL(q, prior) is {} nats a datum higher at T = 0.1 than "
                "at T = 10.",
                "a colder likelihood ends with less complexity, by {} nats a datum.",
                "the temperature of the likelihood leaves the complexity as it is ({} nats a datum).",
            ),
        )
    )
    ratio = np.log10(np.divide(figures["gradients"]["score"], figures["gradients"]["path"]))
    rows.append(
        claim(
            "gradients: log10 of the variance of the score function over that of reparameterisation",
            mean_over_rows(ratio),
            Wording(
                "reparameterised gradients have less variance than those of the score function, by {} powers of ten.",
                "score-function gradients have less variance than reparameterised ones, by {} powers of ten.",
                "both gradients have about the same variance ({} powers of ten).",
            ),
        )
    )
    return rows + _dropout_rows(figures)


def _dropout_rows(figures: dict[str, Any]) -> list[Row]:
    scale, ratio, error = figures["dropout_kl"]["by_scale"][-1]
    rows = [
        claim(
            f"dropout: KL without its constants over p/2 ||m||^2 at s = {scale:g}, distance from 1 under 0.02",
            Estimate(0.02 - abs(ratio - 1), error),
            Wording(
                f"the divergence of a dropout row becomes p/2 ||m||^2 as its spread falls: {ratio:.4f} of it at "
                f"s = {scale:g} ({{}} to spare of 0.02).",
                f"the divergence of a dropout row does not become p/2 ||m||^2: {ratio:.4f} of it at s = {scale:g} "
                "({} beyond 0.02).",
                f"the divergence of a dropout row is about p/2 ||m||^2, {ratio:.4f} of it at s = {scale:g} "
                "({} to spare of 0.02).",
            ),
        )
    ]
    table = {int(masks): Estimate(value, error) for masks, value, error in figures["masks"]["by_masks"]}
    one, many = table[MASKS[0]], table[MASKS[-1]]
    fall = one.value / many.value
    relative = np.hypot(one.standard_error / one.value, many.standard_error / many.value)
    rows.append(
        claim(
            f"masks: variance of the gradient with one a datum over that with {MASKS[-1]}",
            Estimate(fall, float(fall * relative)),
            Wording(
                f"{MASKS[-1]} masks a datum divide the variance of the gradient by {{}}.",
                f"{MASKS[-1]} masks a datum raise the variance of the gradient: it is divided by {{}}.",
                f"{MASKS[-1]} masks a datum leave the variance of the gradient as it is (divided by {{}}).",
            ),
            least=1.0,
        )
    )
    return rows


def write(report: Report, figures: dict[str, Any]) -> None:
    found = figures["information"]
    report.section("Information", "Of two distributions p and q over six outcomes, in nats.")
    report.table(
        ("", *(f"outcome {i + 1}" for i in range(len(found["p"])))),
        [("p", *map(str, found["p"])), ("q", *map(str, found["q"])), ("surprise, -log p", *found["self_information"])],
        "Self-information: how surprising each outcome is under p.",
    )
    names = {
        "entropy": "entropy of p",
        "cross_entropy": "cross-entropy of p and q: entropy + KL(p, q)",
        "kl_pq": "KL(p, q)",
        "kl_qp": "KL(q, p)",
        "total_variation": "total variation",
        "chi_square": "chi-square, sum of (p - q)^2 / q",
    }
    report.table(
        ("", "value"), [(label, f"{found[key]:.4f}") for key, label in names.items()], "What follows from them."
    )
    axes = new_axes()
    target = 0.5 * _normal(-2.0, 0.6) + 0.5 * _normal(2.0, 0.6)
    axes.fill_between(AXIS, target, color=FAINT, lw=0, label="p")
    for (name, best), colour in zip(figures["directions"]["by_direction"].items(), CYCLE, strict=False):
        axes.plot(AXIS, _normal(best["mean"], best["scale"]), color=colour, label=f"q of least {name}")
    name_axes(axes, "w", "density")
    report.pictures({"directions": axes}, "The nearest Gaussian depends on the direction of the divergence.")
    report.section("Free energy", "Complexity and misfit of Bayes by Backprop in training, per datum.")
    trace = new_axes()
    series = figures["free_energy"]["trace"]
    for (name, values), colour in zip(series.items(), CYCLE, strict=False):
        trace.plot(np.linspace(0, 100, len(values)), values, color=colour, label=name.replace("_", " "))
    name_axes(trace, "share of the run, %", "nats a datum")
    trace.set_ylim(min(map(min, series.values())) - 0.2, np.quantile(series["loss"], 0.9) + 1)
    ends = new_axes()
    temperatures = [float(name) for name in figures["free_energy"]["ends"]]
    for key, colour in (("complexity", CYCLE[0]), ("misfit", CYCLE[1])):
        values = [each[key][0] for each in figures["free_energy"]["ends"].values()]
        ends.plot(temperatures, values, "o-", ms=3.5, color=colour, label=key)
    log_axes(ends)
    name_axes(ends, "temperature of the likelihood", "nats a datum")
    report.pictures({"free-energy": trace, "tempered": ends}, "Left: in training. Right: at the end, by temperature.")
    _write_gradients(report, figures)


def _write_gradients(report: Report, figures: dict[str, Any]) -> None:
    report.section("Gradients", "Variance of the gradient in each mean, by two estimators.")
    axes = new_axes()
    both = {"reparameterised": figures["gradients"]["path"], "score function": figures["gradients"]["score"]}
    for (name, values), colour in zip(both.items(), CYCLE, strict=False):
        axes.hist(np.log10(values), 30, color=colour, alpha=0.6, label=name)
    name_axes(axes, "log10 of the variance", "weights")
    masks = new_axes()
    table = np.array(figures["masks"]["by_masks"])
    masks.plot(table[:, 0], table[:, 1] / table[0, 1], "o-", ms=3.5, color=LINE, label="measured")
    masks.plot(table[:, 0], 1 / table[:, 0], color=INK, lw=0.8, ls=":", label="1 / masks")
    log_axes(masks, "xy")
    name_axes(masks, "masks a datum", "variance of the gradient")
    report.pictures({"gradients": axes, "masks": masks}, "Left: Bayes by Backprop. Right: dropout.")
    report.section("Dropout", "Its divergence from the prior, and what single passes say at an input in the gap.")
    ratio = new_axes()
    table = np.array(figures["dropout_kl"]["by_scale"])
    ratio.plot(table[:, 0], table[:, 1], "o-", ms=3.5, color=LINE)
    ratio.axhline(1, color=INK, lw=0.8, ls=":")
    log_axes(ratio)
    name_axes(ratio, "spread s of each bump", "KL without constants over p/2 ||m||^2")
    outputs = np.array(figures["passes"]["outputs"])
    histogram = new_axes()
    histogram.hist(outputs, 30, color=LINE, alpha=0.6)
    histogram.axvline(outputs.mean(), color=CYCLE[1], label=f"mean {outputs.mean():.2f}, variance {outputs.var():.3f}")
    name_axes(histogram, "output of one pass", "passes")
    report.pictures(
        {"dropout-kl": ratio, "passes": histogram}, "Left: towards p/2 ||m||^2. Right: passes at one input."
    )
