"""Names for the things every module passes around.

Axis letters, the same everywhere: [C]hains, [D]raws per chain, [S] = C*D draws in all, [N] rows, [K] network outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, get_args

import jax
import numpy as np

Array = jax.Array
Key = jax.Array
Task = Literal["regression", "classification"]
TASKS: tuple[Task, ...] = get_args(Task)
Params = Any  # a pytree of arrays; None stands where a weight is held fixed


class Batch(NamedTuple):
    """Rows of data. A row of weight 0 is padding, so any number of rows fits any batch size.

    Args:
        x: Inputs: a pytree of arrays with a common leading axis, [N, ...].
        y: Targets, [N, ...].
        weight: How often each row counts, [N].
    """

    x: Any
    y: Array
    weight: Array


class Clock(NamedTuple):
    """Where a run is. The numbers are traced, so that none of them recompiles anything.

    Args:
        step: The step within the phase, from 0.
        num_steps: Steps of the phase.
        phase: The phase of the plan, 0 for the first.
        batch_index: The batch of this step, 0 .. num_batches - 1.
        num_batches: How many such batches make up the whole data.
        num_data: Rows of the whole data.
    """

    step: Array
    num_steps: Array
    phase: Array
    batch_index: Array
    num_batches: Array
    num_data: Array


class Phase(NamedTuple):
    """A stretch of a run. What the trace and the kept draws hold is one entry a stride, `thin` steps.

    Args:
        num_steps: Steps of each chain.
        batch_size: Rows per step. None: all rows at once.
        thin: Steps of a stride.
        keep: Whether a draw is kept at the end of each stride.
        shuffle: Whether the rows of each epoch come in an order of its own.
        adapt: Whether the kernel's `adapt` is called at the end; draws kept by such a phase serve it alone.
    """

    num_steps: int
    batch_size: int | None = None
    thin: int = 1
    keep: bool = False
    shuffle: bool = True
    adapt: bool = False


class Kernel(NamedTuple):
    """One chain, one step. The driver adds chains, batches, progress and the stop at a non-finite value.

    Args:
        init: `init(key, params, batch, clock)` gives a State, a NamedTuple with a field `params`.
        step: `step(key, state, batch, clock)` gives the next State and an Info, a NamedTuple of scalars whose first
            field is what the progress bar shows.
        validate: `validate(key, state, batch)` gives the loss of a State on held-out rows. None: the method cannot stop
            early.
        adapt: `adapt(key, state, draws, clock)` gives the State to continue from. It is called once where a phase with
            `adapt` ends, with the draws that phase kept, [D, ...] (None if it kept none). None: nothing adapts.
    """

    init: Callable[[Key, Params, Batch, Clock], Any]
    step: Callable[[Key, Any, Batch, Clock], tuple[Any, Any]]
    validate: Callable[[Key, Any, Batch], Array] | None = None
    adapt: Callable[[Key, Any, Params, Clock], Any] | None = None


class Network(NamedTuple):
    """Any pure function of weights and inputs.

    Args:
        init: `init(key, x) -> params`, the weights to start from.
        apply: `apply(params, x, key=None) -> [N, ..., K]`, the outputs; a key switches dropout on.
        fan_in_axis: The axis of a weight matrix that is summed over: -2 for [in, out], -1 for [out, in].
        shares_masks: Whether one call with one key uses the same dropout mask for all its rows.
    """

    init: Callable[[Key, Any], Params]
    apply: Callable[..., Array]
    fan_in_axis: int = -2
    shares_masks: bool = False


class ModelLike(Protocol):
    """What a family asks of the model it belongs to, whose room lies below this one."""

    @property
    def network(self) -> Any: ...

    def bind(self, fixed: Params) -> Any:
        """The same model with these values for its fixed weights."""
        ...

    def complete(self, params: Params) -> Params:
        """Free weights together with the fixed ones."""
        ...

    def outputs(self, params: Params, x: Any, key: Key | None = None) -> Array:
        """Network outputs [N, ..., K]."""
        ...

    def plain_outputs(self, params: Params, x: Any, key: Key | None = None) -> Array:
        """The same as the network wrote them; for what maps over rows."""
        ...


class Family(Protocol):
    """Weights that can do one thing: give network outputs for draws. `WeightFamily` has the defaults.

    Draw s depends on (key, s) alone, never on which rows are asked for together, and belongs to chain s % num_chains.
    """

    @property
    def fixed(self) -> Params:
        """[C, ...] weights that were not inferred; None where there are none."""

    @property
    def draws(self) -> Params:
        """Stored draws [C, D, ...], in memory or on disk; None where they are made when asked for."""

    @property
    def num_chains(self) -> int: ...

    @property
    def num_draws(self) -> int | None:
        """How many draws are stored; None where fresh ones can be made without end."""

    @property
    def bytes_of_draw(self) -> int:
        """Bytes of a draw that must be read from disk, or made; 0 where all draws are at hand."""
        ...

    @property
    def has_moments(self) -> bool:
        """Whether `moments` is known in closed form."""
        ...

    def outputs(self, model: ModelLike, key: Key, x: Any, draws: Array) -> Array:
        """Network outputs [len(draws), N, ..., K]."""
        ...

    def moments(self, model: ModelLike, x: Any) -> tuple[Array, Array]:
        """Mean [C, N, ..., K] and covariance [C, N, ..., K, K] of the outputs."""
        ...

    def point(self) -> Params:
        """One weight vector per chain, [C, ...]: where another method may start."""

    def weights(self, model: ModelLike, key: Key, index: Array) -> Params:
        """All weights of draw `index`, fixed ones included."""

    def at_hand(self, key: Key, draws: np.ndarray) -> tuple[Family, np.ndarray]:
        """A family for compiled programs that has these draws in memory, and their numbers there."""
        ...
