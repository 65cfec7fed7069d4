"""Networks of growing width against the Gaussian process they tend to, before and after data.

One hidden layer of H ReLU units, f(x) = sum_h v_h relu(u_h . (x, 1)), with u ~ N(0, I) and v ~ N(0, 2 / H). As H grows,
f becomes a Gaussian process with the arc-cosine kernel (Neal 1996; Cho & Saul 2009; t the angle of (x, 1) and (z, 1)):

    k(x, z) = |(x, 1)| |(z, 1)| (sin t + (pi - t) cos t) / pi

Given u, f is a Gaussian process with the kernel of its features, so v is integrated out. The posterior is then an
average over draws of u from the prior, each weighted by its evidence N(y; 0, K_u + s^2 I): no chain is needed, and the
effective number of draws tells how far it can be trusted.

Dropout (Gal & Ghahramani 2016 read it as an approximation of such a process) stands beside it: networks of the same
widths, trained with dropout, and the spread of their passes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpyro.distributions import Normal

from posterity.inference import MCDropout, fit
from posterity.metrics import Estimate, mean_over_rows
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.models.priors import prior
from posterity.networks import mlp
from posterity.plots.palette import CYCLE, FAINT, INK, LINE, log_axes, name_axes, new_axes
from posterity.plots.palette import DATA as POINTS
from posterity.studies.questions.claims import Wording, claim
from posterity.studies.questions.question import Report, Study
from posterity.studies.questions.subject import rounded
from posterity.studies.rows import Row
from posterity.studies.study import Size

TITLE = "How wide must a network be to be a Gaussian process?"
REFERENCE = "Neal 1996; Cho & Saul 2009, Kernel Methods for Deep Learning; Lee et al. 2018; Gal & Ghahramani 2016."
DATA: str | None = None
NOISE = 0.2
GRID = np.linspace(-3.0, 3.0, 41)[:, None]
TESTED = 35  # of the grid: where the prior's marginal is looked at
FEWEST = 100  # effective draws below which the posterior of a width may not be judged
BLOCK = 200  # draws at a time


def settings(size: Size) -> dict[str, Any]:
    return {
        "full": {"widths": [10, 30, 100, 300, 1000, 3000], "draws": 20_000, "steps": 4000, "dropout": 0.1},
        "quick": {"widths": [10, 100, 1000], "draws": 4000, "steps": 1000, "dropout": 0.1},
        "tiny": {"widths": [10, 50], "draws": 200, "steps": 100, "dropout": 0.1},
    }[size]


def points() -> tuple[np.ndarray, np.ndarray]:
    """Eight points of a wave, with a gap."""
    rng = np.random.default_rng(0)
    x = np.array([-2.2, -1.8, -1.3, -0.9, 0.8, 1.2, 1.6, 2.1])[:, None]
    return x, np.sin(1.5 * x[:, 0]) + NOISE * rng.normal(size=len(x))


def arc_cosine(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The kernel in closed form."""
    one, other = (np.concatenate([each, np.ones((len(each), 1))], 1) for each in (x, z))
    lengths = np.linalg.norm(one, axis=1)[:, None] * np.linalg.norm(other, axis=1)
    cosine = np.clip(one @ other.T / lengths, -1.0, 1.0)
    angle = np.arccos(cosine)
    return lengths * (np.sin(angle) + (np.pi - angle) * cosine) / np.pi


