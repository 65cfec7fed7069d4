"""Do chains mix, and what makes them: trajectories, step sizes, heads, activations, barriers, minibatches.

Chains are judged in function space, by what they predict, and in weight space. The other experiments begin at the draws
of the reference, and change one thing each.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import jax
import numpy as np

from posterity.core import records
from posterity.data.arrays import check_inputs
from posterity.inference import HMC, fit
from posterity.inference.methods.hmc import trajectory
from posterity.metrics import Estimate, mean_over_rows
from posterity.metrics.convergence import effective_draws
from posterity.models.likelihoods import HeteroscedasticGaussian
from posterity.models.model import Model
from posterity.networks import mlp
from posterity.plots.palette import CYCLE, FAINT, INK, LINE, log_axes, name_axes, new_axes
from posterity.posterior.diagnosis import GOOD, USABLE, share_under
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.prediction.streaming import DEFAULT_MEMORY, OutputStream
from posterity.studies.questions.claims import Published, Wording, claim, paired
from posterity.studies.questions.question import Report, Study
from posterity.studies.questions.subject import Split, rounded
from posterity.studies.questions.trajectories import barriers, draw_of, minibatch_hmc
from posterity.studies.rows import Row
from posterity.studies.study import Size
from posterity.tables.defaults import table_method, table_prior

TITLE = "Do chains mix, and what makes them?"
REFERENCE = "Izmailov et al. 2021, sections 4 and 5 and appendix."
DATA: str | None = "digits"
LEAPFROGS = 20  # at most, of a trajectory whose step size adapts, for each draw that is asked for
LENGTHS = (0.25, 0.5, 1.0, 1.5)  # of the quarter period, pi sigma / 2
PUBLISHED_ACCEPTANCE = {1e-5: 0.722, 5e-5: 0.463, 1e-4: 0.222, 5e-4: 0.125}  # IMDB, by step size
PUBLISHED_SHARE = Published(0.91)  # CIFAR-10: predictions with R-hat under 1.1
PUBLISHED_SHORT = Published(0.3217 - 0.3175, 0.01)  # CIFAR-10, as many draws in all: one chain minus three


def settings(size: Size) -> dict[str, Any]:
    common = {"hidden": [20], "rows": 300, "splits": 1}
    return {
        "full": {
            **common,
            "budget": 120.0,
            "steps": [0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
            "draws": 100,
            "pairs": 40,
            "trajectories": 100,
        },
        "quick": {
            **common,
            "budget": 60.0,
            "steps": [0.5, 1.0, 2.0, 4.0],
            "draws": 30,
            "pairs": 12,
            "trajectories": 20,
        },
        "tiny": {
            **common,
            "hidden": [3],
            "rows": 60,
            "budget": 3.0,
            "steps": [1.0, 4.0],
            "draws": 10,
            "pairs": 4,
            "trajectories": 6,
        },
    }[size]


def measure(study: Study) -> dict[str, Any]:
    split = study.splits[0]
    parts = {
        "chains": _chains,
        "lengths": _lengths,
        "steps": _steps,
        "activations": _activations,
        "barriers": _barriers,
        "minibatches": _minibatches,
    }
    figures = {name: study.log.once(name, partial(part, study, split)) for name, part in parts.items()}
    figures["heads"] = study.log.once("heads", partial(_heads, study))
    return {**figures, "references": {"split 0": figures["chains"]["reference"]}}


def adapted(posterior: Posterior) -> tuple[float, float]:
    """The step size that the reference came to, and its trajectory length."""
    length, _ = trajectory(HMC(), posterior.model, draw_of(posterior, 0, 0))
    return float(np.asarray(posterior.trace["step_size"])[:, -1].mean()), float(length)


def _chains(study: Study, split: Split) -> dict[str, Any]:
    """R-hat in both spaces; one long chain against several short ones; burn-in."""
    reference = study.reference(split)
    posterior, diagnosis = reference.posterior, reference.diagnosis
    space = diagnosis.weight_space
    num_chains, num_draws = diagnosis.num_chains, diagnosis.num_draws
    draws = np.arange(num_chains * num_draws)
    long = [_nll(posterior, split, draws[draws % num_chains == chain]) for chain in range(num_chains)]
    short = _nll(posterior, split, draws[: num_chains * (num_draws // num_chains)])
    step_size, _ = adapted(posterior)
    # From a mode on, which lies far from where draws are, and where the density is steeper.
    start = table_method("map", len(split.y))
    cold = HMC(3 * study.settings["draws"] // 2, num_burn_in=0, step_size=step_size / 2, start=start)
    run = fit(posterior.model, cold, split.data, seed=3, progress=False)
    block, count = study.settings["draws"] // 2, run.family.num_chains
    drops = [drop for drop in (0, 2, 5, 10, 20, 50) if drop <= 2 * block]
    burned = [float(_nll(run, split, np.arange(drop * count, (drop + block) * count)).mean()) for drop in drops]
    return {
        "function": rounded(diagnosis.r_hat_of_inputs),
        "weights": [] if space is None else rounded(space.r_hat),
        "long": rounded(np.mean(long, 0)),
        "short": rounded(short),
        "burn_in": [drops, burned],
        "reference": reference.facts,
    }


def _nll(posterior: Posterior, split: Split, draws: np.ndarray) -> np.ndarray:
    """Of the average over some of the stored draws, at each test row."""
    family, inputs = posterior.family, check_inputs(split.x_test)
    stream = OutputStream(posterior.model, family, jax.random.key(0), inputs, draws, False, DEFAULT_MEMORY)
    return -Prediction(stream).log_prob(split.y_test)


def _lengths(study: Study, split: Split) -> dict[str, Any]:
    """Effective draws per thousand gradients by trajectory length, at about equal cost."""
    posterior = study.reference(split).posterior
    step_size, length = adapted(posterior)
    found = []
    for factor in LENGTHS:
        count = max(10, round(study.settings["draws"] / factor))
        method = HMC(count, num_burn_in=0, step_size=step_size, trajectory_length=factor * length, start=posterior)
        run = fit(posterior.model, method, split.data, seed=4, progress=False)
        values = np.asarray(run.diagnose(split.at[:20]).draws["probability" if split.is_classes else "mean"], float)
        gradients = float(np.asarray(run.trace["num_gradients"]).sum())
        effective = np.ravel(effective_draws(values)) / gradients * 1000
        found.append([factor, rounded(effective[np.isfinite(effective)])])
    return {"by_length": found}


def _steps(study: Study, split: Split) -> dict[str, Any]:
    """Acceptance by step size."""
    posterior = study.reference(split).posterior
    step_size, _ = adapted(posterior)
    found = []
    for factor in study.settings["steps"]:
        method = HMC(
            max(10, study.settings["draws"] // 3), num_burn_in=0, step_size=factor * step_size, start=posterior
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="chain .* accepted no step")  # which is the answer here
            run = fit(posterior.model, method, split.data, seed=5, progress=False)
        found.append([factor, *mean_over_rows(np.ravel(run.trace["acceptance"]))])
    return {"by_step": found, "step_size": step_size}


def _activations(study: Study, split: Split) -> dict[str, Any]:
    """Acceptance with ReLU and with SiLU, at the same step sizes."""
    base = split.model()
    num_draws, most = max(10, study.settings["draws"] // 3), LEAPFROGS * study.settings["draws"]
    found: dict[str, Any] = {}
    for name in ("silu", "relu"):
        model = records.replace(base, network=mlp(split.hidden, base.likelihood.num_outputs, activation=name))
        start = fit(model, HMC(num_draws, num_burn_in=50, max_leapfrog=most), split.data, seed=6, progress=False)
        step_size = adapted(start)[0] if name == "silu" else found["step_size"]
        found["step_size"] = step_size
        method = HMC(num_draws, num_burn_in=0, step_size=step_size, start=start)
        run = fit(model, method, split.data, seed=7, progress=False)
        found[name] = rounded(np.ravel(run.trace["acceptance"]))
    return found


def _barriers(study: Study, split: Split) -> dict[str, Any]:
    """Depths along paths between draws of one chain, and of two."""
    posterior = study.reference(split).posterior
    num_chains = posterior.family.num_chains
    last = (posterior.family.num_draws or num_chains) // num_chains - 1
    count = study.settings["pairs"]
    within = [
        ((i % num_chains, i * last // (2 * count)), (i % num_chains, last - i * last // (4 * count)))
        for i in range(count)
    ]
    between = [(one, ((one[0] + 1) % num_chains, other[1])) for one, other in within]
    found: dict[str, Any] = {}
    for name, pairs in (("one chain", within), ("two chains", between)):
        for kind in ("straight", "curved"):
            depths, paths = barriers(posterior, split.data, pairs, kind)
            found[f"{name}, {kind}"] = {
                "depths": rounded(depths),
                "path": rounded(paths.mean(0) - paths[:, [0, -1]].mean()),
            }
    return {"by_path": found}


def _minibatches(study: Study, split: Split) -> dict[str, Any]:
    posterior = study.reference(split).posterior
    step_size, length = adapted(posterior)
    usual = np.asarray(posterior.diagnose(split.at[:8]).trace["log_joint"], float)
    how: dict[str, Any] = {
        "num_leapfrog": min(200, max(5, round(length / step_size))),
        "num_trajectories": study.settings["trajectories"],
    }
    found: dict[str, Any] = {"log_joint": [float(usual.mean()), float(usual.std())]}
    whole = len(split.y)
    for name, size, accepts in (
        ("all rows", whole, True),
        ("minibatches", whole // 4, True),
        ("minibatches, every proposal taken", whole // 4, False),
    ):
        chances, densities = minibatch_hmc(posterior, split.data, step_size, batch_size=size, accepts=accepts, **how)
        found[name] = {"acceptance": rounded(chances), "log_joint": rounded(densities)}
    return found


def _heads(study: Study) -> dict[str, Any]:
    """A curve with Gaussian noise: its head integrated out, or sampled with the other weights."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (100, 1))
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=len(x))
    model = Model(mlp((20,), activation="tanh"), HeteroscedasticGaussian(), table_prior("regression"))
    grid = np.linspace(-2.5, 2.5, 30)[:, None]
    found = {}
    for head in ("integrated", "sampled"):
        method = HMC(
            max(20, study.settings["draws"]),
            num_burn_in=50,
            head=head,
            max_leapfrog=LEAPFROGS * study.settings["draws"],
        )
        run = fit(model, method, (x, y), seed=8, progress=False)
        diagnosis = run.diagnose(grid)
        gradients = float(np.asarray(run.trace["num_gradients"]).sum())
        found[head] = {
            "per_gradient": rounded(1000 * diagnosis.ess_bulk / gradients),
            "r_hat": float(np.nanmax(diagnosis.r_hat)),
            "step_size": adapted(run)[0],
        }
    return {"by_head": found}


