"""Corrupted inputs at five severities: images as in CIFAR-10-C, and tables.

Hendrycks & Dietterich 2019, "Benchmarking neural network robustness to common corruptions and perturbations"; the
constants of its CIFAR-10-C. Random numbers depend on the seed alone, so the severities of a kind share them: a pixel
that impulse noise hits at severity 2 is hit at severity 3 too.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import ndimage

from posterity.core.names import nearest_name

SEVERITIES = (1, 2, 3, 4, 5)

# Hendrycks & Dietterich 2019, CIFAR-10-C: severities 1 to 5, for images in [0, 1].
IMAGE_CORRUPTIONS: dict[str, tuple[Any, ...]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),  # standard deviation
    "shot_noise": (500, 250, 100, 75, 50),  # photons of a white pixel
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),  # share of values, half of them to 0, half to 1
    "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),  # standard deviation on a white pixel
    "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1.0),  # standard deviation in pixels
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),  # added to V
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),  # factor on the distance from the mean
    "jpeg": (80, 65, 58, 50, 40),  # quality
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),  # of the size
    "zoom_blur": (1.06, 1.11, 1.16, 1.21, 1.26),  # largest factor
    "fog": ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),  # amount, decay of the cloud's detail
    "saturate": ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)),  # factor on S, and what is added
}
# Our own: no published set of tables has severities.
TABLE_CORRUPTIONS: dict[str, tuple[float, ...]] = {
    "shift": (0.25, 0.5, 1.0, 1.5, 2.0),  # standard deviations of the column
    "noise": (0.1, 0.25, 0.5, 0.75, 1.0),  # likewise
    "missing": (0.05, 0.1, 0.2, 0.35, 0.5),  # share of cells
}


def corrupt(images: Any, kind: str, severity: int, seed: int = 0) -> np.ndarray:
    """Images as a worse camera would have taken them.

    gaussian_noise adds a normal deviate, speckle_noise one times the pixel, shot_noise draws Poisson counts,
    impulse_noise turns values into 0 or 1. gaussian_blur, zoom_blur, pixelate and jpeg lose detail. brightness adds to
    V of HSV; saturate changes S, down at severities 1 and 2 and up from 3 on; contrast moves values to the mean of
    their image and channel; fog adds a cloud.

    Args:
        images: [N, H, W] or [N, H, W, C], uint8 or floats in [0, 1]; the result has the same shape, type and scale.
        kind: One of `IMAGE_CORRUPTIONS`.
        severity: 1 (slight) to 5 (strong).
        seed: Of the random numbers.
    """
    array = _check_images(images)
    level = _level(kind, severity, IMAGE_CORRUPTIONS)
    whole = array.dtype == np.uint8
    pixels = array / np.float32(255) if whole else array.astype(np.promote_types(array.dtype, np.float32))
    pixels = pixels.reshape(*pixels.shape, *([1] * (4 - pixels.ndim)))
    found = np.clip(_IMAGE_CHANGES[kind](pixels, level, np.random.default_rng(seed)), 0, 1).reshape(array.shape)
    return np.round(found * 255).astype(np.uint8) if whole else found.astype(array.dtype)


def corrupt_table(x: Any, kind: str, severity: int, seed: int = 0, *, reference: Any = None) -> np.ndarray:
    """A table as another season, another instrument or a careless clerk would have filled it.

    shift moves each column up or down at random by 0.25, 0.5, 1, 1.5, 2 of its standard deviations; noise adds a normal
    deviate of 0.1, 0.25, 0.5, 0.75, 1 of them to each cell; missing replaces a share 0.05, 0.1, 0.2, 0.35, 0.5 of the
    cells by the mean of their column. Columns that never vary stay under shift and noise.

    Args:
        x: [N, F], finite numbers.
        kind: 'shift', 'noise' or 'missing'.
        severity: 1 (slight) to 5 (strong).
        seed: Of the random numbers.
        reference: Rows whose mean and standard deviation are the units, as a rule the training rows; None for x itself.
    """
    table = _check_table(x, "x")
    rows = table if reference is None else _check_table(reference, "reference")
    if rows.shape[1] != table.shape[1]:
        raise ValueError(f"x has {table.shape[1]} columns and reference {rows.shape[1]}; they must be the same ones.")
    level = _level(kind, severity, TABLE_CORRUPTIONS)
    return _TABLE_CHANGES[kind](table, level, rows, np.random.default_rng(seed))


def _gaussian_noise(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return x + deviation * _normal(x, rng)


def _speckle_noise(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return x + x * deviation * _normal(x, rng)


def _shot_noise(x: np.ndarray, photons: float, rng: np.random.Generator) -> np.ndarray:
    return (rng.poisson(x * photons) / photons).astype(x.dtype)


def _impulse_noise(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    lot = rng.random(x.shape, np.float32)
    return np.where(lot < share / 2, 0, np.where(lot >= 1 - share / 2, 1, x)).astype(x.dtype)


def _gaussian_blur(x: np.ndarray, deviation: float, rng: np.random.Generator) -> np.ndarray:
    del rng
    return ndimage.gaussian_filter(x, (0, deviation, deviation, 0), mode="nearest")


def _brightness(x: np.ndarray, amount: float, rng: np.random.Generator) -> np.ndarray:
    """V is the largest channel; with hue and saturation kept, all channels grow in proportion to it."""
    del rng
    value = x.max(-1, keepdims=True)
    brighter = np.minimum(value + amount, 1)
    return np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter)


def _saturate(x: np.ndarray, level: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """With V and the hue kept, a channel lies V S k below V, where k (from 0 to 1) is the hue's alone."""
    del rng
    if x.shape[-1] != 3:
        raise ValueError(f"saturate needs three colours, images [N, H, W, 3]; these have {x.shape[-1]} channel(s).")
    value = x.max(-1, keepdims=True)
    below = value - x
    span = below.max(-1, keepdims=True)
    saturation = span / np.where(value > 0, value, 1)
    red = np.array([0, 1, 1], x.dtype)  # HSV gives grey the hue 0
    hue = np.where(span > 0, below / np.where(span > 0, span, 1), red)
    return value - value * np.clip(saturation * level[0] + level[1], 0, 1) * hue