def conditioned(kernel: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and variance at the grid given y at the last rows of a kernel, and the log evidence of y."""
    count = len(y)
    inner = kernel[-count:, -count:] + NOISE**2 * np.eye(count)
    factor = np.linalg.cholesky(inner)
    cross = np.linalg.solve(factor, kernel[-count:, :-count])
    whitened = np.linalg.solve(factor, y)
    variance = np.diag(kernel)[:-count] - (cross**2).sum(0)
    evidence = -0.5 * whitened @ whitened - np.log(np.diag(factor)).sum() - count / 2 * np.log(2 * np.pi)
    return cross.T @ whitened, variance, float(evidence)


def measure(study: Study) -> dict[str, Any]:
    chosen = study.settings
    found = {
        f"{width}": study.log.once(f"width/{width}", partial(_measure, chosen, width)) for width in chosen["widths"]
    }
    x, y = points()
    mean, variance, evidence = conditioned(arc_cosine(*[np.concatenate([GRID, x])] * 2), y)
    process = {"mean": rounded(mean), "sd": rounded(np.sqrt(variance)), "evidence": evidence}
    prior_sd = float(np.sqrt(arc_cosine(GRID[TESTED : TESTED + 1], GRID[TESTED : TESTED + 1])[0, 0]))
    return {"widths": found, "process": process, "prior_sd": prior_sd}


def _measure(chosen: dict[str, Any], width: int) -> dict[str, Any]:
    rng = np.random.default_rng(width)
    x, y = points()
    rows = np.concatenate([GRID, x])
    with_one = np.concatenate([rows, np.ones((len(rows), 1))], 1)
    means, variances, evidences, values = [], [], [], []
    for start in range(0, chosen["draws"], BLOCK):
        count = min(BLOCK, chosen["draws"] - start)
        features = np.maximum(with_one @ rng.normal(size=(count, 2, width)), 0.0) * np.sqrt(2 / width)
        for kernel in features @ features.transpose(0, 2, 1):
            mean, variance, evidence = conditioned(kernel, y)
            means.append(mean)
            variances.append(np.maximum(variance, 0.0))
            evidences.append(evidence)
        values.append((features[:, TESTED] * rng.normal(size=(count, width))).sum(1))
    weights = np.exp(evidences - np.max(evidences))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    variance = weights @ (np.array(variances) + (np.array(means) - mean) ** 2)
    outputs = np.concatenate(values)
    standard = (outputs - outputs.mean()) / outputs.std()
    fourth = mean_over_rows(standard**4)
    return {
        "kurtosis": [fourth.value - 3.0, fourth.standard_error],
        "prior_values": rounded(outputs[:500]),
        "mean": rounded(mean),
        "sd": rounded(np.sqrt(variance)),
        "effective": float(1 / np.square(weights).sum()),
        "dropout_sd": rounded(_dropout_spread(chosen, width)),
    }


def _dropout_spread(chosen: dict[str, Any], width: int) -> np.ndarray:
    """The spread of the passes of a network of this width that was trained with dropout."""
    model = Model(mlp((width,), dropout=chosen["dropout"]), Gaussian(NOISE), prior(Normal(0.0, 1.4), fan_in=True))
    method = MCDropout(num_steps=chosen["steps"], learning_rate=5e-3, batch_size="full")
    posterior = fit(model, method, points(), progress=False)
    return np.sqrt(posterior.predict(GRID).epistemic)


def distance(found: dict[str, Any], process: dict[str, Any], key: str = "sd") -> float:
    """Root mean square over the grid of the difference from the process: of spread and mean, of dropout the spread."""
    parts = [np.subtract(found[key], process["sd"])]
    if key == "sd":
        parts.append(np.subtract(found["mean"], process["mean"]))
    return float(np.sqrt(np.mean(np.square(parts))))


def error_of(found: dict[str, Any]) -> float:
    """Monte Carlo error of such a distance, about: that of a mean over the effective draws."""
    return float(np.mean(found["sd"]) / np.sqrt(found["effective"]))


def conclude(figures: dict[str, Any]) -> list[Row]:
    widths = figures["widths"]
    least, most = min(widths, key=int), max(widths, key=int)
    kurtosis = {name: Estimate(*widths[name]["kurtosis"]) for name in (least, most)}
    apart = Estimate(
        kurtosis[least].value - kurtosis[most].value,
        float(np.hypot(kurtosis[least].standard_error, kurtosis[most].standard_error)),
    )
    told = Wording(
        f"the prior of a network becomes Gaussian with its width: the excess kurtosis of f falls by {{}} from width "
        f"{least} to {most}.",
        f"the prior of a network does not become Gaussian: the excess kurtosis of f rises by {{}} from width {least} "
        f"to {most}.",
        f"whether the prior becomes Gaussian stays open: the excess kurtosis of f falls by {{}} from width {least} to "
        f"{most}.",
    )
    rows = [claim("prior: excess kurtosis that is lost with width", apart, told)]
    trusted = {name: found for name, found in widths.items() if found["effective"] >= FEWEST}
    judges = [_facts(found) for found in (widths[least], widths[most])]
    near, far = (distance(widths[name], figures["process"]) for name in (most, least))
    error = float(np.hypot(error_of(widths[least]), error_of(widths[most])))
    told = Wording(
        f"the posterior of a network becomes that of the process: its distance falls by {{}} from width {least} to "
        f"{most}.",
        f"the posterior of a network moves away from that of the process: its distance grows by {{}} from width "
        f"{least} to {most}.",
        f"the posterior of a network is near that of the process at every width: from {least} to {most} its distance "
        "falls by {} only.",
    )
    rows.append(
        claim("posterior: distance from the process that is lost with width", Estimate(far - near, error), told, judges)
    )
    widest = max(trusted or widths, key=int)
    ratio = np.log(np.divide(widths[widest]["dropout_sd"], figures["process"]["sd"]))
    short = mean_over_rows(-ratio[::8])  # every eighth point of the grid: neighbours say the same
    told = Wording(
        f"dropout at width {widest} is too sure beside the process: its spread is exp(-{{}}) of the process's.",
        f"dropout at width {widest} is too unsure beside the process: its spread is exp({{}}) of the process's.",
        f"dropout at width {widest} spreads about as the process does (log ratio {{}}).",
    )
    rows.append(claim("dropout: log ratio of the process's spread to its own", short, told))
    return rows


def _facts(found: dict[str, Any]) -> dict[str, str]:
    """An average over weighted draws may judge where enough of them count."""
    return {"verdict": "good" if found["effective"] >= FEWEST else f"{found['effective']:.0f} effective draws"}


def write(report: Report, figures: dict[str, Any]) -> None:
    widths, process = figures["widths"], figures["process"]
    report.section("Before the data", "The value of f at one input, over draws of networks from the prior.")
    axes = new_axes()
    for (width, found), colour in zip(widths.items(), CYCLE, strict=False):
        ordered = np.sort(np.array(found["prior_values"]) / figures["prior_sd"])
        axes.step(ordered, np.linspace(0, 1, len(ordered)), where="post", color=colour, lw=1.0, label=f"width {width}")
    name_axes(axes, "f, in standard deviations of the process", "share up to it")
    kurtosis = new_axes()
    counts = [int(width) for width in widths]
    kurtosis.plot(
        counts, [found["kurtosis"][0] for found in widths.values()], "o-", ms=3.5, color=LINE, label="measured"
    )
    # Given u, f is Gaussian of variance (2 / H) sum relu(a)^2, of relative variance 5 / H; the excess is 3 times that.
    kurtosis.plot(counts, 15 / np.array(counts), color=INK, lw=0.8, ls=":", label="15 / width")
    log_axes(kurtosis, "x")
    name_axes(kurtosis, "width", "excess kurtosis of f")
    report.pictures(
        {"prior": axes, "kurtosis": kurtosis}, "Left: the marginal of f. Right: how far it is from Gaussian."
    )
    report.section("After eight points", "Mean and two standard deviations; the grey band is the process.")
    drawn = {}
    x, y = points()
    for width, found in widths.items():
        panel = new_axes()
        mean, sd = np.array(process["mean"]), np.array(process["sd"])
        panel.fill_between(GRID[:, 0], mean - 2 * sd, mean + 2 * sd, color=FAINT, lw=0, label="process")
        ours, spread, dropped = (np.array(found[key]) for key in ("mean", "sd", "dropout_sd"))
        panel.plot(GRID[:, 0], ours, color=LINE, label="network")
        for sign in (-2, 2):
            panel.plot(GRID[:, 0], ours + sign * spread, color=LINE, lw=0.8, ls="--")
            panel.plot(
                GRID[:, 0], ours + sign * dropped, color=CYCLE[1], lw=0.8, ls=":", label="dropout" if sign > 0 else None
            )
        panel.plot(x[:, 0], y, ".", color=POINTS)
        panel.set_title(f"width {width}")
        drawn[f"posterior-{width}"] = panel
    report.pictures(drawn, "Dashed: two standard deviations of the network; dotted: of dropout, around the same mean.")
    rows = [
        (
            width,
            f"{distance(found, process):.3f}",
            f"{distance(found, process, 'dropout_sd'):.3f}",
            f"{found['effective']:.0f}",
        )
        for width, found in widths.items()
    ]
    report.table(
        ("width", "distance from the process", "of dropout's spread", "effective draws"),
        rows,
        f"Root mean square over the grid. Below {FEWEST} effective draws a width may not be judged.",
    )
