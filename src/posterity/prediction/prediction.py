"""A prediction: the mixture over draws at some rows, and what can be asked of it.

Nothing is computed before it is asked for; each answer streams over rows within the memory budget. Where the target
has units of its own, y = shift + scale * z, all is computed of z, and comes into these units here, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity import metrics
from posterity.core import records
from posterity.core.checks import is_number
from posterity.data.arrays import check_numbers, join_targets, read_targets, split_targets
from posterity.metrics import convergence
from posterity.models.censored import Censored, uncensored
from posterity.models.heads import Heads
from posterity.models.units import Rescaled, without_units
from posterity.prediction import mixture, uncertainty
from posterity.prediction.novelty import Calibration
from posterity.prediction.streaming import OutputStream
from posterity.prediction.uncertainty import Decomposition, Uncertainty

EXACT_CRPS_COMPONENTS = 512
CRPS_SAMPLES = 1000


class Prediction:
    """What the posterior says of the targets at N rows. Arrays have rows first: [N, ...].

    Classes are the numbers 0 .. C-1, whatever their labels are: places in the `classes_` of an estimator.

    Args:
        stream: Network outputs of the draws at these rows.
        calibration: Scores of held-out rows, for p-values. None: there are none.
        as_calibrated: Predicts these rows as the held-out ones were predicted. None: this prediction does so already.
        head: Which of several heads it is of. None: of the whole target.
    """

    def __init__(
        self,
        stream: OutputStream,
        calibration: Calibration | None = None,
        as_calibrated: Callable[[], Prediction] | None = None,
        head: str | None = None,
    ) -> None:
        self._stream = stream
        self._calibration = calibration
        self._as_calibrated = as_calibrated
        whole = stream.model.likelihood
        self._observed = whole.head(head) if head is not None and isinstance(whole, Heads) else whole
        given = uncensored(self._observed)
        likelihood, self._shift, self._scale = without_units(given)
        self._has_units = isinstance(given, Rescaled)
        self._model = stream.model if likelihood is whole else records.replace(stream.model, likelihood=likelihood)

    def __repr__(self) -> str:
        """What there is to ask for: computing any of it may take long."""
        rows, draws = self._stream.num_rows, self.num_draws
        if self.heads:
            asked = ", ".join(f"[{name!r}]" for name in self.heads)
            return f"<Prediction of several heads at {rows} rows by {draws} draws: {asked}, log_prob(y), sample()>"
        uncertainty = "total, aleatoric, epistemic" + (", ood" if self._calibration is not None else "")
        first = "probs, label" if self.kind == "classes" else "mean, std, interval(0.9)"
        return f"<Prediction of {self.kind} at {rows} rows by {draws} draws: {first}, log_prob(y), {uncertainty}>"

    @property
    def kind(self) -> str:
        """'continuous', 'classes' or 'counts'; 'heads' where a row has several targets of different kinds."""
        return self._observed.kind

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads; none where the target is one."""
        return self._observed.names if isinstance(self._observed, Heads) else ()

    @property
    def is_censored(self) -> bool:
        """Whether the target may be given as pairs of bounds."""
        return isinstance(self._observed, Censored)

    def __getitem__(self, head: str) -> Prediction:
        """The prediction of one head, by the same draws."""
        if not self.heads:
            raise TypeError(f"This prediction is of one target; prediction[{head!r}] is for likelihoods such as Heads.")
        return Prediction(self._stream, self._calibration, self._as_calibrated, head)

    @property
    def num_draws(self) -> int:
        """How many draws are mixed; for a closed form, how many Gaussians."""
        return self._stream.num_components

    @cached_property
    def outputs(self) -> np.ndarray:
        """Network outputs of every draw, [S, N, ..., K]; for a closed form their means, one per chain."""
        return self._stream.outputs()

    @cached_property
    def mean(self) -> np.ndarray:
        """The expected target; for classes, their probabilities [N, C]."""
        return self._in_units(self._map(mixture.mean))

    @cached_property
    def draw_means(self) -> np.ndarray:
        """The expected target under each draw, [S, N, ...], or each Gaussian of a closed form; for classes their
        probabilities [S, N, ..., C]. `mean` is their mean.
        """
        return np.moveaxis(self._in_units(self._map(mixture.draw_means)), 1, 0)

    @property
    def is_closed_form(self) -> bool:
        """Whether Gaussian formulas stand in for draws, so that expectations have no Monte Carlo error."""
        return self._stream.closed_form

    def error_over_draws(self, values: np.ndarray) -> np.ndarray:
        """Monte Carlo standard error of the mean over draws of numbers [S, ...], one from each draw of this prediction.

        Wider where it rests on few effective draws; NaN for one draw, and for one short chain: neither can tell.
        """
        positions = uncertainty.chain_positions(self._stream.family, self._stream.draws)
        # Independent draws are chains of one draw each.
        return convergence.honest_error(values[positions] if positions.size else values[:, None])

    @property
    def probs(self) -> np.ndarray:
        """Class probabilities, averaged over draws [N, ..., C]."""
        self._require("classes", "probs", "mean")
        return self.mean

    @property
    def label(self) -> np.ndarray:
        """The most probable class."""
        return self.probs.argmax(-1)

    @cached_property
    def std(self) -> np.ndarray:
        """Standard deviation of the target: noise and ignorance together; for classes of each class's indicator."""
        if self.kind == "classes":
            return np.sqrt(self.probs * (1 - self.probs))
        return np.sqrt(self.total)

    def quantile(self, level: float | list[float] | np.ndarray) -> np.ndarray:
        """Quantiles of the mixture itself, [N, ...] for one level or [N, ..., Q] for several."""
        self._forbid_classes("quantile")
        levels = np.atleast_1d(np.asarray(level, dtype=float))
        if not levels.size:
            raise ValueError("level is empty; give one level or several, for instance [0.05, 0.5, 0.95].")
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"level={level} must lie strictly between 0 and 1.")
        # Two at a time: one compiled program serves any number of levels, and intervals too.
        pairs = np.resize(levels, (-(-len(levels) // 2), 2))
        found = [self._map(mixture.quantiles, shared=(jnp.asarray(pair),)) for pair in pairs]
        found = self._in_units(np.concatenate(found, -1)[..., : len(levels)])
        return found[..., 0] if np.ndim(level) == 0 else found

    def cdf(self, y: Any, strict: bool = False) -> np.ndarray:
        """P(target <= y) of the mixture, elementwise [N, ...]; `strict`: P(target < y), which differs for counts."""
        self._forbid_classes("cdf")
        y = self._targets(y)
        both = self._map(mixture.cumulative, (y - self._shift) / self._scale if self._has_units else y)
        return both[..., 0 if strict else 1]

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper) of the central interval that holds the target with probability `level`.

        Examples:
            >>> import numpy as np
            >>> from posterity import Exact, Gaussian, Model, fit, linear
            >>> x = np.linspace(-1.0, 1.0, 20)[:, None]
            >>> posterior = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]))
            >>> lower, upper = posterior.predict(x[:3]).interval(0.9)
            >>> lower.shape, bool((lower < upper).all())
            ((3,), True)
        """
        _check_level(level)
        both = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return both[..., 0], both[..., 1]

    def prediction_set(self, level: float = 0.9) -> np.ndarray:
        """The smallest set of classes with probability `level` together, as booleans [N, ..., C]."""
        _check_level(level)
        order = np.argsort(-self.probs, axis=-1, kind="stable")
        ranked = np.take_along_axis(self.probs, order, -1)
        before = np.cumsum(ranked, -1) - ranked  # a class belongs while those before it do not reach the level
        chosen = np.zeros(self.probs.shape, bool)
        np.put_along_axis(chosen, order, before < level, -1)
        return chosen

    def log_prob(self, y: Any) -> np.ndarray:
        """log p(y) of the mixture, by log-mean-exp over draws, [N]; of several heads, of a dict of targets."""
        return self._log_density(mixture.log_prob, y)

    def draw_log_probs(self, y: Any) -> np.ndarray:
        """log p(y) under each draw, [S, N]; for a closed form under each Gaussian."""
        return self._log_density(mixture.draw_log_probs, y).T

    def log_prob_gaussian(self, y: Any) -> np.ndarray:
        """log N(y; mean, std^2): the moment-matched Gaussian some papers report instead; not the mixture's."""
        self._forbid_classes("log_prob_gaussian")
        y = self._targets(y)
        log_prob = metrics.gaussian_log_prob(self.mean.ravel(), self.std.ravel(), y.ravel())
        return log_prob.reshape(len(y), -1).sum(-1)

    def sample(self, num_samples: int = 100, seed: int = 0) -> Any:
        """Draws of the target, [num_samples, N, ...]: each is one draw of the function with noise at every row.

        Of several heads a dict of such arrays, drawn together. A closed form knows each row by itself, so there
        functions are drawn for the purpose.
        """
        drawn = self._sample(num_samples, seed)
        return split_targets(drawn, self._observed) if isinstance(self._observed, Heads) else drawn

    def _sample(self, num_samples: int, seed: int = 0) -> np.ndarray:
        rows, stream = np.arange(self._stream.num_rows), self._stream
        if stream.closed_form:
            stream = stream.of_fresh_draws(num_samples)
        shared = (jax.random.key(seed), jnp.zeros(num_samples))
        drawn = stream.map(mixture.samples, rows, shared=shared, model=self._model)
        return np.moveaxis(self._in_units(drawn), 1, 0)

    def draw_samples(self, num_each: int, seed: int = 0) -> np.ndarray:
        """Draws of the target, so many from each draw of the weights, in their order: [S, num_each, N, ...].

        Rows of a closed form are drawn each by itself.
        """
        shared = (jax.random.key(seed), jnp.zeros(num_each))
        drawn = self._map(mixture.draw_samples, np.arange(self._stream.num_rows), shared=shared)  # [N, R, S, ...]
        return np.moveaxis(self._in_units(drawn), (2, 1), (0, 1))

    def crps(self, y: Any) -> np.ndarray:
        """Continuous ranked probability score, [N, ...]: exact for Gaussian mixtures of at most 512 parts."""
        self._forbid_classes("crps")
        y = self._targets(y)
        normal = self._is_normal and self.num_draws <= EXACT_CRPS_COMPONENTS
        if normal:
            means, stds = self._map(mixture.normal_parts)
            means, stds = self._in_units(means), self._scale * stds
            score = metrics.crps_gaussian_mixture_rows(
                np.moveaxis(means, -1, 0).reshape(means.shape[-1], -1),
                np.moveaxis(stds, -1, 0).reshape(means.shape[-1], -1),
                y.ravel(),
            )
        else:
            drawn = self._sample(max(CRPS_SAMPLES, self.num_draws))
            score = metrics.crps_samples_rows(drawn.reshape(len(drawn), -1), y.ravel())
        return score.reshape(y.shape)

    @cached_property
    def _decomposition(self) -> Decomposition:
        split = uncertainty.entropies if self.kind == "classes" else uncertainty.variances
        positions = uncertainty.chain_positions(self._stream.family, self._stream.draws)
        found = self._map(split, shared=(positions,))
        if not self._has_units:
            return found
        return jax.tree.map(lambda part: self._scale**2 * part.astype(float), found)

    @property
    def total(self) -> np.ndarray:
        """All uncertainty: variance of the target, or entropy of the class (nats)."""
        return np.asarray(self._decomposition.value.total)

    @property
    def aleatoric(self) -> np.ndarray:
        """Noise in the data: what more data would not remove."""
        return np.asarray(self._decomposition.value.aleatoric)

    @property
    def epistemic(self) -> np.ndarray:
        """Ignorance of the model: the spread over draws (variance, or mutual information)."""
        return np.asarray(self._decomposition.value.epistemic)

    @property
    def standard_error(self) -> Uncertainty:
        """Monte Carlo standard errors of total, aleatoric and epistemic.

        NaN for a single draw, and for one Markov chain of fewer than 16: neither can tell.
        """
        return self._decomposition.standard_error

    @cached_property
    def mutual_information(self) -> np.ndarray:
        """Epistemic uncertainty of classes, corrected for the bias of few draws (jackknife); NaN for one draw."""
        self._require("classes", "mutual_information", "epistemic")
        return self._map(uncertainty.jackknife_mutual_information)

    @property
    def logit_variance(self) -> np.ndarray:
        """How much the draws disagree on the logits of the classes: unlike epistemic, it grows without bound."""
        self._require("classes", "logit_variance", "epistemic")
        return self._map(uncertainty.logit_variance)

    @cached_property
    def variation_ratio(self) -> np.ndarray:
        """The share of draws that do not vote for the most voted class."""
        self._require("classes", "variation_ratio", "epistemic")
        return self._map(uncertainty.variation_ratio)

    @cached_property
    def ood(self) -> np.ndarray:
        """p-value of each row against held-out rows: flagging p <= a raises false alarms at rate a."""
        if self._calibration is None:
            raise ValueError(
                "No held-out rows to compare with. Either set some aside when fitting, fit(..., holdout=0.1), or give "
                "rows that were not trained on, posterior = posterior.calibrate(x)."
            )
        scored = self if self._as_calibrated is None else self._as_calibrated()
        return self._calibration.p_value(self._calibration.score(scored, self._stream.x))

    @property
    def _is_normal(self) -> bool:
        outputs = jax.eval_shape(
            lambda x: self._stream.family.outputs(self._stream.model, self._stream.key, x, jnp.zeros(1, int)),
            jax.tree.map(lambda leaf: leaf[:1], self._stream.x),
        )
        return mixture.is_normal(self._model, outputs.shape)

    def _map(self, function: Callable[..., Any], *per_row: Any, shared: tuple[Any, ...] = ()) -> Any:
        """What the stream makes of z, in units of its own."""
        self._forbid_heads(function.__name__)
        return self._stream.map(function, *per_row, shared=shared, model=self._model)

    def _log_density(self, function: Callable[..., Any], y: Any) -> np.ndarray:
        """Logarithms of densities at y, in its units; axis 0 counts rows."""
        if self.heads or self.is_censored:
            model = records.replace(self._model, likelihood=self._observed)
            return self._stream.map(function, self._as_trained(y), model=model)
        y = self._targets(y)
        if not self._has_units:
            return self._map(function, y)
        found = self._map(function, (y - self._shift) / self._scale)
        return found - np.log(self._scale) * np.prod(y.shape[1:])

    def _in_units(self, values: np.ndarray) -> np.ndarray:
        """Places on the axis of z as places on that of the target."""
        return self._shift + self._scale * values.astype(float) if self._has_units else values

    def _targets(self, y: Any) -> np.ndarray:
        y = self._rows(check_numbers(y, "y"))
        expected = self.mean.shape[:-1] if self.kind == "classes" else self.mean.shape
        # Axes of length 1 come and go; any other change of shape would pair targets with the wrong outputs.
        if [n for n in y.shape if n != 1] != [n for n in expected if n != 1]:
            raise ValueError(
                f"y has shape {y.shape}; the prediction is for targets of shape {expected}. Only axes of length 1 may "
                "differ: put the axes of y in that order."
            )
        y = y.reshape(expected)
        if self.kind == "continuous":
            return y
        whole = y.astype(np.int32)
        most = self.mean.shape[-1] - 1 if self.kind == "classes" else np.inf
        if (whole != y).any() or (whole < 0).any() or (whole > most).any():
            values = f"labels 0 .. {most}" if self.kind == "classes" else "counts 0, 1, 2, ..."
            raise ValueError(f"y must hold {values}; it has values such as {y.min()} and {y.max()}.")
        return whole

    def _as_trained(self, y: Any) -> np.ndarray:
        """Targets in the form that they are trained on: pairs of bounds, or those of all heads side by side."""
        y = read_targets(y, self._observed)
        if isinstance(self._observed, Heads):
            return join_targets({name: self[name]._as_trained(y[name]) for name in self.heads}, self._observed)
        if not self.is_censored:
            return self._targets(y)
        if self._rows(y).shape[:-1] != self.mean.shape:
            raise ValueError(f"y has bounds of shape {y.shape}; expected (lower, upper) for each of {self.mean.shape}.")
        return y

    def _rows(self, y: np.ndarray) -> np.ndarray:
        if y.ndim == 0 or len(y) != self._stream.num_rows:
            raise ValueError(
                f"The prediction has {self._stream.num_rows} rows and y has shape {y.shape}; make them agree."
            )
        return y

    def _forbid_heads(self, name: str) -> None:
        if self.heads:
            raise ValueError(
                f"This prediction has the heads {', '.join(self.heads)}, each with its own {name}: ask one of them, "
                f"prediction[{self.heads[0]!r}]."
            )

    def _require(self, kind: str, name: str, instead: str) -> None:
        self._forbid_heads(name)
        if self.kind != kind:
            raise ValueError(f"{name} is for {kind}; this target is {self.kind}: use {instead}.")

    def _forbid_classes(self, name: str) -> None:
        if self.kind == "classes":
            raise ValueError(f"{name} is for numbers; for classes use probs, prediction_set(level) or log_prob(y).")


def _check_level(level: Any) -> None:
    if not (is_number(level) and 0 < level < 1):
        raise ValueError(f"level={level!r} must be a number between 0 and 1, strictly; 0.9 for 90 %.")
