"""What moves a window over places: convolutions, pooling, resizing. Axes are [N, C, places ...] as in PyTorch."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array

Sizes = int | Sequence[int]


def _each(sizes: Sizes, count: int) -> tuple[int, ...]:
    """One number for each place axis."""
    listed = [sizes] if isinstance(sizes, int) else list(sizes)
    return tuple(listed * count if len(listed) == 1 else listed)


def convolve(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Array:
    """A convolution with weight [out, in / groups, window ...]."""
    count = weight.ndim - 2
    strides, dilations = _each(stride, count), _each(dilation, count)
    if count == 1:  # as an image of height 1: XLA's gradient of one axis is slow on a CPU
        flat = _paddings(padding, weight.shape[2:], dilations)[0]
        made = _convolution(x[:, :, None], weight[:, :, None], strides * 2, [(0, 0), flat], dilations * 2, groups)
        return _with_bias(made[:, :, 0], bias)
    paddings = _paddings(padding, weight.shape[2:], dilations)
    return _with_bias(_convolution(x, weight, strides, paddings, dilations, groups), bias)


def _convolution(
    x: Array,
    weight: Array,
    strides: Sequence[int],
    paddings: list[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
) -> Array:
    places = "DHW"[-(weight.ndim - 2) :]
    order = (f"NC{places}", f"OI{places}", f"NC{places}")
    return jax.lax.conv_general_dilated(
        x, weight, strides, paddings, None, dilations, dimension_numbers=order, feature_group_count=groups
    )


def _paddings(padding: Sizes | str, window: Sequence[int], dilations: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "same":  # PyTorch puts the odd one at the end
        totals = [dilation * (width - 1) for width, dilation in zip(window, dilations, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    sizes = 0 if isinstance(padding, str) else padding
    return [(one, one) for one in _each(sizes, len(window))]


def _with_bias(made: Array, bias: Array | None) -> Array:
    return made if bias is None else made + _along_channels(bias, made.ndim)


def _along_channels(vector: Array, ndim: int) -> Array:
    return vector.reshape(1, -1, *(1 for _ in range(ndim - 2)))


def convolve_transposed(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Array:
    """The gradient of a convolution in its inputs: weight [in, out / groups, window ...]."""
    count = weight.ndim - 2
    strides, paddings, extras, dilations = (_each(one, count) for one in (stride, padding, output_padding, dilation))
    window = weight.shape[2:]
    sides = [
        (d * (width - 1) - p, d * (width - 1) - p + extra)
        for width, d, p, extra in zip(window, dilations, paddings, extras, strict=True)
    ]
    per_group = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    turned = jnp.flip(jnp.swapaxes(per_group, 1, 2), range(3, per_group.ndim))
    turned = turned.reshape(-1, weight.shape[0] // groups, *window)
    places = "DHW"[-count:]
    order = (f"NC{places}", f"OI{places}", f"NC{places}")
    made = jax.lax.conv_general_dilated(
        x, turned, (1,) * count, sides, strides, dilations, dimension_numbers=order, feature_group_count=groups
    )
    return _with_bias(made, bias)


def any_convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Array:
    if transposed:
        return convolve_transposed(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolve(x, weight, bias, stride, padding, dilation, groups)


def _extent(length: int, width: int, stride: int, padding: int, ceil: bool) -> int:
    """What must be added at the end so that windows cover the places as `ceil_mode` says."""
    if not ceil:
        return 0
    count = math.ceil((length + 2 * padding - width) / stride) + 1
    if (count - 1) * stride >= length + padding:  # a window may not begin in the padding at the end
        count -= 1
    return max(0, (count - 1) * stride + width - length - 2 * padding)


def max_pool(
    x: Array, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False
) -> Array:
    count = len(_each(kernel_size, 1)) if not isinstance(kernel_size, int) else x.ndim - 2
    window = _each(kernel_size, count)
    strides = window if stride in ((), []) else _each(stride, count)
    paddings, dilations = _each(padding, count), _each(dilation, count)
    sides = [
        (p, p + _extent(length, d * (width - 1) + 1, s, p, ceil_mode))
        for length, width, s, p, d in zip(x.shape[-count:], window, strides, paddings, dilations, strict=True)
    ]
    front = x.ndim - count
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    if set(dilations) == {1}:
        every, moves = (1,) * front + window, (1,) * front + strides
        return jax.lax.reduce_window(x, lowest, jax.lax.max, every, moves, [(0, 0)] * front + sides)
    # One slice for each place of the window: JAX has no gradient of the largest in a dilated one.
    padded = jnp.pad(x, [(0, 0)] * front + sides, constant_values=lowest)
    sizes = [n - d * (w - 1) for n, w, d in zip(padded.shape[front:], window, dilations, strict=True)]

    def moved(offsets: tuple[int, ...]) -> Array:
        starts = [offset * d for offset, d in zip(offsets, dilations, strict=True)]
        parts = [slice(a, a + n, s) for a, n, s in zip(starts, sizes, strides, strict=True)]
        return padded[(..., *parts)]

    return functools.reduce(jnp.maximum, map(moved, itertools.product(*map(range, window))))


def average_pool(
    x: Array,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    count = len(_each(kernel_size, 1))
    window = _each(kernel_size, count)
    strides = window if stride in ((), []) else _each(stride, count)
    paddings, lengths, front = _each(padding, count), x.shape[-count:], x.ndim - count
    sides = [
        (p, p + _extent(length, width, s, p, ceil_mode))
        for length, width, s, p in zip(lengths, window, strides, paddings, strict=True)
    ]

    def total(value: Array, sides: list[tuple[int, int]]) -> Array:
        before = value.ndim - count
        every, moves = (1,) * before + window, (1,) * before + strides
        return jax.lax.reduce_window(value, 0.0, jax.lax.add, every, moves, [(0, 0)] * before + sides)

    summed = total(x, sides)
    if divisor_override is not None:
        return summed / divisor_override
    counted = np.ones(lengths)
    if count_include_pad:  # but not what `ceil_mode` adds
        counted = np.pad(counted, [(p, p) for p in paddings], constant_values=1)
        sides = [(0, after - p) for (_, after), p in zip(sides, paddings, strict=True)]
    sizes = total(jnp.asarray(counted, x.dtype), sides)
    return summed / sizes.reshape((1,) * front + sizes.shape)


def _bins(length: int, count: int) -> list[tuple[int, int]]:
    return [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]


def adaptive_average(x: Array, output_size: Sequence[int | None]) -> Array:
    """Averages over about equal parts of each place axis."""
    for axis, size in zip(range(x.ndim - len(output_size), x.ndim), output_size, strict=True):
        if size is None or size == x.shape[axis]:
            continue
        parts = [
            jnp.mean(jax.lax.slice_in_dim(x, *ends, axis=axis), axis, keepdims=True)
            for ends in _bins(x.shape[axis], size)
        ]
        x = jnp.concatenate(parts, axis)
    return x


def adaptive_max(x: Array, output_size: Sequence[int | None]) -> tuple[Array, None]:
    """The largest of about equal parts; PyTorch's second result, where they are, is not made."""
    for axis, size in zip(range(x.ndim - len(output_size), x.ndim), output_size, strict=True):
        if size is None or size == x.shape[axis]:
            continue
        parts = [
            jnp.max(jax.lax.slice_in_dim(x, *ends, axis=axis), axis, keepdims=True)
            for ends in _bins(x.shape[axis], size)
        ]
        x = jnp.concatenate(parts, axis)
    return x, None


