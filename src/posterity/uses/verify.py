"""Does a method do what it claims? A kit of checks for any method, also one of your own, with one of three verdicts.

    samples        its draws are from the posterior, as far as these tests can tell
    approximates   it does what its own equations state, which is something else than the posterior, by this much
    fails          it does not do what its own equations state

Checks, on posteriors whose answers are known (laws.py):

    keys           JAX's checker finds no random key that is used twice
    resume         steps from a state that went through plain arrays are the same, bit for bit
    mixing         rank-normalised split R-hat of outputs over chains (Vehtari et al. 2021)
    own equations  mean and variance of outputs against those that the method's equations give
    posterior      mean and variance of outputs against the exact ones, for numbers and for classes
    temperature    E[(w - m)^T V^-1 (w - m)] / 2 of two weights, which is T for a posterior at temperature T
    step size      the same at twice the learning rate, where a method has one: a bias should grow with it
    calibration    ranks of weights from the prior among draws given data from them (Talts et al. 2018)

A deviation counts where it is beyond four Monte Carlo errors and a tolerance, as for the bias of a finite step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from posterity.core import records
from posterity.data.arrays import Dataset, check_inputs
from posterity.data.batches import clock
from posterity.inference.engine.driver import fit
from posterity.inference.methods.card import Expectation
from posterity.inference.methods.method import Method
from posterity.metrics.convergence import r_hat
from posterity.metrics.estimate import FloatArray
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.tables.defaults import table_method
from posterity.uses import laws
from posterity.uses.laws import Law

Verdict = Literal["samples", "approximates", "fails"]
WORDS: dict[Verdict, str] = {
    "samples": "samples the posterior",
    "approximates": "approximates the posterior",
    "fails": "does not do what its own equations state",
}
TOLERANCE = 0.1  # of a mean, in standard deviations, and of a variance, as a share: beyond its Monte Carlo error
LARGEST_ERROR = 0.25  # above which draws cannot tell
MIXED = 1.05  # R-hat
NUM_DRAWS = 4_000  # of a family that makes them afresh
NUM_STEPS = 4  # of the check of resuming
NUM_RANKED = 15
LEAST_P_VALUE = 1e-3


@dataclass(frozen=True)
class Check:
    """One test: whether it was passed, and what was found."""

    passed: bool
    words: str
    counts: bool = True
    """Whether a failure means that the method does not do what it states; otherwise it tells how far it is off."""


@dataclass(frozen=True)
class Verification:
    """What the checks of a method came to; print it."""

    method: str
    """With its settings."""
    expected: Expectation
    """What its card states: "samples" or "approximates"."""
    checks: dict[str, Check] = field(default_factory=dict)
    """By name."""
    divergence: float = 0.0
    """KL of what it gives from the exact posterior of the numbers, from means and variances, in nats."""

    @property
    def verdict(self) -> Verdict:
        failed = any(check.counts and not check.passed for check in self.checks.values())
        return "fails" if failed else self.expected

    def __str__(self) -> str:
        by = f", by {self.divergence:.3g} nats" if self.verdict == "approximates" else ""
        marks = {True: "passed", False: "FAILED"}
        lines = [
            f"  {name:14} {marks[check.passed] if check.counts else 'found'}: {check.words}"
            for name, check in self.checks.items()
        ]
        return "\n".join([f"{self.method} {WORDS[self.verdict]}{by}.", *lines])


def verify(
    method: Method | str,
    model: Model | None = None,
    x: Any = None,
    *,
    expected: Expectation | None = None,
    num_simulations: int = 20,
    seed: int = 0,
) -> Verification:
    """Check that a method does what it claims, in about two minutes.

    Args:
        method: With its settings; or a name of `METHODS`, with those that its card has for this purpose.
        model: A model of your own to calibrate on, by data drawn from its prior. None: a logistic regression.
        x: Inputs for such data, with `model`.
        expected: What the method claims, "samples" or "approximates". None: what its card states.
        num_simulations: Data sets of the calibration, for methods that claim to sample; 0: leave it out.
        seed: Of fits and simulations.
    """
    if (model is None) != (x is None):
        raise ValueError("model and x come together: x are the inputs at which data are drawn from the model.")
    made = _named(method) if isinstance(method, str) else method
    claim = expected or made.card.verdict or "approximates"
    checks = {"keys": check_keys(made, seed), "resume": check_resume(made, seed)}
    posterior = fit(laws.NUMBERS, made, laws.numbers(), seed=seed, progress=False)
    found = Outputs.of(posterior, seed)
    exact, own = laws.posterior_of_numbers(), laws.law_of(made)
    samples = claim == "samples"
    if len(found.values) > found.num_chains and posterior.family.num_draws is not None:
        checks["mixing"] = found.check_mixing()
    if own is not None:
        checks["own equations"] = found.check(own, exact.covariance)
    checks["posterior"] = _counted(found.check(exact, exact.covariance), samples)
    checks["temperature"] = _counted(found.check_temperature(exact, laws.NUMBERS.temperature), samples)
    if "mixing" in checks and "learning_rate" in {each.name for each in dataclasses.fields(made)}:  # type: ignore[arg-type]
        checks["step size"] = _step_size(made, found, exact, seed)
    refused, of_classes = _fit(laws.CLASSES, made, laws.classes(), seed)
    if of_classes is None:
        checks["classes"] = Check(True, f"not for them: {refused}", counts=False)
    else:
        truth = laws.posterior_of_classes()
        checks["classes"] = _counted(Outputs.of(of_classes, seed).check(truth, truth.covariance), samples)
    if samples and num_simulations:
        # Of numbers: five classes drawn from the prior are often one class only, which `fit` refuses.
        simulated, inputs = (laws.NUMBERS, laws.numbers().x) if model is None else (model, x)
        checks["calibration"] = check_calibration(made, simulated, check_inputs(inputs), num_simulations, seed)
    return Verification(repr(made), claim, checks, laws.divergence(found.law, exact))


def _named(name: str) -> Method:
    """With the settings of a small table, except for those with which the card has it verified."""
    method = table_method(name, laws.numbers().num_rows)
    return records.replace(method, **method.card.verified_with())


@dataclass(frozen=True)
class Outputs:
    """Outputs of draws at the two inputs of laws.py, and how well their averages are known."""

    values: FloatArray
    """[S, 2]."""
    num_chains: int
    """Of which draw s belongs to s % num_chains."""
    prediction: Prediction
    """What knows which draws are correlated."""

    @classmethod
    def of(cls, posterior: Posterior, seed: int) -> Outputs:
        fresh = posterior.family.num_draws is None
        prediction = posterior.predict(laws.AT, num_draws=NUM_DRAWS if fresh else None, seed=seed, closed_form=False)
        return cls(prediction.outputs[..., 0].astype(float), posterior.family.num_chains, prediction)

    @property
    def law(self) -> Law:
        return Law(self.values.mean(0), np.cov(self.values.T, bias=True))

    def check(self, law: Law, unit: FloatArray) -> Check:
        """Means and variances against a law, along axes in which a covariance, the unit, is the identity."""
        to_axes = np.linalg.inv(np.linalg.cholesky(unit))
        apart = (self.values - law.mean) @ to_axes.T
        wanted = np.diag(to_axes @ law.covariance @ to_axes.T)
        means, variances = self._average(apart), self._average(np.square(apart))
        off = np.concatenate([np.abs(means[0]), np.abs(variances[0] - wanted)])
        errors = np.concatenate([means[1], variances[1]])
        words = (
            f"means off by {_listed(*means)} standard deviations, variances {_listed(*variances)} times those of the "
            f"posterior, where {_listed(wanted)} is right"
        )
        if not (errors < LARGEST_ERROR).all():
            return Check(False, f"{words}: too few effective draws to judge", counts=False)
        return Check(bool((off <= 4 * errors + TOLERANCE).all()), words)

    def check_temperature(self, exact: Law, wanted: float) -> Check:
        sampled, error = self.temperature(exact)
        words = f"{sampled:.3g} +- {error:.2g} is sampled, {wanted:g} was asked for"
        return Check(abs(sampled - wanted) <= 4 * error + TOLERANCE, words)

    def temperature(self, exact: Law) -> tuple[float, float]:
        apart = self.values - exact.mean
        squares = (apart * np.linalg.solve(exact.covariance, apart.T).T).sum(1) / 2
        value, error = self._average(squares[:, None])
        return float(value[0]), float(error[0])

    def check_mixing(self) -> Check:
        chains = self.values.reshape(-1, self.num_chains, 2).swapaxes(0, 1)
        largest, error = float(r_hat(chains).max()), (self._average(self.values)[1] / self.values.std(0)).max()
        words = f"R-hat {largest:.3f} over {self.num_chains} chains, means known to {error:.2f} standard deviations"
        return Check(
            largest < MIXED and error < LARGEST_ERROR, f"{words}; at most {MIXED} and {LARGEST_ERROR} are asked"
        )

    def _average(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Means over draws and their Monte Carlo errors; one draw, of a point estimate, is all there is."""
        error = self.prediction.error_over_draws(values) if len(values) > 1 else np.zeros(values.shape[1])
        return values.mean(0), error


