"""What `fit` returns: weights, the model they belong to, how they were found, and the receipt."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.checks import is_number, is_whole
from posterity.core.devices import check_process
from posterity.core.types import Family, Key, Params
from posterity.data.arrays import Dataset, check_inputs, check_like
from posterity.models.heads import Heads
from posterity.models.model import Model
from posterity.models.priors import Prior
from posterity.posterior import diagnose
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.handing_on import gaussian_prior
from posterity.posterior.trace import Trace
from posterity.prediction.conformal import Conformal
from posterity.prediction.novelty import (
    FEATURE_DRAWS,
    SCORES,
    Calibration,
    FeatureDistance,
    Score,
    feature_distance,
)
from posterity.prediction.prediction import Prediction
from posterity.prediction.streaming import DEFAULT_MEMORY, OutputStream
from posterity.storage.codec import StoreError
from posterity.storage.folder import MANIFEST, Writer
from posterity.storage.lock import hold
from posterity.weights.families import DropoutMasks, Samples

if TYPE_CHECKING:
    from posterity.posterior.receipt import Receipt

DEFAULT_DRAWS = 100
WIDTH_DRAWS = 4_000
DRAWING = 2**28  # folded into the keys of draws, clear of what `fit` and samples of targets fold in


@dataclass(frozen=True, repr=False, kw_only=True)
class Posterior:
    """A family of weights with the model it belongs to. `predict` is what most people want.

    Attributes:
        model: The model, as the method left it (tuned noise, for instance).
        family: The weights: stored draws, or a distribution that draws are made from.
        method: What inferred them.
        receipt: What was done, to the digit; print it.
        trace: What each chain recorded, by name, [C, R]: one entry a stride.
        facts: What the method learned beside the weights, by name, for instance "log_evidence".
        inputs: The training inputs, for distances of features.
        calibration: Scores of the held-out rows, for out-of-distribution p-values. None: no rows were held out.
        metadata: Values of the user's own, plain JSON, kept with the posterior.
        held_out: Rows that were not trained on, with their targets, for `conformal`. None: there are none.
    """

    model: Model
    family: Family
    method: Any
    receipt: Receipt
    trace: Trace
    facts: dict[str, Any]
    inputs: Any
    calibration: Calibration | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    held_out: Dataset | None = None

    def __repr__(self) -> str:
        facts = self.receipt
        return (
            f"Posterior({facts.method}: {facts.num_weights} weights, {facts.num_data} rows, {facts.num_chains} chains, "
            f"{self.family.num_draws or 'fresh'} draws)"
        )

    def predict(
        self,
        x: Any,
        *,
        num_draws: int | None = None,
        seed: int = 0,
        memory: int = DEFAULT_MEMORY,
        closed_form: bool = True,
    ) -> Prediction:
        """The predictive distribution at rows x.

        Args:
            x: Inputs shaped as in training.
            num_draws: Draws to mix; by default all stored ones, or 100 fresh ones.
            seed: Of fresh draws; the same seed gives the same draws at any rows.
            memory: Bytes to stay within, about; draws on disk are read in pieces that fit.
            closed_form: Use Gaussian formulas where method and likelihood have them, instead of draws.

        Examples:
            >>> import numpy as np
            >>> from posterity import Exact, Gaussian, Model, fit, linear
            >>> x = np.linspace(-1.0, 1.0, 20)[:, None]
            >>> posterior = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]))
            >>> prediction = posterior.predict(np.array([[0.5], [10.0]]))
            >>> prediction.mean.round(1).tolist()
            [1.0, 20.0]
            >>> bool(prediction.epistemic[0] < prediction.epistemic[1])  # 10 is far from the data
            True
        """
        check_process()
        _check_memory(memory)
        inputs = check_inputs(x)
        self._check_rows(inputs)
        closed = closed_form and num_draws is None and self._has_closed_form
        stream = OutputStream(self.model, self.family, _draw_key(seed), inputs, self._choose(num_draws), closed, memory)
        # p-values compare with scores of held-out rows, which were predicted as is usual.
        fresh = self.family.num_draws is None and not closed
        usual = num_draws in (None, self.family.num_draws) and closed_form and not (fresh and seed)
        return Prediction(stream, self.calibration, None if usual else partial(self.predict, inputs, memory=memory))

    def diagnose(self, x: Any, *, seed: int = 0, memory: int = DEFAULT_MEMORY) -> Diagnosis:
        """Whether the chains agree on what they predict at rows x, in numbers and, printed, in words.

        Args:
            x: Inputs to judge at; those you will predict at.
            seed: Of fresh draws.
            memory: Bytes to stay within, about.

        Examples:
            >>> import numpy as np
            >>> from posterity import Exact, Gaussian, Model, fit, linear
            >>> x = np.linspace(-1.0, 1.0, 20)[:, None]
            >>> posterior = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]))
            >>> posterior.diagnose(x).verdict  # draws of the closed form are not a Markov chain
            'independent'
        """
        return diagnose.diagnose(self, x, seed=seed, memory=memory)

    def calibrate(self, x: Any, score: Score | None = None) -> Posterior:
        """The same posterior with out-of-distribution p-values, from rows it was not trained on.

        `score`: "epistemic", "total", "logits" (their variance over draws, for classes), or "features" (distance of
        the last hidden features). By default epistemic for numbers; features for classes where draws are stored, logits
        where they are made afresh; and features where one draw leaves nothing to disagree.
        """
        if score is not None and score not in SCORES:
            raise ValueError(f"score={score!r} is not known; choose from {', '.join(SCORES)}.")
        inputs = check_inputs(x)
        single = self.family.num_draws == 1 and not self._has_closed_form
        chosen: Score = score or "epistemic"
        kind = self.model.likelihood.kind
        if score is None and (single or kind == "classes"):
            chosen = "logits" if self.family.num_draws is None else "features"
        if kind == "heads":
            if score not in (None, "features"):
                raise ValueError(f"score={score!r} is of one target; with several heads choose 'features'.")
            chosen = "features"
        distance = None
        if chosen == "features":
            distance = self.feature_distance()
        blank = Calibration(chosen, np.zeros(0), distance)
        scores = np.sort(blank.score(self.predict(inputs), inputs))
        return dataclasses.replace(self, calibration=blank._replace(scores=scores))

    def conformal(self, x: Any = None, y: Any = None) -> Conformal:
        """Intervals, or sets of classes, that hold their share of targets whatever the model: see `Conformal`.

        By default the rows that `fit(..., holdout=0.1)` set aside serve; or give rows that were not trained on.

        Examples:
            >>> import numpy as np
            >>> from posterity import Exact, Gaussian, Model, fit, linear
            >>> x = np.linspace(-1.0, 1.0, 100)[:, None]
            >>> posterior = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]), holdout=0.3)
            >>> lower, upper = posterior.conformal().interval(posterior.predict(x[:3]), 0.9)
            >>> bool((upper - lower < 0.2).all())  # there is no noise: the posterior's own are 0.33 wide
            True
        """
        if x is not None and y is not None:
            return Conformal(self.predict(x), y)
        if (x is None) != (y is None):
            raise ValueError(f"{'y' if y is None else 'x'} is missing: give inputs and their targets, or neither.")
        if self.held_out is None:
            raise ValueError(
                "No rows with targets were set aside. Either set some aside when fitting, fit(..., holdout=0.1), or "
                "give rows that were not trained on, posterior.conformal(x, y)."
            )
        return Conformal(self.predict(self.held_out.x), self.held_out.y, self.held_out.weight)

    def head(self, name: str) -> Posterior:
        """The posterior as that of one of several heads: to diagnose it or to audit it by itself."""
        likelihood = self.model.likelihood
        if not isinstance(likelihood, Heads):
            raise TypeError(f"{type(likelihood).__name__} describes one target; head({name!r}) is for Heads.")
        return dataclasses.replace(self, model=records.replace(self.model, likelihood=likelihood.head(name)))

    def feature_distance(self) -> FeatureDistance:
        """How far a row's last hidden features lie from those of the training rows, over draws or starting weights."""
        stored = self.family.num_draws
        weights = self._complete_weights() if stored is None else self.weights(min(stored, FEATURE_DRAWS))
        return feature_distance(self.model, weights, self.inputs)

    def save(self, path: str | Path) -> None:
        """Write everything into a new folder; `load(path)` reads it again. Draws go into files of about 64 MB."""
        folder = Path(path)
        if (folder / MANIFEST).exists():
            raise StoreError(f"{folder} holds a store already; choose a new folder.")
        from posterity.posterior.saving import posterior_parts  # which builds posteriors, and so imports this module

        with hold(folder):
            writer = Writer(folder)
            writer.manifest({"posterior": posterior_parts(self, writer)})

    def weights(self, num_draws: int | None = None, seed: int = 0) -> Params:
        """Complete weights of draws, [S, ...]; by default of all stored ones, or of one where fresh ones are made."""
        family = self.family
        if isinstance(family, DropoutMasks):
            raise TypeError(
                "The draws of MC dropout are masks on units, not weights: posterior.starting_weights(1) gives the "
                "weights they act on, predict(x).outputs what the draws come to."
            )
        fresh = num_draws is None and family.num_draws is None
        key = _draw_key(seed)
        family, draws = family.at_hand(key, self._choose(1 if fresh else num_draws))
        return jax.vmap(lambda index: family.weights(self.model, key, index))(jnp.asarray(draws))

    def as_prior(self, *, widen: float = 1.0, num_draws: int = WIDTH_DRAWS, seed: int = 0) -> Prior:
        """A prior with the mean and width of every weight, an independent Gaussian each: `Model(prior=...)` learns on.

        What weights have to do with each other is lost, so learn with one chain: Gaussians around several modes at once
        describe none of them. Weights that were held fixed stay so; give them by `start=posterior`.

        Args:
            widen: Multiplies all widths; above 1, what was learned counts less.
            num_draws: Fresh draws that widths are estimated from, where they are not known in closed form; stored ones
                are all used.
            seed: Of fresh draws.

        Examples:
            >>> import numpy as np
            >>> from posterity import Exact, Gaussian, Model, fit, linear
            >>> x = np.linspace(-1.0, 1.0, 20)[:, None]
            >>> first = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]), progress=False)
            >>> model = Model(linear(), Gaussian(0.1), first.as_prior())
            >>> second = fit(model, Exact(), (x, 2.0 * x[:, 0]), progress=False)
            >>> bool((second.predict(x).epistemic < first.predict(x).epistemic).all())
            True
        """
        if not (is_number(widen) and widen > 0):
            raise ValueError(f"widen={widen!r} must be a number above 0; 1 takes the posterior as it is.")
        count = num_draws if self.family.num_draws is None else None
        return gaussian_prior(self.model, self.family, lambda: self.weights(count, seed), widen)

    def starting_weights(self, num_chains: int) -> Params:
        """Complete weights for so many chains of another method, [C, ...]; chains are used again where too few."""
        index = jnp.arange(num_chains) % self.family.num_chains
        return pytrees.take_rows(self._complete_weights(), index)

    def _complete_weights(self) -> Params:
        """Of each chain, [C, ...]."""
        return jax.vmap(lambda free, fixed: self.model.bind(fixed).complete(free))(
            self.family.point(), self.family.fixed
        )

    @property
    def _has_closed_form(self) -> bool:
        """Of rows whose target is one number or vector: the pixels of an image are correlated, which it leaves out."""
        if not (self.family.has_moments and self.model.likelihood.has_marginal):
            return False
        row = pytrees.take_rows(self.inputs, slice(0, 1))
        outputs = jax.eval_shape(lambda params: self.model.outputs(params, row), self._one_weight_vector())
        return outputs.ndim == 2

    def _one_weight_vector(self) -> Params:
        return pytrees.take_rows(self._complete_weights(), 0)

    def _choose(self, num_draws: int | None) -> np.ndarray:
        stored = self.family.num_draws
        if num_draws is not None:
            _check_draws(num_draws)
        if stored is None:
            per_chain = self.family.num_chains
            wanted = -(-DEFAULT_DRAWS // per_chain) * per_chain if num_draws is None else num_draws
            return np.arange(wanted)
        if num_draws is None or num_draws == stored:
            return np.arange(stored)
        if num_draws > stored:
            raise ValueError(f"num_draws={num_draws}, but {stored} draws are stored; ask for at most that many.")
        return _evenly_spaced(num_draws, self.family.num_chains, stored // self.family.num_chains)

    def _check_rows(self, inputs: Any) -> None:
        check_like(inputs, self.inputs)
        self.model.check_inputs(inputs)


def _check_draws(num_draws: Any) -> None:
    if not (is_whole(num_draws) and num_draws >= 1):
        raise ValueError(f"num_draws={num_draws!r} must be a whole number, at least 1.")


def _check_memory(memory: Any) -> None:
    if not (is_number(memory) and memory > 0):
        raise ValueError(f"memory={memory!r} must be a number of bytes above 0, for instance 2**30 for 1 GB.")


def _draw_key(seed: int) -> Key:
    """The key of fresh draws; not the one that `fit` begins with at the same seed."""
    return jax.random.fold_in(jax.random.key(seed), DRAWING)


def _evenly_spaced(count: int, num_chains: int, num_draws: int) -> np.ndarray:
    """So many of the draws s = draw * C + chain: as many of each chain as can be, evenly spaced along it."""
    per_chain = np.full(num_chains, count // num_chains)
    per_chain[np.linspace(0, num_chains - 1, count % num_chains).round().astype(int)] += 1
    places = [
        np.linspace(0, num_draws - 1, size).round().astype(int) * num_chains + chain
        for chain, size in enumerate(per_chain)
    ]
    return np.sort(np.concatenate(places))


def prior_predictive(model: Model, x: Any, *, num_draws: int = 100, seed: int = 0) -> Prediction:
    """What the model says before it has seen a datum: draws of functions from the prior, as a prediction at rows x."""
    _check_draws(num_draws)
    inputs = check_inputs(x)
    model.check_inputs(inputs)
    key_init, key_draws, key = jax.random.split(jax.random.key(seed), 3)
    two = jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), inputs)
    start = model.init(key_init, two)
    free, fixed = model.split(start)
    model.check_weights(free, fixed, two)

    def draw(key: Key) -> Params:
        return model.split(model.sample_prior(key, start))[0]

    draws = jax.vmap(draw)(jax.random.split(key_draws, num_draws))
    # A chain for each draw: they are independent, and their errors those of independent draws.
    draws = jax.tree.map(lambda leaf: leaf[:, None], draws)
    family = Samples(draws, jax.tree.map(lambda leaf: jnp.repeat(leaf[None], num_draws, 0), fixed))
    return Prediction(OutputStream(model, family, key, inputs, np.arange(num_draws), False, DEFAULT_MEMORY))
