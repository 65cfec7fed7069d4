"""The operations of PyTorch (ATen) as functions of JAX arrays, by name: one line adds one.

A name without an overload ("aten.add") serves all overloads that have no line of their own ("aten.max.dim"), and the
forms that write in place ("aten.add_"). Arguments are PyTorch's, in its order and with its names.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core.types import Array
from posterity.networks.torch import attention, recurrent, windows

Axes = int | Sequence[int] | None
Number = int | float | Array


def _axes(dim: Axes) -> int | tuple[int, ...] | None:
    """PyTorch's axes for a reduction: none or an empty list are all."""
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduced(x: Array, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
        return function(x if dtype is None else x.astype(dtype), _axes(dim), keepdims=keepdim)

    return reduced


def _reduce_all(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, dtype=None: function(x if dtype is None else x.astype(dtype))


def _linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    made = x @ weight.T
    return made if bias is None else made + bias


def _add_product(product: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def added(base: Array, left: Array, right: Array, beta: Number = 1, alpha: Number = 1) -> Array:
        made = product(left, right)
        return (made if alpha == 1 else alpha * made) + (base if beta == 1 else beta * base)

    return added


def _scaled(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    return lambda a, b, alpha=1: function(a, b if alpha == 1 else alpha * b)


def _divide(a: Array, b: Number, rounding_mode: str | None = None) -> Array:
    if rounding_mode is None:
        return a / b
    return jnp.floor_divide(a, b) if rounding_mode == "floor" else jnp.trunc(a / b).astype(jnp.result_type(a, b))


def _power(base: Number, exponent: Number) -> Array:
    whole = isinstance(exponent, float) and exponent.is_integer()
    return base ** (int(exponent) if whole else exponent)  # exact, also in its derivative at 0


def _clamp(x: Array, min: Number | None = None, max: Number | None = None) -> Array:
    x = x if min is None else jnp.maximum(x, min)
    return x if max is None else jnp.minimum(x, max)


def _gelu(x: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(input_scale * jnp.minimum(x, 0)))


def _softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(jnp.minimum(x * beta, threshold)) / beta)


def _prelu(x: Array, weight: Array) -> Array:
    slope = weight if x.ndim < 2 else weight.reshape(1, -1, *(1 for _ in x.shape[2:]))
    return jnp.where(x > 0, x, slope * x)


def _softmax(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, dim, dtype=None: function(x if dtype in (None, False) else x.astype(dtype), axis=dim)


def _normalised(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    centred = x - jnp.mean(x, axes, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axes, keepdims=True) + eps)


def _affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _channel_affine(x: Array, weight: Array | None, bias: Array | None) -> Array:
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    return _affine(x, *(part if part is None else part.reshape(shape) for part in (weight, bias)))


def _layer_norm(
    x: Array,
    shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    del cudnn_enable
    return _affine(_normalised(x, tuple(range(-len(shape), 0)), eps), weight, bias)


def _rms_norm(x: Array, shape: Sequence[int], weight: Array | None = None, eps: float | None = None) -> Array:
    axes = tuple(range(-len(shape), 0))
    floor = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    return _affine(x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axes, keepdims=True) + floor), weight, None)


def _group_norm(
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


def _batch_norm_eval(
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


def _batch_norm(
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
    return _batch_norm_eval(x, weight, bias, mean, variance, momentum, eps)


def _instance_norm(
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
        return _batch_norm_eval(x, weight, bias, mean, variance, momentum, eps)
    return _channel_affine(_normalised(x, tuple(range(2, x.ndim)), eps), weight, bias)


def _first(function: Callable[..., Array]) -> Callable[..., tuple[Array, None, None]]:
    """For forms that also return what PyTorch's gradient needs."""
    return lambda *arguments, **options: (function(*arguments, **options), None, None)


def _native_group_norm(
    x: Array, weight: Array | None, bias: Array | None, rows: int, channels: int, places: int, groups: int, eps: float
) -> tuple[Array, None, None]:
    del rows, channels, places
    return _group_norm(x, groups, weight, bias, eps), None, None


def _moments(x: Array, dim: Axes, unbiased: bool, keepdim: bool, correction: Number | None) -> tuple[Array, Array]:
    less = (1 if unbiased else 0) if correction is None else correction
    axes = _axes(dim)
    return jnp.var(x, axes, ddof=less, keepdims=keepdim), jnp.mean(x, axes, keepdims=keepdim)


def _var(
    x: Array, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, correction: Number | None = None
) -> Array:
    return _moments(x, dim, unbiased, keepdim, correction)[0]


def _var_mean(
    x: Array, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, correction: Number | None = None
) -> tuple[Array, Array]:
    return _moments(x, dim, unbiased, keepdim, correction)


def _std_mean(
    x: Array, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, correction: Number | None = None
) -> tuple[Array, Array]:
    variance, mean = _moments(x, dim, unbiased, keepdim, correction)
    return jnp.sqrt(variance), mean


def _vector_norm(x: Array, ord: Number = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    x = x if dtype is None else x.astype(dtype)
    if ord != 2:
        return jnp.linalg.norm(x if dim is not None else x.ravel(), ord, _axes(dim), keepdims=keepdim)
    squares = jnp.sum(jnp.square(x), _axes(dim), keepdims=keepdim)
    positive = squares > 0  # the derivative at 0 is 0, as in PyTorch
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), 0)


def _best(choose: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    def best(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        index = choose(x, axis=dim, keepdims=True)
        values = jnp.take_along_axis(x, index, dim)
        return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))

    return best


def _sort(x: Array, dim: int = -1, descending: bool = False, stable: bool = True) -> tuple[Array, Array]:
    index = jnp.argsort(x, axis=dim, descending=descending, stable=True)
    del stable
    return jnp.take_along_axis(x, index, dim), index


def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    del sorted
    values, index = _sort(x, dim, largest)
    return jax.lax.slice_in_dim(values, 0, k, axis=dim), jax.lax.slice_in_dim(index, 0, k, axis=dim)


def _expand(x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    del implicit
    own = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(have if want == -1 else want for have, want in zip(own, size, strict=True)))


def _flatten(x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    axis = dim % x.ndim
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def _squeeze(x: Array, dim: Axes = None) -> Array:
    axes = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(axis % x.ndim for axis in axes if x.shape[axis] == 1))


def _split(x: Array, split_size: int | Sequence[int], dim: int = 0) -> list[Array]:
    length = x.shape[dim]
    each = split_size if isinstance(split_size, int) else None
    sizes = [min(each, length - i) for i in range(0, length, each)] if each else list(split_size)  # type: ignore[arg-type]
    return jax.lax.split(x, sizes, axis=dim % x.ndim)


def _chunk(x: Array, chunks: int, dim: int = 0) -> list[Array]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[_at(x, dim, slice(start, end, step))]


def _at(x: Array, dim: int, index: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * (dim % x.ndim), index)


def _index(x: Array, indices: Sequence[Array | None]) -> Array:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def _index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    place = x.at[tuple(slice(None) if index is None else index for index in indices)]
    return place.add(values.astype(x.dtype)) if accumulate else place.set(values.astype(x.dtype))


def _gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    del sparse_grad
    shorter = tuple(slice(None) if i == dim % x.ndim else slice(n) for i, n in enumerate(index.shape))
    return jnp.take_along_axis(x[shorter], index, dim)


def _scatter(x: Array, dim: int, index: Array, src: Number, add: bool = False) -> Array:
    grid = list(jnp.meshgrid(*(jnp.arange(n) for n in index.shape), indexing="ij", sparse=True))
    grid[dim % x.ndim] = index
    values = src[tuple(slice(n) for n in index.shape)] if isinstance(src, jax.Array) else src
    return x.at[tuple(grid)].add(values) if add else x.at[tuple(grid)].set(values)


def _slice_scatter(
    x: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return x.at[_at(x, dim, slice(start, end, step))].set(src)


def _unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    starts = jnp.arange(0, x.shape[dimension] - size + 1, step)
    taken = jnp.take(x, starts[:, None] + jnp.arange(size), dimension)
    return jnp.moveaxis(taken, dimension % x.ndim + 1, -1)


def _pixel_shuffle(x: Array, factor: int) -> Array:
    *front, channels, height, width = x.shape
    parts = x.reshape(*front, channels // factor**2, factor, factor, height, width)
    count = len(front)
    order = (*range(count + 1), count + 3, count + 1, count + 4, count + 2)
    return parts.transpose(order).reshape(*front, channels // factor**2, height * factor, width * factor)


def _roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x, shifts[0])


def _repeat(x: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(x, tuple(repeats))


def _embedding(weight: Array, indices: Array, *unused: Any) -> Array:
    del unused  # padding_idx stops PyTorch's gradient of a row, which here is a weight as any other
    return jnp.take(weight, indices, 0)


def _cast(x: Array, dtype: Any = None, *unused: Any) -> Array:
    del unused
    return x if dtype is None else x.astype(dtype)


def _full(size: Sequence[int], value: Number, dtype: Any = None) -> Array:
    return jnp.full(tuple(size), value, dtype)


def _arange(*ends: Number, dtype: Any = None) -> Array:
    return jnp.arange(*ends, dtype=dtype)  # type: ignore[arg-type]


def _like(value: Number) -> Callable[..., Array]:
    return lambda x, dtype=None: jnp.full_like(x, value, dtype=dtype)


def _sized(value: Number) -> Callable[..., Array]:
    return lambda size, dtype=None: _full(size, value, dtype)


def _new(value: Number) -> Callable[..., Array]:
    return lambda x, size, dtype=None: _full(size, value, dtype or x.dtype)


def _same(x: Array, *unused: Any) -> Array:
    del unused
    return x


def _cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    return jnp.concatenate([part for part in tensors if part.shape != (0,)], dim)


def _one_hot(x: Array, num_classes: int) -> Array:
    return jax.nn.one_hot(x, num_classes, dtype=x.dtype)


def _compare(function: Callable[[Any, Any], Any]) -> Callable[[Array, Number], Array]:
    return lambda a, b: function(a, b)


_UNARY: dict[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "bitwise_not": jnp.invert,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": jax.scipy.special.erf,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "isfinite": jnp.isfinite,
    "isinf": jnp.isinf,
    "isnan": jnp.isnan,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "logical_not": jnp.logical_not,
    "neg": jnp.negative,
    "reciprocal": jnp.reciprocal,
    "round": jnp.round,
    "rsqrt": jax.lax.rsqrt,
    "sign": jnp.sign,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "square": jnp.square,
    "tan": jnp.tan,
    "atan": jnp.arctan,
    "trunc": jnp.trunc,
}
_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "celu": lambda x, alpha=1.0: _elu(x, alpha, 1.0, 1 / alpha),
    "elu": _elu,
    "gelu": _gelu,
    "glu": lambda x, dim=-1: jax.nn.glu(x, dim),
    "hardsigmoid": lambda x: jnp.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * jnp.clip(x + 3, 0, 6) / 6,
    "hardtanh": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, slope * x),
    "log_sigmoid": jax.nn.log_sigmoid,
    "log_softmax": _softmax(jax.nn.log_softmax),
    "_log_softmax": _softmax(jax.nn.log_softmax),
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "prelu": _prelu,
    "relu": jax.nn.relu,
    "relu6": lambda x: jnp.clip(x, 0, 6),
    "selu": lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805),
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
    "softmax": _softmax(jax.nn.softmax),
    "_softmax": _softmax(jax.nn.softmax),
    "_safe_softmax": lambda x, dim, dtype=None: jnp.moveaxis(attention.safe_softmax(jnp.moveaxis(x, dim, -1)), -1, dim),
    "softplus": _softplus,
    "tanh": jnp.tanh,
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "add": _scaled(operator.add),
    "addcdiv": lambda x, a, b, value=1: x + value * a / b,
    "addcmul": lambda x, a, b, value=1: x + value * a * b,
    "atan2": jnp.arctan2,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "clamp": _clamp,
    "clamp_max": lambda x, high: jnp.minimum(x, high),
    "clamp_min": lambda x, low: jnp.maximum(x, low),
    "div": _divide,
    "eq": _compare(operator.eq),
    "floor_divide": jnp.floor_divide,
    "fmod": jnp.fmod,
    "ge": _compare(operator.ge),
    "gt": _compare(operator.gt),
    "le": _compare(operator.le),
    "lerp": lambda a, b, share: a + share * (b - a),
    "logaddexp": jnp.logaddexp,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "lt": _compare(operator.lt),
    "masked_fill": lambda x, mask, value: jnp.where(mask, jnp.asarray(value, x.dtype), x),
    "max.other": jnp.maximum,
    "maximum": jnp.maximum,
    "min.other": jnp.minimum,
    "minimum": jnp.minimum,
    "mul": operator.mul,
    "ne": _compare(operator.ne),
    "pow": _power,
    "remainder": jnp.remainder,
    "rsub": _scaled(lambda a, b: b - a),
    "sub": _scaled(operator.sub),
    "where": jnp.where,
    "xlogy": jax.scipy.special.xlogy,
}
_PRODUCTS: dict[str, Callable[..., Any]] = {
    "addbmm": _add_product(lambda a, b: (a @ b).sum(0)),
    "addmm": _add_product(jnp.matmul),
    "addmv": _add_product(jnp.matmul),
    "baddbmm": _add_product(jnp.matmul),
    "bmm": jnp.matmul,
    "dot": jnp.dot,
    "einsum": lambda equation, tensors, path=None: jnp.einsum(equation, *tensors),
    "linear": _linear,
    "matmul": jnp.matmul,
    "mm": jnp.matmul,
    "mv": jnp.matmul,
    "outer": jnp.outer,
}
_NORMALISATIONS: dict[str, Callable[..., Any]] = {
    "_native_batch_norm_legit_no_training": _first(_batch_norm_eval),
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "linalg_vector_norm": _vector_norm,
    "native_group_norm": _native_group_norm,
    "native_layer_norm": _first(_layer_norm),
    "norm": _vector_norm,
    "rms_norm": _rms_norm,
}
_WINDOWS: dict[str, Callable[..., Any]] = {
    "_adaptive_avg_pool2d": windows.adaptive_average,
    "adaptive_avg_pool1d": windows.adaptive_average,
    "adaptive_avg_pool2d": windows.adaptive_average,
    "adaptive_avg_pool3d": windows.adaptive_average,
    "adaptive_max_pool1d": windows.adaptive_max,
    "adaptive_max_pool2d": windows.adaptive_max,
    "avg_pool1d": windows.average_pool,
    "avg_pool2d": windows.average_pool,
    "avg_pool3d": windows.average_pool,
    "constant_pad_nd": lambda x, sizes, value=0: windows.pad(x, sizes, "constant", value),
    "conv1d": windows.convolve,
    "conv2d": windows.convolve,
    "conv3d": windows.convolve,
    "conv_transpose1d": windows.convolve_transposed,
    "conv_transpose2d": windows.convolve_transposed,
    "conv_transpose3d": windows.convolve_transposed,
    "convolution": windows.any_convolution,
    "max_pool1d": windows.max_pool,
    "max_pool2d": windows.max_pool,
    "max_pool2d_with_indices": lambda *arguments: (windows.max_pool(*arguments), None),
    "max_pool3d": windows.max_pool,
    "pad": windows.pad,
    "upsample_bilinear2d.vec": windows.linear,
    "upsample_linear1d.vec": windows.linear,
    "upsample_nearest1d.vec": windows.nearest,
    "upsample_nearest2d.vec": windows.nearest,
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "all": _reduce(jnp.all),
    "amax": _reduce(jnp.max),
    "amin": _reduce(jnp.min),
    "any": _reduce(jnp.any),
    "argmax": lambda x, dim=None, keepdim=False: jnp.argmax(x, dim, keepdims=keepdim),
    "argmin": lambda x, dim=None, keepdim=False: jnp.argmin(x, dim, keepdims=keepdim),
    "argsort": lambda x, dim=-1, descending=False: _sort(x, dim, descending)[1],
    "cumprod": lambda x, dim, dtype=None: jnp.cumprod(x, dim, dtype=dtype),
    "cumsum": lambda x, dim, dtype=None: jnp.cumsum(x, dim, dtype=dtype),
    "logsumexp": _reduce(jax.nn.logsumexp),
    "max": _reduce_all(jnp.max),
    "max.dim": _best(jnp.argmax),
    "mean": _reduce(jnp.mean),
    "mean.default": _reduce_all(jnp.mean),
    "min": _reduce_all(jnp.min),
    "min.dim": _best(jnp.argmin),
    "prod": _reduce_all(jnp.prod),
    "prod.dim_int": _reduce(jnp.prod),
    "sort": _sort,
    "std": lambda *arguments, **options: jnp.sqrt(_var(*arguments, **options)),
    "std_mean": _std_mean,
    "sum": _reduce(jnp.sum),
    "sum.default": _reduce_all(jnp.sum),
    "topk": _topk,
    "var": _var,
    "var_mean": _var_mean,
}
_SHAPES: dict[str, Callable[..., Any]] = {
    "_reshape_alias": lambda x, size, stride: x.reshape(size),
    "_unsafe_view": lambda x, size: x.reshape(size),
    "broadcast_to": _expand,
    "cat": _cat,
    "chunk": _chunk,
    "concat": _cat,
    "diagonal": jnp.diagonal,
    "embedding": _embedding,
    "expand": _expand,
    "expand_as": lambda x, other: jnp.broadcast_to(x, other.shape),
    "flatten": _flatten,
    "flip": lambda x, dims: jnp.flip(x, tuple(dims)),
    "gather": _gather,
    "index": _index,
    "index_put": _index_put,
    "index_select": lambda x, dim, index: jnp.take(x, index, dim),
    "mH": lambda x: jnp.swapaxes(x, -1, -2),
    "mT": lambda x: jnp.swapaxes(x, -1, -2),
    "meshgrid": lambda tensors, indexing="ij": jnp.meshgrid(*tensors, indexing=indexing),
    "movedim": lambda x, source, to: jnp.moveaxis(x, source, to),
    "narrow": lambda x, dim, start, length: _slice(x, dim, start, start + length),
    "numpy_T": lambda x: x.T,
    "permute": lambda x, dims: x.transpose(dims),
    "pixel_shuffle": _pixel_shuffle,
    "repeat": _repeat,
    "repeat_interleave.self_int": lambda x, times, dim=None, output_size=None: jnp.repeat(x, times, dim),
    "reshape": lambda x, size: x.reshape(size),
    "roll": _roll,
    "scatter": _scatter,
    "scatter_add": partial(_scatter, add=True),
    "select": lambda x, dim, index: jax.lax.index_in_dim(x, index, dim, keepdims=False),
    "select_scatter": lambda x, src, dim, index: x.at[_at(x, dim, index)].set(src),
    "slice": _slice,
    "slice_scatter": _slice_scatter,
    "split": _split,
    "split_with_sizes": _split,
    "squeeze": _squeeze,
    "stack": lambda tensors, dim=0: jnp.stack(tensors, dim),
    "swapaxes": jnp.swapaxes,
    "t": lambda x: x.T,
    "tile": _repeat,
    "transpose": jnp.swapaxes,
    "tril": jnp.tril,
    "triu": jnp.triu,
    "unbind": lambda x, dim=0: [part.squeeze(dim) for part in _split(x, 1, dim)],
    "unflatten": _unflatten,
    "unfold": _unfold,
    "unsafe_chunk": _chunk,
    "unsafe_split": _split,
    "unsqueeze": jnp.expand_dims,
    "view": lambda x, size: x.reshape(size),
    "view.dtype": _cast,
    "view_as": lambda x, other: x.reshape(other.shape),
}
_VALUES: dict[str, Callable[..., Any]] = {
    "_to_copy": _cast,
    "alias": _same,
    "arange": _arange,
    "clone": _same,
    "contiguous": _same,
    "copy": lambda x, src, non_blocking=False: jnp.broadcast_to(src, x.shape).astype(x.dtype),
    "detach": jax.lax.stop_gradient,
    "empty": _sized(0),
    "empty_like": _like(0),
    "eye": lambda n, m=None, dtype=None: jnp.eye(n, m, dtype=dtype),
    "fill": lambda x, value: jnp.full_like(x, value),
    "full": _full,
    "full_like": lambda x, value, dtype=None: jnp.full_like(x, value, dtype=dtype),
    "lift_fresh": _same,
    "lift_fresh_copy": _same,
    "linspace": lambda start, end, steps, dtype=None: jnp.linspace(start, end, steps, dtype=dtype),
    "new_empty": _new(0),
    "new_full": lambda x, size, value, dtype=None: _full(size, value, dtype or x.dtype),
    "new_ones": _new(1),
    "new_zeros": _new(0),
    "numel": lambda x: x.size,
    "one_hot": _one_hot,
    "ones": _sized(1),
    "ones_like": _like(1),
    "scalar_tensor": lambda value, dtype=None: jnp.asarray(value, dtype),
    "sym_numel": lambda x: x.size,
    "sym_size": lambda x, dim: x.shape[dim],
    "to": _cast,
    "to.device": lambda x, device, dtype, *unused: _cast(x, dtype),
    "to.other": lambda x, other, *unused: x.astype(other.dtype),
    "type_as": lambda x, other: x.astype(other.dtype),
    "zero": jnp.zeros_like,
    "zeros": _sized(0),
    "zeros_like": _like(0),
}
_PYTHON: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("add", "eq", "floordiv", "ge", "getitem", "gt", "le", "lt", "mod", "mul", "ne", "neg", "sub", "truediv")
}
_SIZES: dict[str, Callable[..., Any]] = {
    "sym_float": float,
    "sym_int": int,
    "sym_max": max,
    "sym_min": min,
    "sym_not": operator.not_,
}

_ATEN = (_UNARY, _ACTIVATIONS, _ARITHMETIC, _PRODUCTS, _NORMALISATIONS, _WINDOWS, _REDUCTIONS, _SHAPES, _VALUES)
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{f"aten.{name}": function for table in _ATEN for name, function in table.items()},
    **{f"operator.{name}": function for name, function in _PYTHON.items()},
    **{f"torch.{name}": function for name, function in _SIZES.items()},
}
"""Functions of the arguments."""

RANDOM: dict[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": attention.flash_attention,
    "aten.alpha_dropout": attention.alpha_dropout,
    "aten.dropout": attention.dropout,
    "aten.feature_dropout": attention.feature_dropout,
    "aten.gru.input": recurrent.gru,
    "aten.lstm.input": recurrent.lstm,
    "aten.native_dropout": lambda key, x, p, train: (attention.dropout(key, x, p, train), None),
    "aten.rnn_relu.input": partial(recurrent.elman, jax.nn.relu),
    "aten.rnn_tanh.input": partial(recurrent.elman, jnp.tanh),
    "aten.scaled_dot_product_attention": attention.attention,
}
"""Functions of a key, None where dropout is off, and the arguments."""