def check_keys(method: Method, seed: int = 0) -> Check:
    """Whether the first steps of a chain use a random key twice, by JAX's own checker."""
    try:
        with jax.debug_key_reuse(True):
            _steps(method, seed, 1)
    except jax.errors.KeyReuseError as error:
        return Check(False, f"a random key is used twice: {str(error).splitlines()[0]}")
    return Check(True, "none is used twice")


def check_resume(method: Method, seed: int = 0) -> Check:
    """Whether steps from a state that went through plain arrays, by a kernel made anew, are the same bit for bit."""
    whole = _steps(method, seed, NUM_STEPS)
    half = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), _steps(method, seed, NUM_STEPS // 2))
    resumed = _steps(method, seed, NUM_STEPS, half)
    pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True)
    same = all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs)
    return Check(same, "the same bit for bit" if same else "steps differ from those of a run that was not cut")


def check_calibration(method: Method, model: Model, x: Any, num_simulations: int, seed: int = 0) -> Check:
    """Ranks of outputs and of the log likelihood, of weights from the prior, among draws given data from them."""
    inputs = jax.tree.map(jnp.asarray, x)
    template = model.init(jax.random.key(seed), inputs)
    rng, ranks = np.random.default_rng(seed), []
    for number, key in enumerate(jax.random.split(jax.random.key(seed + 1), num_simulations)):
        key_weights, key_targets = jax.random.split(key)
        of_truth = model.outputs(model.sample_prior(key_weights, template), inputs)
        y = jnp.asarray(model.likelihood(of_truth).sample(key_targets))
        posterior = fit(model, method, (x, np.asarray(y)), seed=seed + number, progress=False)
        of_draws = posterior.predict(x, num_draws=NUM_RANKED, seed=seed + number, closed_form=False).outputs
        compared = [_compared(model, outputs, y) for outputs in (of_truth, *of_draws)]
        ranks.append((np.asarray(compared[1:]) < compared[0]).sum(0))
    shares = (np.asarray(ranks) + rng.uniform(size=(num_simulations, len(ranks[0])))) / (NUM_RANKED + 1)
    p_value = min(1.0, shares.shape[1] * min(float(stats.kstest(column, "uniform").pvalue) for column in shares.T))
    words = f"p = {p_value:.2g} that ranks in {num_simulations} simulations are uniform"
    return Check(p_value > LEAST_P_VALUE, words)


