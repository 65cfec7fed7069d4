"""A network for texts: token ids are embedded, convolved, pooled, and read by an LSTM (Izmailov et al. 2021, IMDB)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.networks.built_in import BuiltIn, check_counts, check_rate, dense, drop_channels, init_layer
from posterity.types import Array, Key, Params

FORGET = 1.0  # added to the forget gate, so that an LSTM begins by remembering


@dataclass(frozen=True)
class CNNLSTM(BuiltIn):
    """Embedding, one convolution along the text with ReLU, max-pooling, LSTM; a dense layer on its last state.

    Dropout acts on the inputs of the LSTM (the same at all times) and on its last state.
    """

    num_outputs: int | None = None
    vocabulary: int = 20_000
    embedding: int = 128
    filters: int = 64
    window: int = 5
    pool: int = 4
    units: int = 128
    dropout: float = 0.0

    def init(self, key: Key, x: Array) -> Params:
        if x.ndim != 2 or x.shape[1] < self.window + self.pool - 1:
            raise ValueError(
                f"x has the shape {x.shape}; expected token ids [N, length] of at least {self.window + self.pool - 1} "
                "tokens a text."
            )
        keys = jax.random.split(key, 5)
        gates = 4 * self.units
        return {
            "embedding": {"weight": jax.random.normal(keys[0], (self.vocabulary, self.embedding))},
            "conv": init_layer(keys[1], (self.window, self.embedding, self.filters)),
            "lstm": {
                "input": init_layer(keys[2], (self.filters, gates), 1.0),
                "state": {"weight": init_layer(keys[3], (self.units, gates), 1.0)["weight"]},
            },
            "head": init_layer(keys[4], (self.units, self.outputs_known()), 1.0),
        }

    def apply(self, params: Params, x: Array, key: Key | None = None) -> Array:
        """Outputs [N, K]. A token beyond the vocabulary gives NaN."""
        key_inputs, key_state = (None, None) if key is None else jax.random.split(key)
        embedded = jnp.take(params["embedding"]["weight"], x.astype(jnp.int32), 0, mode="fill")
        features = jax.nn.relu(convolve_text(params["conv"], embedded))
        steps = features.shape[1] // self.pool
        pooled = features[:, : steps * self.pool].reshape(-1, steps, self.pool, self.filters).max(2)
        pooled = drop_channels(key_inputs, pooled, self.dropout)
        return dense(params["head"], drop_channels(key_state, last_state(params["lstm"], pooled), self.dropout))

    def check_inputs(self, x: Any) -> None:
        low, high = np.min(x), np.max(x)
        if low < 0 or high >= self.vocabulary:
            raise ValueError(
                f"x has token ids from {low:g} to {high:g}; this network knows 0 to {self.vocabulary - 1}. Say "
                f"cnn_lstm(vocabulary={int(high) + 1}), or give rare tokens the id of 'unknown'."
            )

    def rate_before(self, path: str) -> float:
        return self.dropout if path in ("lstm/input", "head") else 0.0


def cnn_lstm(
    num_outputs: int | None = None,
    *,
    vocabulary: int = 20_000,
    embedding: int = 128,
    filters: int = 64,
    window: int = 5,
    pool: int = 4,
    units: int = 128,
    dropout: float = 0.0,
) -> CNNLSTM:
    """A convolution and an LSTM for token ids [N, length], each in 0 .. vocabulary - 1.

    Args:
        num_outputs: By default what the likelihood takes.
        vocabulary: How many tokens there are.
        embedding: Numbers that stand for a token.
        filters: Of the convolution.
        window: Tokens a filter sees.
        pool: Neighbouring places of which the largest value is kept.
        units: Of the LSTM.
        dropout: The share to drop of the inputs of the LSTM and of its last state.
    """
    counts = (vocabulary, embedding, filters, window, pool, units)
    names = ("vocabulary", "embedding", "filters", "window", "pool", "units")
    check_counts(**dict(zip(names, counts, strict=True)))
    return CNNLSTM(num_outputs, *counts, dropout=check_rate(dropout))


def convolve_text(layer: dict[str, Array], x: Array) -> Array:
    """[N, T, in] to [N, T - window + 1, out], where the whole window is inside.

    One product for all places of the window, then a sum of shifted slices: XLA's own one-dimensional convolution took
    27 times as long with its gradient on a CPU.
    """
    window, channels, filters = layer["weight"].shape
    length = x.shape[1] - window + 1
    products = x @ layer["weight"].transpose(1, 0, 2).reshape(channels, window * filters)
    shifted = [products[:, i : i + length, i * filters : (i + 1) * filters] for i in range(window)]
    return sum(shifted[1:], start=shifted[0]) + layer["bias"]


def last_state(layer: dict[str, dict[str, Array]], x: Array) -> Array:
    """The state [N, units] of an LSTM after the sequence [N, T, in]."""
    weight = layer["state"]["weight"]
    inputs = dense(layer["input"], x).swapaxes(0, 1)  # of all times at once

    def step(carry: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], None]:
        state, memory = carry
        write, forget, content, read = jnp.split(gates + state @ weight, 4, -1)
        memory = jax.nn.sigmoid(forget + FORGET) * memory + jax.nn.sigmoid(write) * jnp.tanh(content)
        return (jax.nn.sigmoid(read) * jnp.tanh(memory), memory), None

    zeros = jnp.zeros((x.shape[0], weight.shape[0]), x.dtype)
    return jax.lax.scan(step, (zeros, zeros), inputs)[0][0]
