"""What our networks share: how they are described, and the layers that those for images and sequences are made of.

A layer is a dictionary of its weights, and a function that applies it to [N, ..., channels]. Weights start at
N(0, gain / fan_in), biases at zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array, Key, Params

T = TypeVar("T", bound="BuiltIn")

EPSILON = 1e-6  # of filter response normalisation


class BuiltIn:
    """A network described by its settings alone: equal settings are equal networks and share compiled programs.

    Subclasses are frozen dataclasses with a field `num_outputs`; None stands for whatever the likelihood takes.
    """

    num_outputs: int | None
    fan_in_axis = -2
    shares_masks = True
    splits_rows = True  # on a CPU, too: XLA leaves much of such a network to one core

    def init(self, key: Key, x: Array) -> Params:
        raise NotImplementedError

    def apply(self, params: Params, x: Array, key: Key | None = None) -> Array:
        raise NotImplementedError

    def with_outputs(self: T, num_outputs: int) -> T:
        return dataclasses.replace(self, num_outputs=num_outputs)  # type: ignore[type-var]

    def outputs_known(self) -> int:
        """The number of outputs, which someone must have said by now."""
        if self.num_outputs is None:
            name = type(self).__name__
            raise ValueError(f"This {name} has no num_outputs yet: put it into a Model, or say num_outputs=1.")
        return self.num_outputs

    def check_inputs(self, x: Any) -> None:
        """Refuse values that the network cannot read, before a run meets them."""

    def rate_before(self, path: str) -> float:
        """The probability to drop an input of the weight with this path."""
        del path
        return 0.0

    def dropout_rates(self, params: Params) -> Params:
        """For each weight, the probability that its input is dropped: 0 for biases."""

        def rate(path: Any, leaf: Array) -> float:
            del leaf
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return self.rate_before(name.removesuffix("/weight")) if name.endswith("/weight") else 0.0

        return jax.tree_util.tree_map_with_path(rate, params)


def as_images(x: Array, dtype: Any = jnp.float32) -> Array:
    """Images [N, H, W, channels] of floats; a missing axis of channels is one channel."""
    if x.ndim not in (3, 4):
        raise ValueError(
            f"x has the shape {x.shape}; expected images [N, height, width] or [N, height, width, channels]. "
            "Flattened ones must be given their shape again: x.reshape(-1, 28, 28)."
        )
    return (x[..., None] if x.ndim == 3 else x).astype(dtype)


def init_layer(key: Key, shape: tuple[int, ...], gain: float = 2.0) -> dict[str, Array]:
    """A weight [..., in, out] whose first axes are a window, and a bias."""
    scale = np.sqrt(gain / np.prod(shape[:-1]))
    return {"weight": jax.random.normal(key, shape) * scale, "bias": jnp.zeros(shape[-1])}


def dense(layer: dict[str, Array], x: Array) -> Array:
    return x @ layer["weight"] + layer["bias"]


def convolve(layer: dict[str, Array], x: Array, stride: int = 1, padding: int | None = None) -> Array:
    """A convolution of images [N, H, W, in]; `padding` pixels on each side, by default half the window."""
    sides = [(side // 2, side // 2) if padding is None else (padding, padding) for side in layer["weight"].shape[:2]]
    order = ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(x, layer["weight"], (stride, stride), sides, dimension_numbers=order)
    return made + layer["bias"]


def max_pool(x: Array, size: int = 2) -> Array:
    """The largest value of every size x size square; what does not fill a square at the edge is left out."""
    height, width = x.shape[1] // size, x.shape[2] // size
    squares = x[:, : height * size, : width * size].reshape(-1, height, size, width, size, x.shape[3])
    return squares.max((2, 4))


def init_normalization(channels: int) -> dict[str, Array]:
    return {"scale": jnp.ones(channels), "shift": jnp.zeros(channels), "threshold": jnp.zeros(channels)}


def filter_response(layer: dict[str, Array], x: Array) -> Array:
    """max(scale x / sqrt(mean of x^2 over the image + eps) + shift, threshold) (Singh & Krishnan 2020, eq. 1-3).

    Each row and channel by itself, so that no row depends on the rows beside it.
    """
    power = jnp.mean(jnp.square(x), (1, 2), keepdims=True)
    normalized = x * (layer["scale"] * jax.lax.rsqrt(power + EPSILON)) + layer["shift"]
    # Not `maximum`, whose gradient is slower for the sake of ties; and in this order NaN stays NaN.
    return jnp.where(normalized < layer["threshold"], layer["threshold"], normalized)


def drop_channels(key: Key | None, x: Array, rate: float) -> Array:
    """Dropout of whole channels, the same for all rows and places: which is a draw of the weights that follow."""
    if key is None or rate == 0:
        return x
    keep = 1.0 - rate
    return x * (jax.random.bernoulli(key, keep, x.shape[-1:]).astype(x.dtype) / keep)
