"""Estimators for scikit-learn: a Bayesian network on a table, in the units and labels the table came in.

    model = BayesianRegressor().fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    model.predict_interval(X_new, 0.9), model.uncertainty(X_new), model.log_prob(X_new, y_new)

X may be an array or a frame with numbers, categories, dates and gaps (see encoders.py). A row of weight 2 counts as two
rows: rows that are equal are merged into one that has their weights together, so that up to 10,000 rows a weight and a
repetition give the same result to the last bit. From 200 rows on a tenth of them, at most 1,000, is not trained on:
out-of-distribution p-values are calibrated on it. With fewer rows, or holdout=None, these p-values are NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _check_y,
    check_is_fitted,
    validate_data,
)

from posterity import metrics
from posterity.core.checks import is_number
from posterity.core.types import Task
from posterity.data.arrays import check_size
from posterity.inference import Method, load
from posterity.inference.engine.concerns import of_predictions, warned
from posterity.metrics import Estimate
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.tables.calibrated import Calibrated
from posterity.tables.checks import checked_column, checked_table, name_of
from posterity.tables.continued import Continued
from posterity.tables.convergence import as_of_scikit_learn
from posterity.tables.defaults import DEFAULT_HIDDEN, DEFAULT_METHOD, num_aside
from posterity.tables.drawn import Drawn
from posterity.tables.encoders import TableEncoder, TargetEncoder
from posterity.tables.explained import Explained
from posterity.tables.pipeline import TableCode

MERGED_ROWS = 10_000  # up to here equal rows are merged


class _BayesianEstimator(Explained, Drawn, Calibrated, Continued, BaseEstimator):
    """What both estimators share.

    Args:
        method: A name ('laplace', 'hmc', ... of METHODS), which gets settings that suit the number of rows, or a
            method object such as HMC(num_draws=500).
        hidden: Widths of the hidden layers; () for a linear model.
        prior: None for the default, which is 'learned' with 'hmc' and 'fixed' with others: scales of the weights that
            are inferred with them, one a layer and one an input, or that are not; a number s, for standard deviations
            of s / sqrt(fan-in); or any prior.
        temperature: Of the posterior; 1 is Bayes' rule.
        holdout: Rows that are NOT trained on, for out-of-distribution p-values and intervals (`calibrated=True`) to
            be calibrated on. "auto": a tenth of the rows, at most 1,000, from 200 rows on; a share, such as 0.2; None:
            all are trained on, no p-values.
        budget: Seconds after which a fit ends with what it has.
        random_state: A whole number, a numpy RandomState, or None for another seed each time.
    """

    _task: Task
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        method: str | Method = DEFAULT_METHOD,
        *,
        hidden: int | tuple[int, ...] = DEFAULT_HIDDEN,
        prior: Any = None,
        temperature: float = 1.0,
        holdout: float | str | None = "auto",
        budget: float | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.prior = prior
        self.temperature = temperature
        self.holdout = holdout
        self.budget = budget
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows X and targets y; a weight of 2 is a row that stands twice, 0 one that is not there."""
        validate_data(self, X, y, skip_check_array=True)
        frame, target, name = checked_table(X), self._checked_target(y), name_of(y)
        if len(frame) != len(target):
            raise ValueError(f"X has {len(frame)} rows and y has {len(target)}; they must match row by row.")
        if len(frame) < 2:
            raise ValueError("X has one sample; give at least two rows to learn from.")
        weight = _check_sample_weight(sample_weight, frame, dtype=np.float64, ensure_non_negative=True)
        weight = weight * self._class_weights(target)
        frame, target, weight = _merged(frame, target, weight)
        self.table_ = TableEncoder().fit(frame, weight)
        self.target_ = TargetEncoder(self._task).fit(target, weight)
        if self._task == "classification":
            self.classes_ = np.asarray(self.target_.labels)
        rows = (self.table_.transform(frame), self.target_.transform(target), weight)
        with as_of_scikit_learn():
            self.posterior_ = self._infer(name, rows)
        return self

    def predict_distribution(self, X: Any) -> Prediction:
        """Everything the posterior says of the targets of rows X: moments, quantiles, log_prob, the split, samples.

        It speaks of classes by their places 0 .. C-1 in `classes_`; `log_prob` and `evaluate` here take labels.
        """
        return self.posterior_.predict(self._encoded_inputs(X))

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """log p(y) of each row, [N]; y in the units or labels that were learned from."""
        return self.predict_distribution(X).log_prob(self._encoded_target(y))

    def evaluate(self, X: Any, y: Any) -> dict[str, Estimate]:
        """Scores at rows X with targets y, by name, each with its standard error, as `posterity.metrics.evaluate`."""
        return metrics.evaluate(self.predict_distribution(X), self._encoded_target(y))

    def uncertainty(self, X: Any) -> pd.DataFrame:
        """total = aleatoric (noise) + epistemic (ignorance), and ood, a p-value, small for rows unlike training.

        Variances in squared units of the target, or entropies in nats for classes.
        """
        prediction = self.predict_distribution(X)
        unknown = self.posterior_.calibration is None
        columns = {
            "total": prediction.total,
            "aleatoric": prediction.aleatoric,
            "epistemic": prediction.epistemic,
            "ood": np.full(len(prediction.total), np.nan) if unknown else prediction.ood,
        }
        index = X.index if isinstance(X, pd.DataFrame) else None
        return pd.DataFrame({name: np.asarray(values, float) for name, values in columns.items()}, index=index)

    def save(self, path: str | Path) -> None:
        """Write everything into a new folder of arrays and JSON; nothing in it is code."""
        check_is_fitted(self)
        self.posterior_.save(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The estimator that `save`, or the command `posterity fit`, wrote."""
        posterior = load(path)
        code = TableCode.of(posterior)
        if code is None or code.task != cls._task:
            held = "a posterior that was not fitted to a table: use posterity.load"
            found = held if code is None else f"a {ESTIMATORS[code.task].__name__}"
            raise ValueError(f"{path} holds {found}, not a {cls.__name__}.")
        settings = {name: code.settings[name] for name in cls._get_param_names() if name in code.settings}
        if isinstance(settings.get("hidden"), list):  # JSON has no tuples
            settings["hidden"] = tuple(settings["hidden"])
        settings.setdefault("method", posterior.method)
        settings.setdefault("prior", posterior.model.prior)
        made = cls(**settings)
        made.posterior_, made.table_, made.target_ = posterior, code.inputs, code.target
        made.n_features_in_ = len(code.inputs.names)
        if code.named:
            made.feature_names_in_ = np.asarray(code.inputs.names, object)
        if cls._task == "classification":
            made.classes_ = np.asarray(code.target.labels)
        return made

    def _infer(
        self, target_name: str, rows: tuple[np.ndarray, ...], method: Method | None = None, prior: Any = None
    ) -> Posterior:
        """The posterior, in the user's units; `method` and `prior`: others than those that were set."""
        named = hasattr(self, "feature_names_in_")
        posterior = TableCode(
            self.table_, self.target_, target_name, named=named, settings=self._stored_settings()
        ).fit(
            self.method if method is None else method,
            rows,
            model={
                "hidden": tuple(np.atleast_1d(self.hidden).tolist()),
                "prior": self.prior if prior is None else prior,
                "temperature": self.temperature,
            },
            seed=_seed(self.random_state),
            holdout=_share_aside(self.holdout, len(rows[1])),
            budget=self.budget,
            progress=False,
        )
        # Where rows are held out, `fit` has judged the chains by them.
        return posterior if posterior.held_out else warned(posterior, of_predictions(posterior, rows[0]))

    def _stored_settings(self) -> dict[str, Any]:
        """Those that are plain values; a store has the method and the prior in the posterior."""
        settings = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        plain = {
            name: value
            for name, value in settings.items()
            if value is None or isinstance(value, str | int | float | tuple | list)
        }
        return {"random_state": None, **plain}

    def _class_weights(self, target: pd.Series) -> np.ndarray:
        """How much more than others a row counts, by its target."""
        return np.ones(len(target))

    def _encoded_inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        frame = checked_table(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        if set(frame.columns) != set(self.table_.names):  # not both had names, or scikit-learn would have refused
            frame.columns = self.table_.names
        return self.table_.transform(frame)

    def _encoded_target(self, y: Any) -> np.ndarray:
        return self.target_.transform(self._checked_target(y))

    def _checked_target(self, y: Any) -> pd.Series:
        raise NotImplementedError


class BayesianRegressor(RegressorMixin, _BayesianEstimator):
    __doc__ = f"""A Bayesian network that predicts a number, with its uncertainty.
{_BayesianEstimator.__doc__}
    Examples:
        >>> import numpy as np
        >>> from posterity import MAP, BayesianRegressor
        >>> X = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> model = BayesianRegressor(MAP(num_steps=100), hidden=()).fit(X, 2.0 * X[:, 0])
        >>> mean, std = model.predict(X[:3], return_std=True)
        >>> mean.shape, bool((std > 0).all())
        ((3,), True)
    """

    _task = "regression"

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target of each row; with `return_std` also its standard deviation, noise and ignorance."""
        prediction = self.predict_distribution(X)
        mean = np.asarray(prediction.mean, float)
        return (mean, np.asarray(prediction.std, float)) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9, calibrated: bool = False) -> np.ndarray:
        """[N, 2]: lower and upper end of the central interval that holds the target with probability `level`.

        It does so if the model is right. `calibrated`: it holds that share of targets in any case, by the rows that
        were held out (conformal prediction); the interval is that of another level of the same distribution.
        """
        prediction = self.predict_distribution(X)
        ends = self.conformal().interval(prediction, level) if calibrated else prediction.interval(level)
        return np.stack(ends, 1).astype(float)

    def predict_quantile(self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of the target of each row, [N, Q], or [N] for a single one."""
        levels = quantiles if is_number(quantiles) else np.asarray(quantiles, float)
        return self.predict_distribution(X).quantile(levels).astype(float)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of the target, [N, n_samples]."""
        return self.predict_distribution(X).sample(n_samples, _seed(random_state)).T.astype(float)

    def _checked_target(self, y: Any) -> pd.Series:
        y = checked_column(y)
        if y.dtype.kind in "mM":
            raise ValueError(
                f"y holds dates or spans of time (dtype {y.dtype}); give numbers, such as days since a date."
            )
        if (text := next((value for value in y if isinstance(value, str)), None)) is not None:
            raise ValueError(
                f"y holds text such as {str(text)!r}, and BayesianRegressor predicts numbers: turn y into numbers, or "
                "use BayesianClassifier for classes."
            )
        values = pd.Series(_check_y(y, y_numeric=True, estimator=self), dtype=float)
        check_size(values.to_numpy(), "y")
        return values


class BayesianClassifier(ClassifierMixin, _BayesianEstimator):
    __doc__ = (
        "A Bayesian network that predicts a class, with its uncertainty.\n"
        + str(_BayesianEstimator.__doc__).rstrip()
        + """
        class_weight: How often a row counts by its class: a dictionary, "balanced" for all classes to count alike, or
            None. Probabilities are then those of a population with these weights.
    """
    )

    _task = "classification"

    def __init__(
        self,
        method: str | Method = DEFAULT_METHOD,
        *,
        hidden: int | tuple[int, ...] = DEFAULT_HIDDEN,
        prior: Any = None,
        temperature: float = 1.0,
        holdout: float | str | None = "auto",
        budget: float | None = None,
        random_state: Any = 0,
        class_weight: dict[Any, float] | str | None = None,
    ) -> None:
        super().__init__(
            method,
            hidden=hidden,
            prior=prior,
            temperature=temperature,
            holdout=holdout,
            budget=budget,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def _class_weights(self, target: pd.Series) -> np.ndarray:
        weight = compute_sample_weight(self.class_weight, target)
        self.class_weight_ = dict(zip(target, weight, strict=True))
        return weight

    def _infer(
        self, target_name: str, rows: tuple[np.ndarray, ...], method: Method | None = None, prior: Any = None
    ) -> Posterior:
        """Held-out rows count as they come: calibrated sets are for the rows that there are, however classes count."""
        posterior = super()._infer(target_name, rows, method, prior)
        if (held := posterior.held_out) is None or self.class_weight is None:
            return posterior
        weight = held.weight / np.array([self.class_weight_[label] for label in self.classes_])[held.y]
        return dataclasses.replace(posterior, held_out=held._replace(weight=weight))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def predict_proba(self, X: Any, calibrated: bool = False) -> np.ndarray:
        """Probabilities of the classes, [N, C], in the order of `classes_`.

        `calibrated`: at the temperature that has the least log loss on the rows that were held out.
        """
        prediction = self.predict_distribution(X)
        probs = self.conformal().probs(prediction) if calibrated else np.asarray(prediction.probs, float)
        return probs / probs.sum(1, keepdims=True)  # float32 sums to one up to 1e-7 only

    def predict_set(self, X: Any, level: float = 0.9, calibrated: bool = False) -> np.ndarray:
        """The smallest set of classes that together have probability `level`, as booleans [N, C].

        `calibrated`: sets that hold the true class of at least that share of rows in any case (conformal prediction).
        """
        prediction = self.predict_distribution(X)
        return self.conformal().prediction_set(prediction, level) if calibrated else prediction.prediction_set(level)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of the class, [N, n_samples]."""
        drawn = self.predict_distribution(X).sample(n_samples, _seed(random_state))
        return self.classes_[drawn.T]

    def _checked_target(self, y: Any) -> pd.Series:
        y = _check_y(checked_column(y), estimator=self)
        check_classification_targets(y)
        return pd.Series(y)


ESTIMATORS: dict[Task, type[_BayesianEstimator]] = {
    estimator._task: estimator for estimator in (BayesianRegressor, BayesianClassifier)
}


def _share_aside(holdout: Any, num_rows: int) -> float | None:
    if isinstance(holdout, str) and holdout == "auto":
        return num_aside(num_rows, aloud=False) / num_rows or None
    if holdout is None or (is_number(holdout) and 0 < holdout < 1):
        return holdout
    got = repr(holdout) if np.ndim(holdout) == 0 else f"<{type(holdout).__name__} of shape {np.shape(holdout)}>"
    raise ValueError(f"holdout={got} is not known; give 'auto', a share of the rows such as 0.1, or None for none.")


def _merged(frame: pd.DataFrame, target: pd.Series, weight: np.ndarray) -> tuple[pd.DataFrame, pd.Series, np.ndarray]:
    """Rows of positive weight, equal ones merged, in an order that does not depend on the order they came in."""
    if (weight == 0).any():
        there = np.flatnonzero(weight)
        frame, target, weight = frame.iloc[there], target.iloc[there], weight[there]
    if len(frame) <= MERGED_ROWS:
        columns = [*(frame[name] for name in frame.columns), target]
        codes = np.stack([_ranks(column) for column in columns], 1)
        _, first, group = np.unique(codes, axis=0, return_index=True, return_inverse=True)
        frame, target, weight = frame.iloc[first], target.iloc[first], np.bincount(group.ravel(), weight)
    return frame.reset_index(drop=True), target.reset_index(drop=True), weight


def _ranks(column: pd.Series) -> np.ndarray:
    """Whole numbers that are equal where values are, in their order; -1 for missing values."""
    values = column if pd.api.types.is_numeric_dtype(column) else column.astype(str).where(column.notna(), None)
    return pd.factorize(values, sort=True)[0]


def _plain(value: Any) -> Any:
    """Numbers of numpy, which a search over settings gives, as Python's."""
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _seed(random_state: Any) -> int:
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