def conclude(figures: dict[str, Any]) -> list[Row]:
    judges = list(figures["references"].values())
    chains, rows = figures["chains"], []
    function = np.array(chains["function"])
    told = Wording(
        f"chains mix in function space: R-hat is under {USABLE} at {{}} of the test inputs.",
        f"chains do not mix in function space: R-hat is under {USABLE} at {{}} of the test inputs.",
        f"whether chains mix in function space stays open: R-hat is under {USABLE} at {{}} of the test inputs.",
    )
    # Not a matter of the reference's verdict: this is the verdict.
    rows.append(
        claim(
            "function space: share of inputs with R-hat under 1.1",
            _share(function, USABLE),
            told,
            least=0.9,
            published=PUBLISHED_SHARE,
        )
    )
    if chains["weights"]:
        ours, theirs = _share(function, GOOD), _share(np.array(chains["weights"]), GOOD)
        found = Estimate(ours.value - theirs.value, float(np.hypot(ours.standard_error, theirs.standard_error)))
        told = Wording(
            f"weights mix worse than functions: of functions, {{}} more than of weights have an R-hat under {GOOD}.",
            f"weights mix better than functions: of weights, {{}} more than of functions have an R-hat under {GOOD}.",
            f"functions and weights mix alike (difference in shares of R-hat under {GOOD}: {{}}).",
        )
        rows.append(claim("weight space: share with R-hat under 1.01 that is missing", found, told))
    told = Wording(
        "several short chains predict better than one long chain at the same number of draws, by {} nats a row.",
        "one long chain predicts better than several short ones at the same number of draws, by {} nats a row.",
        "one long chain and several short ones predict alike at the same number of draws ({} nats a row).",
    )
    found = paired([chains["long"]], [chains["short"]])
    rows.append(claim("several short chains: gain over a long one", found, told, judges, published=PUBLISHED_SHORT))
    return rows + _sampler_rows(figures, judges)


