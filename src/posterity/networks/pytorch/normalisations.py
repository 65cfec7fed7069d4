"""Layers that normalise, and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from posterity.core.types import Array


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - jnp.mean(x, axes, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axes, keepdims=True) + eps)


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _channel_affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    return _affine(x, *(part if part is None else part.reshape(shape) for part in (weight, bias)))


def layer_norm(
    x: Array,
    shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    del cudnn_enable
    return _affine(_normalised(x, tuple(range(-len(shape), 0)), eps), weight, bias)


def rms_norm(x: Array, shape: Sequence[int], weight: Array | None = None, eps: float | None = None) -> Array:
    axes = tuple(range(-len(shape), 0))
    floor = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    return _affine(x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axes, keepdims=True) + floor), weight, None)


def group_norm(
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:
    del cudnn_enabled
    grouped = x.reshape(x.shape[0], groups, -1)
    return _channel_affine(_normalised(grouped, (-1,), eps).reshape(x.shape), weight, bias)


def batch_norm_eval(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Array:
    """Stored statistics, which are constants."""
    del momentum
    slope = jax.lax.rsqrt(variance + eps)
    return _channel_affine(_channel_affine(x, None, -mean), slope if weight is None else slope * weight, bias)


def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Array:
    del training, cudnn_enabled  # the exporter has refused training mode
    return batch_norm_eval(x, weight, bias, mean, variance, momentum, eps)


def instance_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None,
    variance: Array | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Array:
    del cudnn_enabled
    if not use_input_stats and mean is not None and variance is not None:
        return batch_norm_eval(x, weight, bias, mean, variance, momentum, eps)
    return _channel_affine(_normalised(x, tuple(range(2, x.ndim)), eps), weight, bias)


def first(function: Callable[..., Array]) -> Callable[..., tuple[Array, None, None]]:
    """For forms that also return what PyTorch's gradient needs."""
    return lambda *arguments, **options: (function(*arguments, **options), None, None)


def native_group_norm(
    x: Array, weight: Array | None, bias: Array | None, rows: int, channels: int, places: int, groups: int, eps: float
) -> tuple[Array, None, None]:
    del rows, channels, places
    return group_norm(x, groups, weight, bias, eps), None, None
