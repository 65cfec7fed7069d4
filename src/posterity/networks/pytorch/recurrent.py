"""Recurrent layers: LSTM, GRU and Elman's, of several layers and in both directions.

With z = W_i x + b_i and u = W_h h + b_h, cut into one part for each gate:

    LSTM   i, f, o = sigmoid(z + u),  g = tanh(z + u),       c' = f c + i g,         h' = o tanh(c')
    GRU    r, s = sigmoid(z + u),     n = tanh(z + r u),     h' = (1 - s) n + s h
    Elman  h' = tanh(z + u) or relu(z + u)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from posterity.core.types import Array, Key
from posterity.networks.pytorch.attention import dropout

States = tuple[Array, ...]
Cell = Callable[[States, Array, Array], States]  # state, z, u


def _lstm_cell(state: States, z: Array, u: Array) -> States:
    write, forget, content, read = jnp.split(z + u, 4, -1)
    memory = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(write) * jnp.tanh(content)
    return jax.nn.sigmoid(read) * jnp.tanh(memory), memory


def _gru_cell(state: States, z: Array, u: Array) -> States:
    (z_reset, z_stay, z_new), (u_reset, u_stay, u_new) = jnp.split(z, 3, -1), jnp.split(u, 3, -1)
    new = jnp.tanh(z_new + jax.nn.sigmoid(z_reset + u_reset) * u_new)
    stay = jax.nn.sigmoid(z_stay + u_stay)
    return ((1 - stay) * new + stay * state[0],)


def _elman_cell(activation: Callable[[Array], Array], state: States, z: Array, u: Array) -> States:
    del state
    return (activation(z + u),)


def _recurrent(
    cell: Cell,
    key: Key | None,
    x: Array,
    first: Sequence[Array],
    params: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    rate: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, ...]:
    """Outputs of all times, and the last states [layers * directions, N, units]."""
    if len(params) != num_layers * (1 + bidirectional) * (4 if has_biases else 2):
        raise NotImplementedError("Recurrent layers with projections are not known here: leave out proj_size.")
    one_row = x.ndim == 2
    if one_row:
        x, first = x[:, None], [state[:, None] for state in first]
    elif batch_first:
        x = jnp.swapaxes(x, 0, 1)
    each = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    last: list[States] = []
    for layer in range(num_layers):
        made = []
        for direction in range(directions):
            place = layer * directions + direction
            weights = params[place * each : (place + 1) * each]
            ended, outputs = _one_direction(cell, x, tuple(s[place] for s in first), weights, direction == 1)
            made.append(outputs)
            last.append(ended)
        x = jnp.concatenate(made, -1)
        if layer < num_layers - 1:
            x = dropout(None if key is None else jax.random.fold_in(key, layer), x, rate, train)
    states = [jnp.stack(parts) for parts in zip(*last, strict=True)]
    if one_row:
        return x[:, 0], *(state[:, 0] for state in states)
    return jnp.swapaxes(x, 0, 1) if batch_first else x, *states


def _one_direction(
    cell: Cell, x: Array, first: States, weights: Sequence[Array], backwards: bool
) -> tuple[States, Array]:
    of_input, of_state = weights[0].T, weights[1].T
    inputs = x @ of_input  # of all times at once
    inputs = inputs + weights[2] if len(weights) == 4 else inputs
    bias = weights[3] if len(weights) == 4 else jnp.zeros((), x.dtype)

    def step(state: States, z: Array) -> tuple[States, Array]:
        state = cell(state, z, state[0] @ of_state + bias)
        return state, state[0]

    return jax.lax.scan(step, first, inputs, reverse=backwards)


def lstm(key: Key | None, x: Array, hx: Sequence[Array], *settings) -> tuple[Array, ...]:
    return _recurrent(_lstm_cell, key, x, hx, *settings)


def gru(key: Key | None, x: Array, hx: Array, *settings) -> tuple[Array, ...]:
    return _recurrent(_gru_cell, key, x, [hx], *settings)


def elman(activation: Callable[[Array], Array], key: Key | None, x: Array, hx: Array, *settings) -> tuple[Array, ...]:
    return _recurrent(partial(_elman_cell, activation), key, x, [hx], *settings)