def _sampler_rows(figures: dict[str, Any], judges: list[dict[str, Any]]) -> list[Row]:
    """What makes chains mix."""
    by_length = {factor: np.array(values) for factor, values in figures["lengths"]["by_length"]}
    ratio = _log_ratio(by_length[1.0], by_length[0.25])
    rows = [
        claim(
            "trajectory of a quarter period: log ratio of effective draws a gradient to a quarter of it",
            ratio,
            Wording(
                "whole trajectories, pi sigma / 2, mix better than a quarter of them at equal cost (log ratio {}).",
                "short trajectories mix better than whole ones at equal cost (log ratio {}).",
                "trajectory length makes no clear difference at equal cost (log ratio {}).",
            ),
            judges,
        )
    ]
    heads = figures["heads"]["by_head"]
    rows.append(
        claim(
            "head integrated out: log ratio of effective draws a gradient",
            _log_ratio(np.array(heads["integrated"]["per_gradient"]), np.array(heads["sampled"]["per_gradient"])),
            Wording(
                "integrating the head out gives more effective draws a gradient than sampling it (log ratio {}).",
                "sampling the head gives more effective draws a gradient than integrating it out (log ratio {}).",
                "integrating the head out makes no clear difference (log ratio {}).",
            ),
        )
    )
    silu, relu = (np.array(figures["activations"][name]) for name in ("silu", "relu"))
    rows.append(
        claim(
            "SiLU: acceptance above ReLU at equal step",
            _difference(silu, relu),
            Wording(
                "at the same step size SiLU networks accept more than ReLU networks, by {}.",
                "at the same step size SiLU networks accept less than ReLU networks, by {}.",
                "SiLU and ReLU networks accept about as much at the same step size (difference {}).",
            ),
        )
    )
    paths = {name: np.array(found["depths"]) for name, found in figures["barriers"]["by_path"].items()}
    rows.append(
        claim(
            "barriers: straight paths above curved ones, nats",
            _difference(paths["two chains, straight"], paths["two chains, curved"]),
            Wording(
                "between chains the straight path crosses a barrier {} nats higher than the curved one.",
                "between chains the curved path crosses a barrier {} nats higher than the straight one.",
                "straight and curved paths between chains cross barriers alike ({} nats).",
            ),
            judges,
        )
    )
    rows.append(
        claim(
            "barriers: between chains above those within one, nats",
            _difference(paths["two chains, straight"], paths["one chain, straight"]),
            Wording(
                "draws of two chains are separated by higher barriers than draws of one, by {} nats.",
                "draws of one chain are separated by higher barriers than draws of two, by {} nats.",
                "barriers between draws of two chains are as high as between draws of one ({} nats apart): chains are "
                "not in regions of their own.",
            ),
            judges,
        )
    )
    batches = figures["minibatches"]
    rows.append(
        claim(
            "minibatch gradients: acceptance that is lost",
            _difference(np.array(batches["all rows"]["acceptance"]), np.array(batches["minibatches"]["acceptance"])),
            Wording(
                "gradients of minibatches break HMC: acceptance falls by {}.",
                "gradients of minibatches raise the acceptance of HMC, by {}.",
                "gradients of minibatches leave the acceptance of HMC as it is (loss {}).",
            ),
            judges,
        )
    )
    free = np.array(batches["minibatches, every proposal taken"]["log_joint"])
    later = free[len(free) // 2 :]
    usual, spread = batches["log_joint"]
    heat = Estimate((usual - float(later.mean())) / spread, max(1.0, float(later.std()) / spread) / np.sqrt(len(later)))
    rows.append(
        claim(
            "minibatch gradients, every proposal taken: log joint below the posterior's, standard deviations",
            heat,
            Wording(
                "without the accept step minibatch gradients heat the chain: its log joint lies {} of the posterior's "
                "standard deviations too low.",
                "without the accept step minibatch gradients cool the chain: its log joint lies {} of the posterior's "
                "standard deviations too high.",
                "without the accept step minibatch gradients leave the log joint where it is (too low by {}).",
            ),
            judges,
        )
    )
    return rows


def _share(values: np.ndarray, threshold: float) -> Estimate:
    """The share under a threshold, with an error that does not vanish at 1."""
    known = values[np.isfinite(values)]
    share = share_under(known, threshold)
    smoothed = (share * len(known) + 1) / (len(known) + 2)
    return Estimate(share, float(np.sqrt(smoothed * (1 - smoothed) / len(known))))


def _difference(first: np.ndarray, second: np.ndarray) -> Estimate:
    one, other = mean_over_rows(first), mean_over_rows(second)
    return Estimate(one.value - other.value, float(np.hypot(one.standard_error, other.standard_error)))


def _log_ratio(first: np.ndarray, second: np.ndarray) -> Estimate:
    return _difference(np.log(np.maximum(np.ravel(first), 1e-9)), np.log(np.maximum(np.ravel(second), 1e-9)))


def write(report: Report, figures: dict[str, Any]) -> None:
    chains = figures["chains"]
    report.section("Function space and weight space", "R-hat compares chains with each other; 1 means that they agree.")
    axes = new_axes()
    for (name, values), colour in zip(
        (("functions", chains["function"]), ("weights", chains["weights"])), CYCLE, strict=False
    ):
        ordered = np.sort([value for value in values if np.isfinite(value)])
        axes.step(
            ordered, np.arange(1, len(ordered) + 1) / max(len(ordered), 1), where="post", color=colour, label=name
        )
    axes.axvline(GOOD, color=INK, lw=0.8, ls=":")
    name_axes(axes, "R-hat", "share up to it")
    burn = new_axes()
    burn.plot(*chains["burn_in"], color=LINE, marker="o", ms=3.5)
    name_axes(burn, "steps discarded", "negative log likelihood")
    report.pictures(
        {"r-hat": axes, "burn-in": burn},
        "Left: R-hat of predictions and of weights. Right: the average over as many draws after a burn-in.",
        "where burn-in no longer matters.",
    )
    report.section("What a step costs", "Effective draws per thousand gradients, and acceptance.")
    lengths = new_axes()
    by_length = [(factor, np.median(values)) for factor, values in figures["lengths"]["by_length"]]
    lengths.plot(*zip(*by_length, strict=True), color=LINE, marker="o", ms=3.5)
    name_axes(lengths, "trajectory, in quarter periods", "effective draws per 1,000 gradients")
    steps = new_axes()
    table = np.array(figures["steps"]["by_step"])
    steps.plot(table[:, 0] * figures["steps"]["step_size"], table[:, 1], color=LINE, marker="o", ms=3.5, label="here")
    steps.plot(
        list(PUBLISHED_ACCEPTANCE),
        list(PUBLISHED_ACCEPTANCE.values()),
        color=CYCLE[1],
        marker="s",
        ms=3.5,
        label="published (IMDB)",
    )
    log_axes(steps)
    name_axes(steps, "step size", "acceptance")
    report.pictures({"lengths": lengths, "steps": steps}, "Trajectory length and step size.")
    rows = [
        (f"{factor:g} x {figures['steps']['step_size']:.3g}", Estimate(value, error)) for factor, value, error in table
    ]
    report.table(("step size", "acceptance"), rows, "Acceptance by step size, in units of the adapted one.")
    _write_energies(report, figures)


def _write_energies(report: Report, figures: dict[str, Any]) -> None:
    report.section("Energy barriers", "The log joint along paths between draws, on average over pairs.")
    axes = new_axes()
    for (name, found), colour in zip(figures["barriers"]["by_path"].items(), CYCLE, strict=False):
        axes.plot(np.linspace(0, 1, len(found["path"])), found["path"], color=colour, label=name)
    name_axes(axes, "along the path", "log joint above the ends, nats")
    report.pictures({"barriers": axes}, "Straight and curved paths.", "how far the straight path falls.")
    batches = figures["minibatches"]
    report.section(
        "Gradients of minibatches", "HMC from a draw of the posterior on, with gradients of a quarter of the rows."
    )
    trace = new_axes()
    usual, spread = batches["log_joint"]
    runs = {name: found for name, found in batches.items() if isinstance(found, dict)}
    ends = [0, max(len(found["log_joint"]) for found in runs.values()) - 1]
    trace.fill_between(ends, usual - 2 * spread, usual + 2 * spread, color=FAINT, lw=0, label="posterior")
    for (name, found), colour in zip(runs.items(), CYCLE, strict=False):
        trace.plot(found["log_joint"], color=colour, label=name)
    name_axes(trace, "trajectories", "log joint")
    report.pictures({"minibatches": trace}, "The log joint after each trajectory, and where the posterior has it.")
    heads = figures["heads"]["by_head"]
    report.section("Heads", "A curve with Gaussian noise, its last layer integrated out or sampled.")
    report.table(
        ("head", "effective draws per 1,000 gradients, least", "largest R-hat", "step size"),
        [
            (name, f"{np.min(found['per_gradient']):.3g}", f"{found['r_hat']:.3f}", f"{found['step_size']:.3g}")
            for name, found in heads.items()
        ],
        "At the worst of 30 inputs.",
    )
