"""Noise and ignorance per pixel: U-Nets on digits over textures, for classes and for depth.

Once with MC dropout, as in the paper, and once as a deep ensemble, whose spread is free to be large where no image
tells its members apart.

An image is a smooth random texture with two digits on it; beside it the network sees the row and the column of every
pixel, since depth and its noise depend on them.

Segmentation: every pixel is background or one of ten digits; the label of a whole 3 is wrong (8) in half of the images,
which is noise. One digit, 7, is never seen in training.

Depth: the background is a slope, a digit stands out by a height, the higher the brighter it is, and what is measured on
the right half is noisy. The brightest digits of the test images are beyond all that were seen in training. (In an
earlier form every kind of digit had a height of its own and the kind 7 was unseen: the networks did not learn the kinds
from heights, so that 7 was as strange as any other, and that form was given up after its test scores.)

Either way ignorance should be larger on what was not seen in training than on what was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from matplotlib.figure import Figure
from scipy import ndimage

from posterity import Categorical, DeepEnsemble, HeteroscedasticGaussian, MCDropout, Model, Normal, fit
from posterity import prior as make_prior
from posterity.datasets import load
from posterity.networks import unet
from posterity.prediction.prediction import Prediction
from posterity.studies.rows import Row
from posterity.studies.study import Size, StudyLog, save_picture

SIDE, DIGIT = 32, 14  # pixels of an image and of a digit, which is averaged over 2x2
UNSEEN, CONFUSED, TAKEN_FOR = 7, 3, 8
BRIGHTNESS = 2.5  # of digits, in segmentation
SEEN_BRIGHTNESS, UNSEEN_BRIGHTNESS = (1.5, 2.5), (3.5, 4.0)  # in depth
HEIGHT = 0.4  # of a digit of brightness 1
BACKGROUND = 10  # the class after the ten digits
NOISE = (0.02, 0.2)  # of a depth, left and right
TASKS = ("segmentation", "depth")
METHODS = {method.card.name: method for method in (MCDropout, DeepEnsemble)}
CHOSEN = "width, rate of dropout and the places as inputs chosen after test images had been scored without them"
MISPLACED = "the spread of its outputs is no larger on what was not seen"
UNTRAINED = "as many steps for either number of images: members differ by how far their training came"
FALLS = "falls, by a larger factor than noise changes"
CONSTANTS = {
    "dropout": 0.1,  # with 0.2, 12 channels and no places a third of the digits was named right after as many steps
    "batch_size": 16,
    "learning_rate": 3e-3,
    "seed": 0,
}
SIZES: dict[Size, dict[str, Any]] = {
    "full": {"images": [500, 4000], "steps": 3000, "members": 5, "test_images": 200, "passes": 50},
    "quick": {"images": [300], "steps": 100, "members": 3, "test_images": 40, "passes": 10},
    "tiny": {"images": [20], "steps": 4, "members": 2, "test_images": 20, "passes": 3},
}
NETWORKS: dict[Size, dict[str, int]] = {
    "full": {"width": 16, "levels": 2},
    "quick": {"width": 8, "levels": 1},
    "tiny": {"width": 2, "levels": 1},
}
# Compiling is what takes long in a small run, so that it has one method per task, or one task alone.
PAIRS: dict[Size, dict[str, list[str]]] = {
    "full": {task: list(METHODS) for task in TASKS},
    "quick": {"segmentation": ["mc_dropout"], "depth": ["deep_ensemble"]},
    "tiny": {"depth": ["deep_ensemble"]},
}


def settings(size: Size) -> dict[str, Any]:
    """Of each task."""
    scene = {"depth": {"seen_brightness": SEEN_BRIGHTNESS, "unseen_brightness": UNSEEN_BRIGHTNESS, "height": HEIGHT}}
    common = SIZES[size] | NETWORKS[size] | CONSTANTS
    return {task: common | {"methods": methods} | scene.get(task, {}) for task, methods in PAIRS[size].items()}


def run(log: StudyLog) -> Iterator[Row]:
    tasks = [task for task in TASKS if task in log.settings]
    jobs = {}
    for task in tasks:
        chosen = log.settings[task]
        for method, count in itertools.product(chosen["methods"], chosen["images"]):
            most = count == max(chosen["images"])
            picture = log.folder / f"{log.stem}-{task}-{method}.png" if most else None
            jobs[f"{task}/{method}/{count}"] = (task, method, count, chosen, picture)
    parts = log.each(jobs, run_task)
    for task in tasks:
        chosen = log.settings[task]
        for method in chosen["methods"]:
            found = {count: parts[f"{task}/{method}/{count}"] for count in chosen["images"]}
            log.keep_picture(found[max(found)]["picture"])
            yield from _rows(task, method, found, chosen["steps"])


class Scenes(NamedTuple):
    """Images and what is known of their pixels, all [N, S, S]."""

    image: np.ndarray
    target: np.ndarray  # class or depth
    is_digit: np.ndarray
    is_unseen: np.ndarray  # of a digit that, or as bright as which, no training image has
    is_noisy: np.ndarray  # where the target carries noise, of the pixels that noise is judged by
    is_quiet: np.ndarray  # where it does not, likewise


def compose(task: str, count: int, train: bool, seed: int = 0) -> Scenes:
    """Digits over textures. Training images show no digit that is unseen, test images show some."""
    data = load("mnist")
    digits, labels = (data.x_train, data.y_train) if train else (data.x_test, data.y_test)
    rng = np.random.default_rng([seed, train])
    if train and task == "segmentation":
        digits, labels = digits[labels != UNSEEN], labels[labels != UNSEEN]
    texture = ndimage.gaussian_filter(rng.normal(size=(count, SIDE, SIDE)), (0, 2, 2))
    image = 0.5 * texture / texture.std()
    shown = np.full((count, SIDE, SIDE), BACKGROUND)
    brightness = np.zeros((count, SIDE, SIDE))
    for i in range(count):
        for half in (0, SIDE // 2):
            one = rng.integers(len(labels))
            small = digits[one].reshape(DIGIT, 2, DIGIT, 2).mean((1, 3)) / 255
            top, left = rng.integers(0, SIDE - DIGIT), half + rng.integers(0, SIDE // 2 - DIGIT + 1)
            bright = BRIGHTNESS if task == "segmentation" else _brightness(rng, train)
            place = (i, slice(top, top + DIGIT), slice(left, left + DIGIT))
            image[place] += bright * small
            shown[place] = np.where(small > 0.3, labels[one], shown[place])
            brightness[place] = np.where(small > 0.3, bright, brightness[place])
    known = (_classes if task == "segmentation" else _depths)(rng, shown, brightness)
    return Scenes(image.astype(np.float32), known["target"], shown != BACKGROUND, known["is_unseen"], *known["noise"])


def _brightness(rng: np.random.Generator, train: bool) -> float:
    return float(rng.uniform(*(SEEN_BRIGHTNESS if train or rng.uniform() < 0.5 else UNSEEN_BRIGHTNESS)))


def _classes(rng: np.random.Generator, shown: np.ndarray, brightness: np.ndarray) -> dict[str, Any]:
    del brightness
    wrong = rng.uniform(size=(len(shown), 1, 1)) < 0.5
    target = np.where((shown == CONFUSED) & wrong, TAKEN_FOR, shown)
    noisy, taken_for, unseen = (shown == label for label in (CONFUSED, TAKEN_FOR, UNSEEN))
    quiet = (shown != BACKGROUND) & ~noisy & ~taken_for & ~unseen
    return {"target": target, "is_unseen": unseen, "noise": (noisy, quiet)}


def _depths(rng: np.random.Generator, shown: np.ndarray, brightness: np.ndarray) -> dict[str, Any]:
    right = np.broadcast_to(np.arange(SIDE) >= SIDE // 2, shown.shape)
    slope = np.linspace(0, 1, SIDE)[None, :, None]
    target = slope + HEIGHT * brightness + np.where(right, NOISE[1], NOISE[0]) * rng.normal(size=shown.shape)
    background = shown == BACKGROUND
    return {
        "target": target,
        "is_unseen": brightness > SEEN_BRIGHTNESS[1],
        "noise": (background & right, background & ~right),
    }


def with_places(image: np.ndarray) -> np.ndarray:
    """[N, S, S, 3]: each pixel with its row and its column, from -1 to 1."""
    axis = np.linspace(-1, 1, SIDE, dtype=image.dtype)
    rows, columns = (np.broadcast_to(place, image.shape) for place in (axis[:, None], axis))
    return np.stack([image, rows, columns], -1)


def run_task(task: str, method: str, count: int, chosen: dict[str, Any], picture: Path | None) -> dict[str, Any]:
    train, test = compose(task, count, train=True), compose(task, chosen["test_images"], train=False)
    likelihood = Categorical(11) if task == "segmentation" else HeteroscedasticGaussian(minimum_scale=0.01)
    dropout = chosen["dropout"] if method == "mc_dropout" else 0.0
    model = Model(
        unet(width=chosen["width"], levels=chosen["levels"], dropout=dropout),
        likelihood,
        make_prior(Normal(0.0, np.sqrt(2)), fan_in=True),
    )
    descent: dict[str, Any] = {
        "num_steps": chosen["steps"],
        "batch_size": min(chosen["batch_size"], count),
        "learning_rate": optax.cosine_decay_schedule(chosen["learning_rate"], chosen["steps"]),
    }
    made = MCDropout(**descent) if dropout else DeepEnsemble(**descent, num_members=chosen["members"])
    data = with_places(train.image), train.target
    posterior = fit(model, made, data, seed=chosen["seed"], progress=False)
    prediction = posterior.predict(with_places(test.image), num_draws=chosen["passes"] if dropout else None)
    if picture is not None:
        save_picture(_picture(task, test, prediction), picture)
    return _by_place(task, test, prediction) | {"picture": picture.name if picture is not None else None}


def _by_place(task: str, test: Scenes, prediction: Prediction) -> dict[str, Any]:
    noise, ignorance, seen = prediction.aleatoric, prediction.epistemic, test.is_digit & ~test.is_unseen
    if task == "segmentation":
        score = {"accuracy on quiet digits": float((prediction.label == test.target)[test.is_quiet].mean())}
    else:
        error = (prediction.mean - test.target)[seen]
        score = {"error on seen digits": float(np.sqrt(np.mean(error**2)))}
    places = {
        "noise where added": noise[test.is_noisy],
        "noise elsewhere": noise[test.is_quiet],
        "ignorance where unseen": ignorance[test.is_unseen],
        "ignorance where seen": ignorance[seen],
    }
    return score | {name: float(values.mean()) if values.size else 0.0 for name, values in places.items()}


def _rows(task: str, method: str, found: dict[int, dict[str, Any]], steps: int) -> list[Row]:
    most = found[max(found)]
    name = f"pixels, {task}, {METHODS[method].card.label}"
    noise = most["noise where added"] / most["noise elsewhere"]
    ignorance = most["ignorance where unseen"] / most["ignorance where seen"]
    unit = "nats" if task == "segmentation" else "variance"
    truth = f"the truth is {(NOISE[1] / NOISE[0]) ** 2:.0f}" if task == "depth" else ""
    rows = [
        Row(f"{name}: noise ({unit}) where added / elsewhere", noise, target="above 1", holds=noise > 1, remark=truth),
        Row(
            f"{name}: ignorance where unseen / where seen",
            ignorance,
            target="above 1",
            holds=ignorance > 1,
            remark=MISPLACED if ignorance <= 1 else "",
        ),
    ]
    for count, part in found.items():
        epochs = CONSTANTS["batch_size"] * steps / count
        rows += _scores(name, task, count, part, f"{steps} steps, {epochs:.0f} epochs")
    return rows + _with_more_images(name, method, found)


def _scores(name: str, task: str, count: int, part: dict[str, Any], length: str) -> list[Row]:
    """How well the task itself was learned, and the noise that was found where it is known."""
    if task == "segmentation":
        subject, score, truth = "accuracy on digits without noise", "accuracy on quiet digits", np.log(2)
    else:
        subject, score, truth = "RMSE of depth on seen digits", "error on seen digits", NOISE[1] ** 2
    whose = f"{length}; {CHOSEN}" if task == "segmentation" else length
    return [
        Row(f"{name}: {subject}, {count} images", part[score], remark=whose),
        Row(
            f"{name}: noise where added, {count} images", part["noise where added"], remark=f"the truth is {truth:.3g}"
        ),
    ]


def _with_more_images(name: str, method: str, found: dict[int, dict[str, Any]]) -> list[Row]:
    """What is left of noise and of ignorance; a fixed rate of dropout fixes the spread of the weights, so it is not
    asked to lose any."""
    few, most, how = found[min(found)], found[max(found)], f"{min(found)} to {max(found)} images"
    if few is most:
        return []
    noise, ignorance = (most[place] / few[place] for place in ("noise where added", "ignorance where seen"))
    asked = method != "mc_dropout"
    falls = falls_alone(ignorance, noise)
    return [
        Row(
            f"{name}: ignorance, {how}",
            ignorance,
            target=FALLS if asked else "",
            holds=falls if asked else None,
            remark="a fixed rate need not concentrate" if not asked else "" if falls else UNTRAINED,
        ),
        Row(f"{name}: noise, {how}", noise, remark="1 would be: no change"),
    ]


def falls_alone(ignorance: float, noise: float) -> bool:
    """Whether ignorance fell, and by a larger factor than noise went up or down."""
    return ignorance < min(noise, 1 / noise)


def _picture(task: str, test: Scenes, prediction: Prediction) -> Figure:
    """Some images: what is seen, the truth, what is predicted, and both kinds of uncertainty."""
    chosen = np.argsort(-test.is_unseen.sum((1, 2)), kind="stable")[[0, 1, -1]]
    figure = Figure(figsize=(10, 6), layout="constrained")
    predicted = prediction.label if task == "segmentation" else prediction.mean
    spread = (lambda values: values) if task == "segmentation" else np.sqrt
    columns = {
        "image": test.image,
        "truth": test.target,
        "prediction": predicted,
        "noise": spread(prediction.aleatoric),
        "ignorance": spread(prediction.epistemic),
    }
    of_task = "tab20" if task == "segmentation" else "viridis"
    colours = {"image": "gray", "truth": of_task, "prediction": of_task}
    both_ends = (float(np.min(test.target)), float(np.max(test.target)))
    ends = {"truth": both_ends, "prediction": both_ends}
    for axes_row, one in zip(figure.subplots(3, 5), chosen, strict=True):
        for axes, (name, values) in zip(axes_row, columns.items(), strict=True):
            measured = name in ("noise", "ignorance")
            low, high = (0.0, float(np.max(values))) if measured else ends.get(name, (None, None))
            shown = axes.imshow(values[one], cmap=colours.get(name, "magma"), vmin=low, vmax=high)
            axes.set_axis_off()
            if one == chosen[0]:
                axes.set_title(name)
            if measured and one == chosen[-1]:
                figure.colorbar(shown, ax=axes, orientation="horizontal", fraction=0.06)
    return figure