def _contrast(x: np.ndarray, factor: float, rng: np.random.Generator) -> np.ndarray:
    del rng
    mean = x.mean((1, 2), keepdims=True)
    return (x - mean) * factor + mean


def _jpeg(x: np.ndarray, quality: int, rng: np.random.Generator) -> np.ndarray:
    """Packed and unpacked one by one, in whole steps of 1/255."""
    del rng
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("jpeg needs Pillow, which comes with matplotlib: pip install pillow") from error
    if x.shape[-1] not in (1, 3):
        raise ValueError(f"jpeg takes images of one channel or of three; these have {x.shape[-1]}.")
    found = np.empty(x.shape, np.uint8)
    for place, image in zip(found, np.round(x * 255).astype(np.uint8), strict=True):
        packed = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(packed, "JPEG", quality=quality)
        place[...] = np.asarray(Image.open(packed)).reshape(image.shape)
    return found.astype(x.dtype) / 255


def _pixelate(x: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Shrunk to `scale` of the size and stretched again, both with boxes."""
    del rng
    rows, columns = (_box(max(1, int(scale * size)), size) for size in x.shape[1:3])
    return _along(x, rows, columns)


def _zoom_blur(x: np.ndarray, end: float, rng: np.random.Generator) -> np.ndarray:
    """The mean of the image and of enlarged ones, in steps of 1 % up to `end`."""
    del rng
    total = x.copy()
    factors = np.arange(1, end, 0.01)
    for factor in factors:
        total += _along(x, _zoom(x.shape[1], factor), _zoom(x.shape[2], factor))
    return total / (len(factors) + 1)


def _fog(x: np.ndarray, level: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """A cloud added to each image, which is then scaled back to its own brightest value."""
    amount, decay = level
    height, width = x.shape[1:3]
    clouds = _clouds(len(x), max(height, width), decay, rng).astype(x.dtype)
    top = x.max((1, 2, 3), keepdims=True)
    return (x + amount * clouds[:, :height, :width, None]) * top / (top + amount)


def _clouds(count: int, size: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """Fractal heights in [0, 1], [count, side, side] with side >= size: diamond-square on a torus.

    Each halving of the step lessens the displacement by decay squared.
    """
    side = 1 << max(1, (size - 1).bit_length())
    heights = np.zeros((count, side, side))
    step, roughness = side, 1.0

    def fill(rows: slice, columns: slice, *neighbours: np.ndarray) -> None:
        mean = np.mean(neighbours, axis=0)
        heights[:, rows, columns] = mean + roughness * rng.uniform(-1, 1, mean.shape)

    while step > 1:
        corner, middle = slice(0, None, step), slice(step // 2, None, step)
        corners = heights[:, corner, corner]
        below = np.roll(corners, -1, 1)
        fill(middle, middle, corners, below, np.roll(corners, -1, 2), np.roll(below, -1, 2))
        centres = heights[:, middle, middle]
        fill(corner, middle, corners, np.roll(corners, -1, 2), centres, np.roll(centres, 1, 1))
        fill(middle, corner, corners, below, centres, np.roll(centres, 1, 2))
        step, roughness = step // 2, roughness / decay**2
    heights -= heights.min((1, 2), keepdims=True)
    return heights / heights.max((1, 2), keepdims=True)


def _normal(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(x.shape, np.float32).astype(x.dtype)


def _along(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """A linear map of each image along its height, and one along its width."""
    upright = np.tensordot(x, rows.astype(x.dtype), (1, 1))  # [N, W, C, H]
    return np.tensordot(upright, columns.astype(x.dtype), (1, 1)).transpose(0, 2, 3, 1)


def _box(small: int, size: int) -> np.ndarray:
    """[size, size]: each small pixel is the mean of the pixels whose centres it covers; each pixel is the small one
    it lies in."""
    centres = np.arange(size) + 0.5
    distance = centres * small / size - (np.arange(small)[:, None] + 0.5)
    covers = (distance > -0.5) & (distance <= 0.5)
    shrink = covers / covers.sum(1, keepdims=True)
    return shrink[(centres * small / size).astype(int)]


def _zoom(size: int, factor: float) -> np.ndarray:
    """[size, size]: the middle of a line, enlarged by linear interpolation and cut to its old length."""
    kept = int(np.ceil(size / factor))
    start = (size - kept) // 2
    enlarged = np.asarray(ndimage.zoom(np.eye(size)[start : start + kept], (factor, 1), order=1))
    cut = (len(enlarged) - size) // 2
    return enlarged[cut : cut + size]


def _shift(x: np.ndarray, amount: float, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return x + amount * rows.std(0) * rng.choice((-1.0, 1.0), x.shape[1])


def _noise(x: np.ndarray, deviation: float, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return x + deviation * rows.std(0) * rng.standard_normal(x.shape)


def _missing(x: np.ndarray, share: float, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(x.shape) < share, rows.mean(0), x)


def _level(kind: str, severity: int, levels: dict[str, tuple[Any, ...]]) -> Any:
    if kind not in levels:
        guess = nearest_name(kind, levels)
        raise ValueError(f"kind={kind!r} is not known; did you mean {guess!r}? All: {', '.join(levels)}.")
    if severity not in SEVERITIES:
        raise ValueError(f"severity={severity!r} must be a whole number from 1 (slight) to 5 (strong).")
    return levels[kind][int(severity) - 1]


def _check_images(images: Any) -> np.ndarray:
    array = np.asarray(images)
    if array.ndim not in (3, 4) or 0 in array.shape[1:]:
        raise ValueError(f"images have the shape {array.shape}; expected [N, H, W] or [N, H, W, C].")
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise TypeError(f"images are {array.dtype}; give uint8 from 0 to 255, or floats from 0 to 1.")
    if array.dtype.kind == "f" and array.size and not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(
            f"images run from {array.min():g} to {array.max():g}; floats must lie in [0, 1]: divide by 255?"
        )
    return array


def _check_table(x: Any, name: str) -> np.ndarray:
    table = np.asarray(x, float)
    if table.ndim != 2 or not len(table):
        raise ValueError(f"{name} has the shape {table.shape}; expected a table [N, F] with at least one row.")
    if not np.isfinite(table).all():
        raise ValueError(f"{name} has NaN or infinite values; remove those rows or fill them in first.")
    return table


_IMAGE_CHANGES: dict[str, Callable[[np.ndarray, Any, np.random.Generator], np.ndarray]] = {
    "gaussian_noise": _gaussian_noise,
    "shot_noise": _shot_noise,
    "impulse_noise": _impulse_noise,
    "speckle_noise": _speckle_noise,
    "gaussian_blur": _gaussian_blur,
    "brightness": _brightness,
    "contrast": _contrast,
    "jpeg": _jpeg,
    "pixelate": _pixelate,
    "zoom_blur": _zoom_blur,
    "fog": _fog,
    "saturate": _saturate,
}
_TABLE_CHANGES = {"shift": _shift, "noise": _noise, "missing": _missing}
