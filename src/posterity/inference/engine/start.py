"""Before the first step: where chains begin, and whether everything the user gave fits together."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.checks import check_budget, is_whole
from posterity.core.devices import jit_once
from posterity.core.types import Key, Params
from posterity.data.arrays import Dataset
from posterity.inference.engine.job import Job, Until
from posterity.inference.methods.method import Method
from posterity.inference.methods.sampler import Sampler
from posterity.models.model import Model
from posterity.models.scales import SCALES
from posterity.models.units import without_units
from posterity.posterior.posterior import Posterior

CONTINUED = 2**30  # folded into keys, clear of the small numbers that `split` and the chains take
RESTARTS = 2**29


@records.record
class Origin:
    """Where a run begins, as a store can hold it: weights, and what tells this beginning from others."""

    leaves: tuple[Any, ...] = records.traced(default=())  # of all weights, standardised, [C, ...]
    told: str = "given weights"
    salt: int = 0

    def __str__(self) -> str:
        return self.told


def check_goal(method: Method, until: object, at: object) -> None:
    """Refuse a verdict that is none, and one of a method whose draws nothing can diagnose."""
    if until is None:
        if at is not None:
            raise ValueError("at= names rows to diagnose at, which happens with until='good' or 'usable' only.")
        return
    if until not in get_args(Until):
        raise ValueError(f"until={until!r} is not a verdict to sample for; choose 'good' or 'usable'.")
    if not isinstance(method, Sampler):
        raise ValueError(
            f"{type(method).__name__} does not sample, so until={until!r} cannot be reached by going on: use HMC(), "
            "NUTS() or another sampler, or leave until out."
        )


def with_origin(model: Model, method: Method, rows: Dataset, num_chains: int) -> Method:
    """The method, with the posterior or the weights that it, or the method it starts from, begins at as an Origin."""
    start = method.start
    if start is None or isinstance(start, Origin):
        return method
    if isinstance(start, Method):
        return records.replace(method, start=with_origin(model, start, rows, num_chains))
    weights = _started_weights(model, method, _two_rows(rows), jax.random.key(0), num_chains)
    told = start.receipt.method if isinstance(start, Posterior) else "given weights"
    return records.replace(method, start=Origin(tuple(jax.tree.leaves(weights)), told, _salt(start)))


class Start(NamedTuple):
    """Where chains begin; every leaf has a leading axis [C]."""

    key: Key
    free: Params
    fixed: Params


def starting_point(job: Job, attempt: int = 0) -> Start:
    """Where the chains of a stage begin.

    At another attempt with other keys and from the network's own initialisation, where the method's start has led
    chains astray; weights that are fixed stay those of the start.
    """
    key = start_key(job.seed, job.method.start)
    key_start, key_chains = jax.random.split(key if attempt == 0 else jax.random.fold_in(key, RESTARTS + attempt))
    free, fixed = starting_weights(job.model, job.method, job.rows, key_start, job.num_chains)
    if attempt > 0:
        afresh = records.replace(job.method, start=None)
        free, _ = starting_weights(job.model, afresh, job.rows, key_start, job.num_chains)
    return Start(chain_keys(key_chains, job.num_chains), free, fixed)


def starting_weights(model: Model, method: Method, rows: Dataset, key: Key, num_chains: int) -> tuple[Params, Params]:
    """(free, fixed) weights of each chain, [C, ...]."""
    params = _started_weights(model, method, _two_rows(rows), key, num_chains)
    # A weak type at the start would become a strong one after a step, and compile everything twice.
    params = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), params)
    return model.split(params, method.holds_scales)


def _started_weights(model: Model, method: Method, x: Any, key: Key, num_chains: int) -> Params:
    """All weights, standardised, [C, ...]."""
    if method.start is None:
        return _init_chains(model, chain_keys(key, num_chains), x)
    if isinstance(method.start, Posterior):
        return _fitting(model, method.start.starting_weights(num_chains), x, (num_chains,))
    if isinstance(method.start, Origin):
        template = jax.eval_shape(model.init, key, x)
        return jax.tree.unflatten(jax.tree.structure(template), map(jnp.asarray, method.start.leaves))
    return _given_weights(model, method.start, x, num_chains)


def _two_rows(rows: Dataset) -> Any:
    """What a network needs to see to make its weights."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), rows.x)


def start_key(seed: int, start: Any) -> Key:
    """The key of a run. One that begins where another ended must not repeat its random numbers.

    Its chains would follow the old ones, and their draws be the same. So what made the start is folded in.
    """
    key = jax.random.key(seed)
    return key if start is None else jax.random.fold_in(key, CONTINUED + _salt(start))


