"""Networks for images: LeNet-5 (LeCun et al. 1998), ResNet-20 (He et al. 2016) with filter response normalisation
instead of BatchNorm (as in Izmailov et al. 2021), and a small U-Net (Ronneberger et al. 2015) with outputs per pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from posterity.core.checks import check_rate, check_whole
from posterity.core.types import Array, Key, Params
from posterity.networks.built_in import (
    BuiltIn,
    as_images,
    convolve,
    dense,
    drop_channels,
    filter_response,
    init_layer,
    init_normalization,
    max_pool,
)

DropoutBefore = Literal["dense", "last"]


@dataclass(frozen=True)
class LeNet(BuiltIn):
    """Two convolutions with max-pooling, then dense layers, all with ReLU."""

    num_outputs: int | None = None
    filters: tuple[int, int] = (6, 16)
    hidden: tuple[int, ...] = (120, 84)
    dropout: float = 0.0
    dropout_before: DropoutBefore = "dense"

    def init(self, key: Key, x: Array) -> Params:
        shape = jax.eval_shape(as_images, x).shape
        keys = iter(jax.random.split(key, len(self.filters) + len(self.hidden) + 1))
        params = {
            "conv_0": init_layer(next(keys), (5, 5, shape[-1], self.filters[0])),
            "conv_1": init_layer(next(keys), (5, 5, *self.filters)),
        }
        size = jax.eval_shape(self._convolutions, params, x).shape[1]
        widths = (size, *self.hidden, self.outputs_known())
        for i in range(len(self.hidden) + 1):
            gain = 2.0 if i < len(self.hidden) else 1.0
            params[f"dense_{i}"] = init_layer(next(keys), widths[i : i + 2], gain)
        return params

    def apply(self, params: Params, x: Array, key: Key | None = None) -> Array:
        """Outputs [N, K]."""
        hidden = self._convolutions(params, x)
        for i in range(len(self.hidden) + 1):
            path = f"dense_{i}"
            hidden = drop_channels(_fold(key, i), hidden, self.rate_before(path))
            hidden = dense(params[path], hidden)
            if i < len(self.hidden):
                hidden = jax.nn.relu(hidden)
        return hidden

    def rate_before(self, path: str) -> float:
        drops = path == f"dense_{len(self.hidden)}" if self.dropout_before == "last" else path.startswith("dense_")
        return self.dropout if drops else 0.0

    def _convolutions(self, params: Params, x: Array) -> Array:
        """Features [N, F]."""
        x = as_images(x, params["conv_0"]["weight"].dtype)
        if min(x.shape[1:3]) < 12:
            raise ValueError(f"LeNet got images of {x.shape[1]} x {x.shape[2]}; it takes 12 x 12 and larger.")
        x = max_pool(jax.nn.relu(convolve(params["conv_0"], x)))
        x = max_pool(jax.nn.relu(convolve(params["conv_1"], x, padding=0)))
        return x.reshape(x.shape[0], -1)


@dataclass(frozen=True)
class ResNet(BuiltIn):
    """A convolution, three stages of residual blocks of widths w, 2w and 4w, the mean over the image, a dense layer.

    Each convolution is followed by filter response normalisation; SiLU comes after it, or after the sum of a block.
    """

    num_outputs: int | None = None
    width: int = 16
    blocks: int = 3  # of a stage; 6 blocks + 2 layers in all

    def init(self, key: Key, x: Array) -> Params:
        channels = jax.eval_shape(as_images, x).shape[-1]
        params: dict[str, Any] = {"stem": _init_unit(jax.random.fold_in(key, 0), (3, 3, channels, self.width))}
        channels, count = self.width, 1
        for stage, block, stride in self._places():
            width = self.width * 2**stage
            keys = jax.random.split(jax.random.fold_in(key, count), 3)
            made = {
                "unit_0": _init_unit(keys[0], (3, 3, channels, width)),
                "unit_1": _init_unit(keys[1], (3, 3, width, width)),
            }
            if stride > 1:
                made["shortcut"] = _init_unit(keys[2], (1, 1, channels, width))
            params[f"stage_{stage}_block_{block}"] = made
            channels, count = width, count + 1
        params["head"] = init_layer(jax.random.fold_in(key, count), (channels, self.outputs_known()), 1.0)
        return params

    def apply(self, params: Params, x: Array, key: Key | None = None) -> Array:
        """Outputs [N, K]."""
        del key
        x = jax.nn.silu(_unit(params["stem"], as_images(x, params["head"]["weight"].dtype)))
        for stage, block, stride in self._places():
            layers = params[f"stage_{stage}_block_{block}"]
            made = _unit(layers["unit_1"], jax.nn.silu(_unit(layers["unit_0"], x, stride)))
            x = jax.nn.silu(made + (_unit(layers["shortcut"], x, stride) if stride > 1 else x))
        return dense(params["head"], x.mean((1, 2)))

    def _places(self) -> list[tuple[int, int, int]]:
        """(stage, block, stride) of each block: the first of a later stage halves the image."""
        stages = [(stage, block) for stage in range(3) for block in range(self.blocks)]
        return [(stage, block, 2 if stage > 0 and block == 0 else 1) for stage, block in stages]


@dataclass(frozen=True)
class UNet(BuiltIn):
    """Down `levels` times and up again, with the features of each size on the way down kept for the way up.

    Dropout acts on the channels of the coarsest features and on those before the last layer.
    """

    num_outputs: int | None = None
    width: int = 16
    levels: int = 2
    dropout: float = 0.0

    def init(self, key: Key, x: Array) -> Params:
        channels = jax.eval_shape(as_images, x).shape[-1]
        params: dict[str, Any] = {}
        keys = iter(jax.random.split(key, 2 * self.levels + 2))
        for level in range(self.levels):
            params[f"down_{level}"] = _init_pair(next(keys), channels, self.width * 2**level)
            channels = self.width * 2**level
        params["bottom"] = _init_pair(next(keys), channels, self.width * 2**self.levels)
        for level in reversed(range(self.levels)):
            width = self.width * 2**level
            params[f"up_{level}"] = _init_pair(next(keys), 3 * width, width)  # 2 width from below, width from the side
        params["head"] = init_layer(next(keys), (self.width, self.outputs_known()), 1.0)
        return params

    def apply(self, params: Params, x: Array, key: Key | None = None) -> Array:
        """Outputs [N, H, W, K]."""
        x = as_images(x, params["head"]["weight"].dtype)
        step = 2**self.levels
        if x.shape[1] % step or x.shape[2] % step:
            raise ValueError(
                f"UNet got images of {x.shape[1]} x {x.shape[2]}; with levels={self.levels} both sides must be "
                f"multiples of {step}: pad them, or take fewer levels."
            )
        beside = []
        for level in range(self.levels):
            beside.append(_pair(params[f"down_{level}"], x))
            x = max_pool(beside[-1])
        x = drop_channels(_fold(key, 0), _pair(params["bottom"], x), self.dropout)
        for level in reversed(range(self.levels)):
            finer = x.repeat(2, 1).repeat(2, 2)
            x = _pair(params[f"up_{level}"], jnp.concatenate([finer, beside[level]], -1))
        return dense(params["head"], drop_channels(_fold(key, 1), x, self.dropout))

    def rate_before(self, path: str) -> float:
        # Of the channels that meet in the first layer on the way up two in three may be dropped.
        behind = {"head": self.dropout, f"up_{self.levels - 1}/conv_0": self.dropout * 2 / 3}
        return behind.get(path, 0.0)


def lenet(
    num_outputs: int | None = None,
    *,
    filters: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
    dropout: float = 0.0,
    dropout_before: DropoutBefore = "dense",
) -> LeNet:
    """LeNet-5 for images [N, 28, 28] or [N, H, W, channels].

    Args:
        num_outputs: By default what the likelihood takes.
        filters: Of the two convolutions.
        hidden: Widths of the dense layers.
        dropout: The share of inputs to drop before dense layers.
        dropout_before: "dense" for all of them, "last" for the last alone (as Gal & Ghahramani 2016).
    """
    if dropout_before not in ("dense", "last"):
        raise ValueError(f"dropout_before={dropout_before!r} is not known; choose 'dense' or 'last'.")
    first, second = (int(count) for count in filters)
    widths = tuple(int(width) for width in hidden)
    check_whole("lenet", filters=(first, second), hidden=widths)
    return LeNet(num_outputs, (first, second), widths, check_rate("dropout", dropout), dropout_before)


def resnet20(num_outputs: int | None = None, *, width: int = 16, blocks: int = 3) -> ResNet:
    """ResNet-20 with filter response normalisation and SiLU, for images [N, 32, 32, 3].

    `blocks` of each of the three stages make 6 blocks + 2 layers: 3 for ResNet-20, 5 for ResNet-32.
    """
    check_whole("resnet20", width=width, blocks=blocks)
    return ResNet(num_outputs, width, blocks)


def unet(num_outputs: int | None = None, *, width: int = 16, levels: int = 2, dropout: float = 0.0) -> UNet:
    """A small U-Net: outputs [N, H, W, K] for images [N, H, W] or [N, H, W, channels].

    `width` channels at full size, doubled at each of `levels` halvings.
    """
    check_whole("unet", width=width, levels=levels)
    return UNet(num_outputs, width, levels, check_rate("dropout", dropout))


def _init_unit(key: Key, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"conv": init_layer(key, shape), "norm": init_normalization(shape[-1])}


def _unit(layers: dict[str, Any], x: Array, stride: int = 1) -> Array:
    """A convolution and its normalisation."""
    return filter_response(layers["norm"], convolve(layers["conv"], x, stride))


def _init_pair(key: Key, channels: int, width: int) -> dict[str, Any]:
    key_first, key_second = jax.random.split(key)
    return {
        "conv_0": init_layer(key_first, (3, 3, channels, width)),
        "conv_1": init_layer(key_second, (3, 3, width, width)),
    }


def _pair(layers: dict[str, Any], x: Array) -> Array:
    return jax.nn.relu(convolve(layers["conv_1"], jax.nn.relu(convolve(layers["conv_0"], x))))


def _fold(key: Key | None, number: int) -> Key | None:
    return None if key is None else jax.random.fold_in(key, number)