def _compared(model: Model, outputs: Any, y: jax.Array) -> FloatArray:
    """The first and the last output, and the log likelihood."""
    flat = np.asarray(outputs, float)[..., 0].reshape(-1)
    return np.array([flat[0], flat[-1], float(model.log_likelihood_of(jnp.asarray(outputs), y).sum())])


def _steps(method: Method, seed: int, num_steps: int, state: Any = None) -> Any:
    """The state after so many of NUM_STEPS steps of one chain on the numbers; from one after half, if that is given."""
    rows = laws.numbers()
    batch = rows.batch()
    key_weights, key_init, key_steps = jax.random.split(jax.random.key(seed), 3)
    params, fixed = laws.NUMBERS.split(laws.NUMBERS.init(key_weights, batch.x), method.holds_scales)
    kernel = method.kernel(laws.NUMBERS.bind(fixed))

    def now(step: int) -> Any:
        return clock(jnp.asarray(step), jnp.asarray(NUM_STEPS), jnp.asarray(0), 1, rows.num_rows)

    first = 0 if state is None else NUM_STEPS // 2
    if state is None:
        state = jax.jit(kernel.init)(key_init, params, batch, now(0))
    step = jax.jit(kernel.step)
    for number in range(first, num_steps):
        state, _ = step(jax.random.fold_in(key_steps, number), state, batch, now(number))
    return state


def _step_size(method: Method, found: Outputs, exact: Law, seed: int) -> Check:
    """The excess of the temperature that is sampled, at the learning rate given and at twice that."""
    rate: float = method.learning_rate  # type: ignore[attr-defined]
    longer = fit(
        laws.NUMBERS, records.replace(method, learning_rate=2 * rate), laws.numbers(), seed=seed, progress=False
    )
    numbers = [found.temperature(exact), Outputs.of(longer, seed).temperature(exact)]
    each = [f"{value - 1:+.3f} +- {error:.3f}" for value, error in numbers]
    return Check(True, f"the variance is off by {each[0]} as a share, by {each[1]} at twice the learning rate", False)


def _fit(model: Model, method: Method, rows: Dataset, seed: int) -> tuple[str, Posterior | None]:
    """A posterior, or why the method refuses the model."""
    try:
        return "", fit(model, method, rows, seed=seed, progress=False)
    except ValueError as error:
        return str(error), None


def _counted(check: Check, counts: bool) -> Check:
    return dataclasses.replace(check, counts=check.counts and counts)


def _listed(values: FloatArray, errors: FloatArray | None = None) -> str:
    shown = [f"{value:.2f}" for value in values]
    if errors is not None:
        shown = [f"{one} +- {error:.2f}" for one, error in zip(shown, errors, strict=True)]
    return " and ".join(shown)
