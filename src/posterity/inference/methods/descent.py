"""What every method that optimises shares: settings, the plan, and a kernel that follows a gradient with optax.

Losses are per datum (divided by N), so a learning rate means the same for any number of rows and any batch size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from posterity.core import records
from posterity.core.checks import check_whole
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.data.batches import num_batches
from posterity.inference.methods.method import Method, explicit_batch_size
from posterity.models.model import weighted_sum

NUM_STRIDES = 1000  # of the trace, about: each is the mean over its share of the steps
LONGEST_STRIDE = 100  # steps; the driver looks at the clock between strides

Loss = Callable[[Key, Params, Any, Batch, Clock], tuple[Array, Any]]


class LossParts(NamedTuple):
    """A loss per datum and its two parts."""

    loss: Array
    negative_log_likelihood: Array  # per datum, untempered
    penalty: Array  # the rest: what the prior, or a divergence from it, costs per datum


class DescentState(NamedTuple):
    params: Params  # what is optimised
    optimizer: Any
    constant: Any  # what the loss needs beside it and no step changes


@records.record
class Descent(Method):
    """Settings of an optimisation. Abstract: MAP, MCDropout and the others add theirs.

    Args:
        num_steps: Steps of the optimiser.
        learning_rate: A number or an optax schedule; per datum, as for SGD on a mean loss.
        batch_size: Rows per step. None: 128, or all rows where there are fewer; "full": all rows.
        num_epochs: Passes over the rows, instead of `num_steps`. None: `num_steps` counts.
        optimizer: A function of the learning rate, such as `optax.adamw`, or an optax transformation, which then has
            a learning rate of its own; `optax.MultiSteps` around one averages the gradients of several steps.
        patience: With validation rows, the checks in a row that may find no better loss before a chain stops. There is
            one per epoch or, where an epoch is shorter, one per hundredth of the run, at most 50 steps apart.
    """

    augments = True
    _: dataclasses.KW_ONLY  # so that DeepEnsemble(10) has ten members, not ten steps
    num_steps: int = records.host(default=5_000)
    learning_rate: Any = records.traced(default=3e-3)
    batch_size: int | str | None = records.host(default=None)
    num_epochs: int | None = records.host(default=None)
    optimizer: Any = optax.adam
    patience: int = records.host(default=10)
    start: Any = records.host(default=None)

    def __post_init__(self) -> None:
        check_whole(type(self).__name__, num_steps=self.num_steps, patience=self.patience)
        if self.num_epochs is not None:
            check_whole(type(self).__name__, num_epochs=self.num_epochs)
        if isinstance(self.learning_rate, str) or not (callable(self.learning_rate) or self.learning_rate > 0):
            raise ValueError(
                f"{type(self).__name__}(learning_rate={self.learning_rate!r}) must be a number above 0, such as 0.001, "
                "or an optax schedule."
            )

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        batch_size = explicit_batch_size(self.batch_size, num_rows)
        epoch = num_batches(num_rows, batch_size)
        num_steps = self.num_steps if self.num_epochs is None else self.num_epochs * epoch
        return (Phase(num_steps, batch_size, thin=max(1, min(num_steps // NUM_STRIDES, LONGEST_STRIDE))),)

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation, built inside the program so that the rate is an argument of it."""
        made = self.optimizer
        if isinstance(made, optax.MultiSteps):
            return made.gradient_transformation()
        if isinstance(made, optax.GradientTransformation | optax.GradientTransformationExtraArgs):
            return made
        return made(self.learning_rate)


def descend(
    method: Descent,
    loss: Loss,
    validate: Callable[[Key, DescentState, Batch], Array],
    prepare: Callable[[Key, Params], tuple[Params, Any]] = lambda _, params: (params, None),
) -> Kernel:
    """A kernel that follows the gradient of `loss(key, variables, constant, batch, clock) -> (loss, info)`.

    `prepare` makes the variables and the constant from the starting weights.
    """
    transformation = optax.with_extra_args_support(method.transformation())

    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> DescentState:
        del batch, clock
        variables, constant = prepare(key, params)
        return DescentState(variables, transformation.init(variables), constant)

    def step(key: Key, state: DescentState, batch: Batch, clock: Clock) -> tuple[DescentState, Any]:
        def objective(variables: Any) -> tuple[Array, Any]:
            return loss(key, variables, state.constant, batch, clock)

        (value, info), gradient = jax.value_and_grad(objective, has_aux=True)(state.params)
        # What a line search asks for; other transformations have no use for it.
        more = {"value": value, "grad": gradient, "value_fn": lambda variables: objective(variables)[0]}
        updates, optimizer = transformation.update(gradient, state.optimizer, state.params, **more)
        return DescentState(optax.apply_updates(state.params, updates), optimizer, state.constant), info

    return Kernel(init, step, validate)


def loss_parts(model: Any, log_likelihood: Array, log_prior: Array, clock: Clock) -> tuple[Array, LossParts]:
    """Minus the model's objective per datum; `log_likelihood` is that of the whole data, scaled from a batch."""
    loss = -model.objective(log_likelihood, log_prior) / clock.num_data
    negative_log_likelihood = -log_likelihood / clock.num_data
    return loss, LossParts(loss, negative_log_likelihood, loss - negative_log_likelihood)


def mean_negative_log_likelihood(model: Any, params: Params, batch: Batch) -> Array:
    """Validation loss: per row, with dropout off."""
    return -weighted_sum(model.log_likelihood(params, batch), batch.weight) / jnp.sum(batch.weight)
