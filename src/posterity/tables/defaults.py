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
from posterity.inference import HMC, METHODS, Method
from posterity.inference.methods.card import TableSize
from posterity.models.likelihoods import Categorical, HeteroscedasticGaussian, Likelihood
from posterity.models.model import Model
from posterity.models.priors import Prior
from posterity.models.priors import prior as make_prior
from posterity.models.scales import Learned
from posterity.models.units import Rescaled
from posterity.networks import mlp

DEFAULT_HIDDEN = (32, 32)
DEFAULT_METHOD = HMC.card.name
NOISE_FLOOR = 0.005  # of the target's standard deviation
COARSE, MAX_NOISE_FLOOR = 0.1, 0.3  # of what rounding takes from a target of a few values: from when on, and at most
LOGIT_SCALE = 30.0  # prior standard deviation of the last layer of classes, times sqrt(fan-in); see table_prior
LEARNED_LOGIT_SCALE = 5.0  # the same, where a factor around 1 is learned
FIRST_SCALE = 0.5  # where learned scales begin: chains that begin with rough functions stay with them for long
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
    resolution: float = 0.0,
    learns_scales: bool = False,
) -> Model:
    """A dense network on features of about unit size.

    Args:
        task: 'regression' or 'classification'.
        num_classes: Of a classification.
        hidden: Widths of the hidden layers; () for a linear model.
        prior: None for the default; "learned", "fixed"; a number s, for standard deviations of s / sqrt(fan-in); or any
            prior. See `table_prior`.
        temperature: Of the posterior; 1 is Bayes' rule.
        dropout: Share of hidden units that are dropped.
        shift: Where the targets of a regression are centred, in the user's units.
        scale: How large one unit of the network's target is, in the user's units.
        resolution: The least difference of two targets, in the user's units. Numbers that were rounded to it are known
            no better than resolution / sqrt(12), the standard deviation of what rounding took away. Where that is more
            than a tenth of the scale (grades, counts), noise may not fall below it, at most 0.3 of the scale: it would
            make spikes of the posterior at every value that is repeated. Finer grids may be exact.
        learns_scales: Whether the default prior is "learned".
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
        rounded = resolution / scale / 12**0.5
        floor = min(rounded, MAX_NOISE_FLOOR) if rounded > COARSE else NOISE_FLOOR
        likelihood = HeteroscedasticGaussian(float(floor))
        if (shift, scale) != (0.0, 1.0):
            likelihood = Rescaled(likelihood, float(shift), float(scale))
    if prior is None:
        prior = "learned" if learns_scales else "fixed"
    return Model(network, likelihood, table_prior(task, prior, num_hidden=len(hidden)), temperature)


def table_prior(task: Task, prior: Any = "fixed", *, num_hidden: int = len(DEFAULT_HIDDEN)) -> Prior:
    """Independent normals, as wide as keeps the size of what passes through a layer whatever its width.

    "learned": times scales that are inferred with the weights, one a layer, one an input of the first (automatic
    relevance determination), and one for the mean and one for the noise in the last.

    "fixed": classes that are well separated need large logits, so the last layer is wider for them; hidden layers are
    not, for wide ones make steps of the units. On rows held out of the training rows, log loss with scales (hidden,
    last) of (10, 10) was 0.35 for digits and 0.11 for wine, with (1, 30) 0.26 and 0.08.
    """
    last = f"layer_{num_hidden}/*"
    if isinstance(prior, str) and prior == "learned":
        if task == "classification":
            of_last = Learned(Normal(0.0, LEARNED_LOGIT_SCALE), initial=FIRST_SCALE)
        else:
            of_last = Learned(Normal(0.0, 1.0), by="output", initial=FIRST_SCALE)
        of_first = Learned(Normal(0.0, 1.0), by="input", initial=FIRST_SCALE)
        others = Learned(Normal(0.0, 1.0), initial=FIRST_SCALE)
        return make_prior({last: of_last, "layer_0/*": of_first, "*": others}, fan_in=True)
    if isinstance(prior, str) and prior == "fixed":
        if task == "classification":
            return make_prior({last: Normal(0.0, LOGIT_SCALE), "*": Normal(0.0, 1.0)}, fan_in=True)
        return make_prior(Normal(0.0, 1.0), fan_in=True)
    if isinstance(prior, str):
        raise ValueError(f"prior={prior!r} is not known; choose 'learned' or 'fixed', or give a number or a prior.")
    if not is_number(prior):
        return make_prior(prior)
    if not prior > 0:
        raise ValueError(f"prior={prior} must be above 0: the standard deviation of weights, times sqrt(fan-in).")
    return make_prior(Normal(0.0, float(prior)), fan_in=True)


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