def _salt(start: Any) -> int:
    if isinstance(start, Origin):
        return start.salt
    if isinstance(start, Posterior):
        told = f"{start.receipt.method} {start.receipt.seed} {start.receipt.num_steps}".encode()
    else:
        told = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(start))
    return zlib.crc32(told) % CONTINUED


@partial(jax.jit, static_argnames="num_chains")
def chain_keys(key: Key, num_chains: int) -> Key:
    """Chain c's key depends on c alone: a chain is the same beside any others."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_chains))


@jit_once
def _init_chains(model: Model, keys: Key, x: Any) -> Params:
    return jax.vmap(lambda key: model.init(key, x))(keys)


def _given_weights(model: Model, start: Params, x: Any, num_chains: int) -> Params:
    """Weights the user has: those of the network, or with what stands beside them in `posterior.weights()`."""
    complete = isinstance(start, dict) and set(start) - {SCALES} == set(_template(model, x))
    given = _fitting(model, start if complete else {"network": start}, x)
    return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], num_chains, 0), given)


def _template(model: Model, x: Any) -> Params:
    """Shapes of complete weights, without scales."""
    complete = jax.eval_shape(lambda key: model.complete(model.init(key, x)), jax.random.key(0))
    return {name: part for name, part in complete.items() if name != SCALES}


def _fitting(model: Model, given: Params, x: Any, leading: tuple[int, ...] = ()) -> Params:
    """Weights whose shapes, after the leading axes, are seen to be the model's, standardised.

    A likelihood's own and learned scales begin as always where they are not given.
    """
    template, beside = _template(model, x), {name: given[name] for name in {SCALES} & set(given)}
    given = {name: part for name, part in given.items() if name != SCALES}
    own = model.likelihood.init()
    if own and "likelihood" not in given:
        own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*leading, *jnp.shape(leaf))), own)
        given = {**given, "likelihood": own}
    if jax.tree.structure(given) != jax.tree.structure(template):
        raise ValueError(
            f"start holds the weights {pytrees.leaf_names(given)}, but the network has "
            f"{pytrees.leaf_names(template)}: give weights of this network, or a posterior of it."
        )
    for name, got, wanted in zip(
        pytrees.leaf_names(template), jax.tree.leaves(given), jax.tree.leaves(template), strict=True
    ):
        shape = jnp.shape(got)[len(leading) :]
        if shape != wanted.shape:
            raise ValueError(
                f"start has shape {shape} for {name}; the network has {wanted.shape}: give weights of this network, or "
                "a posterior of it."
            )
    standardise = jax.vmap(model.standardise) if leading else model.standardise
    return standardise({**given, **beside})


def check_shapes(model: Model, free: Params, fixed: Params, rows: Dataset) -> None:
    """Outputs must fit the likelihood, the prior the weights, and what the likelihood describes the targets."""
    model.check_inputs(rows.x)
    x = _two_rows(rows)
    model.check_weights(free, fixed, x)
    inner, *_ = without_units(model.likelihood)
    bound = model.bind(fixed)
    sample = jax.eval_shape(lambda p: inner(bound.outputs(p, x)).sample(jax.random.key(0)), free)
    described = sample.shape[1:]
    if described != rows.y.shape[1:]:
        raise ValueError(
            f"y has shape {rows.y.shape}, but {type(model.likelihood).__name__} on this network describes targets of "
            f"shape ({', '.join(['N', *map(str, described)])}{'' if described else ','}). {_remedy(model, rows)}"
        )


def _remedy(model: Model, rows: Dataset) -> str:
    if model.likelihood.kind == "classes":
        return "Give the number of the class, for one-hot rows y.argmax(-1)."
    return f"For several targets a row say so, for instance Gaussian(0.1, num_outputs={rows.y.shape[-1]})."


def check_arguments(model: Any, method: Any, seed: Any, chains: Any, budget: Any) -> None:
    if not isinstance(model, Model):
        raise TypeError(f"model is {type(model).__name__}; expected Model(network, likelihood, prior).")
    if not isinstance(method, Method):
        hint = f"{method.__name__}()" if isinstance(method, type) else "for instance MAP()"
        got = method if isinstance(method, type | str) else type(method).__name__
        raise TypeError(f"method is {got!r}; expected a method object, {hint}: fit(model, method, (x, y)).")
    if chains is not None and not (is_whole(chains) and chains >= 1):
        raise ValueError(f"chains={chains!r} must be a whole number, at least 1.")
    for stage in method.stages():
        if None not in (chains, stage.num_members) and chains != stage.num_members:
            raise ValueError(
                f"chains={chains} of an ensemble of num_members={stage.num_members}: a member is a chain, so give one."
            )
    check_budget(budget)
    if not (is_whole(seed) and seed >= 0):
        raise ValueError(f"seed={seed!r} must be a whole number, at least 0.")
