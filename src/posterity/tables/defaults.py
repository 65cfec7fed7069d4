"""What suits a table: the network, likelihood and prior, a method by its name, and how many rows are not trained on.

The estimators and the command make the same choices here; benchmarks/estimators.py measures how good they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpyro.distributions import Normal

from posterity.core.checks import is_number
from posterity.core.names import nearest_name
from posterity.core.types import TASKS, Task
from posterity.inference import METHODS, MILE, Method
from posterity.inference.methods.card import TableSize
from posterity.models.likelihoods import Categorical, HeteroscedasticGaussian, Likelihood
from posterity.models.model import Model
from posterity.models.priors import Prior
from posterity.models.priors import prior as make_prior
from posterity.models.units import Rescaled
from posterity.networks import mlp

DEFAULT_HIDDEN = (50,)
DEFAULT_METHOD = MILE.card.name
NOISE_FLOOR = 0.005  # of the target's standard deviation
LOGIT_SCALE = 30.0  # prior standard deviation of the last layer of classes, times sqrt(fan-in); see table_prior
ASIDE_SHARE = 0.1  # of the rows, held out to calibrate out-of-distribution p-values
MAX_ASIDE_ROWS = 1_000
QUIET_FROM, ALOUD_FROM = 200, 40  # rows from which on some are set aside: without a word, and where it is said


def table_model(
    task: Task,
    num_classes: int | None = None,
    *,
    hidden: Sequence[int] = DEFAULT_HIDDEN,
    prior: Any = None,
    temperature: float = 1.0,
    dropout: float = 0.0,
    shift: float = 0.0,
    scale: float = 1.0,
) -> Model:
    """A dense network on features of about unit size.

    Args:
        task: 'regression' or 'classification'.
        num_classes: Of a classification.
        hidden: Widths of the hidden layers; () for a linear model.
        prior: None for the default; a number s, for standard deviations of s / sqrt(fan-in); or any prior.
        temperature: Of the posterior; 1 is Bayes' rule.
        dropout: Share of hidden units that are dropped.
        shift: Where the targets of a regression are centred, in the user's units.
        scale: How large one unit of the network's target is, in the user's units.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r} is not known; choose 'regression' or 'classification'.")
    if task == "classification" and (num_classes is None or num_classes < 2):
        raise ValueError(f"num_classes={num_classes}: a classification needs at least two classes.")
    network = mlp(
        hidden, activation="tanh", dropout=dropout if hidden else 0.0, input_dropout=0.0 if hidden else dropout
    )
    likelihood: Likelihood
    if task == "classification":
        likelihood = Categorical(num_classes or 2)
    else:
        likelihood = HeteroscedasticGaussian(NOISE_FLOOR)
        if (shift, scale) != (0.0, 1.0):
            likelihood = Rescaled(likelihood, float(shift), float(scale))
    return Model(network, likelihood, table_prior(task, prior, num_hidden=len(hidden)), temperature)


def table_prior(task: Task, prior: Any = None, *, num_hidden: int = len(DEFAULT_HIDDEN)) -> Prior:
    """Independent normals, as wide as keeps the size of what passes through a layer whatever its width.

    Classes that are well separated need large logits, so the last layer is wider for them; hidden layers are not, for
    wide ones make steps of the units. On rows held out of the training rows, log loss with scales (hidden, last) of
    (10, 10) was 0.35 for digits and 0.11 for wine, with (1, 30) 0.26 and 0.08.
    """
    if prior is not None and not is_number(prior):
        return make_prior(prior)
    if prior is not None and not prior > 0:
        raise ValueError(f"prior={prior} must be above 0: the standard deviation of weights, times sqrt(fan-in).")
    if prior is None and task == "classification":
        return make_prior({f"layer_{num_hidden}/*": Normal(0.0, LOGIT_SCALE), "*": Normal(0.0, 1.0)}, fan_in=True)
    return make_prior(Normal(0.0, 1.0 if prior is None else float(prior)), fan_in=True)


def num_aside(num_rows: int, *, aloud: bool) -> int:
    """How many rows to hold out of so many: a tenth, at most 1,000, and none of a table that has few.

    20 rows are the fewest that allow a p-value under 0.05, so the estimators, which hold rows out without a word, begin
    at 200. The command, which tells how many it holds out, begins at 40.
    """
    if num_rows < (ALOUD_FROM if aloud else QUIET_FROM):
        return 0
    return min(round(ASIDE_SHARE * num_rows), MAX_ASIDE_ROWS)


def table_method(name: str, num_rows: int, *, effort: float = 1.0) -> Method:
    """The method of this name with settings for so many rows; `effort` multiplies its steps or draws."""
    if not isinstance(name, str):
        got, hint = (name.__name__, f"{name.__name__}()") if isinstance(name, type) else (repr(name), "such as MAP()")
        raise TypeError(f"method is {got}; expected a name such as 'laplace', or a method object, {hint}.")
    if name not in METHODS:
        raise ValueError(f"method={name!r} is not known; did you mean {nearest_name(name, METHODS)!r}?")
    if not effort > 0:
        raise ValueError(f"effort={effort} must be above 0; 1 is the usual, 0.1 a quick look.")
    return METHODS[name](**METHODS[name].card.settings(TableSize(num_rows, effort)))