def _new_sizes(x: Array, output_size: Sequence[int] | None, factors: Sequence[float] | None) -> Sequence[int]:
    if output_size is not None:
        return output_size
    return [int(length * factor) for length, factor in zip(x.shape[2:], factors or (), strict=True)]


def nearest(x: Array, output_size: Sequence[int] | None, factors: Sequence[float] | None = None) -> Array:
    """Resizing by the nearest place before."""
    for axis, size in enumerate(_new_sizes(x, output_size, factors), 2):
        x = jnp.take(x, np.floor(np.arange(size) * x.shape[axis] / size).astype(int), axis)
    return x


def linear(
    x: Array, output_size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None = None
) -> Array:
    """Resizing by linear interpolation along each axis: bilinear for images."""
    for axis, size in enumerate(_new_sizes(x, output_size, factors), 2):
        length = x.shape[axis]
        if align_corners:
            places = np.arange(size) * ((length - 1) / max(size - 1, 1))
        else:
            places = np.maximum((np.arange(size) + 0.5) * length / size - 0.5, 0)
        low = np.minimum(places.astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        share = jnp.asarray(places - low, x.dtype).reshape(-1, *(1 for _ in x.shape[axis + 1 :]))
        x = jnp.take(x, low, axis) * (1 - share) + jnp.take(x, high, axis) * share
    return x


def pad(x: Array, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Array:
    """Pairs for the last axes, the last one first; negative ones cut."""
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    if mode == "constant":
        return jax.lax.pad(x, jnp.asarray(value or 0, x.dtype), [(*pair, 0) for pair in pairs])
    return jnp.pad(x, pairs, {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])
