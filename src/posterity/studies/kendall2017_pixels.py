"""Noise and ignorance per pixel: U-Nets on digits over textures, for classes and for depth.

Once with MC dropout, as in the paper, and once as a deep ensemble, whose spread is free to be large where no image
tells its members apart.

An image is a smooth random texture with two digits on it; beside it the network sees the row and the column of every
pixel, since depth and its noise depend on them. Segmentation: every pixel is background or one of ten digits;
the label of a whole 3 is wrong (8) in half of the images, which is noise. Depth: the background is a slope, digit d
stands out by a height of its own, and what is measured on the right half is noisy. One digit, 7, is never seen in
training: the ignorance there should be larger than on digits that were seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optax
from matplotlib.figure import Figure
from scipy import ndimage

from posterity import Categorical, DeepEnsemble, HeteroscedasticGaussian, MCDropout, Model, Normal, fit
from posterity import prior as make_prior
from posterity.comparison import LABELS
from posterity.data import load
from posterity.networks import unet
from posterity.prediction import Prediction
from posterity.studies.rows import Row
from posterity.studies.study import Record, Size, save_picture

SIDE, DIGIT = 32, 14  # pixels of an image and of a digit, which is averaged over 2x2
UNSEEN, CONFUSED, TAKEN_FOR = 7, 3, 8
BACKGROUND = 10  # the class after the ten digits
NOISE = (0.02, 0.2)  # of a depth, left and right
PAIRS = list(itertools.product(["segmentation", "depth"], ["mc_dropout", "deep_ensemble"]))
DROPOUT = 0.1  # with 0.2, 12 channels and no places a third of the digits was named right after as many steps
CHOSEN = "width, rate of dropout and the places as inputs chosen after test images had been scored without them"
MISPLACED = {
    "segmentation": "the members agree on what they have not seen",
    "depth": "heights are taken for noise on every digit: its kind was not learned, so a new one is no stranger",
}
SIZES: dict[Size, dict[str, Any]] = {
    "full": {
        "images": [500, 4000],
        "steps": 3000,
        "members": 5,
        "test_images": 200,
        "passes": 50,
        "width": 16,
        "levels": 2,
        "pairs": PAIRS,
    },
    "quick": {
        "images": [300],
        "steps": 100,
        "members": 3,
        "test_images": 40,
        "passes": 10,
        "width": 8,
        "levels": 1,
        "pairs": [PAIRS[0], PAIRS[-1]],
    },
    "tiny": {
        "images": [20],
        "steps": 4,
        "members": 2,
        "test_images": 20,
        "passes": 3,
        "width": 2,
        "levels": 1,
        "pairs": PAIRS[-1:],
    },
}


def run(record: Record) -> Iterator[Row]:
    chosen = record.settings["pixels"]
    most = max(chosen["images"])
    jobs = {}
    for (task, method), count in itertools.product(chosen["pairs"], chosen["images"]):
        picture = record.folder / f"{record.stem}-{task}-{method}.png" if count == most else None
        jobs[f"pixels/{task}/{method}/{count}"] = (task, method, count, chosen, picture)
    parts = record.each(jobs, run_task)
    for task, method in chosen["pairs"]:
        found = {count: parts[f"pixels/{task}/{method}/{count}"] for count in chosen["images"]}
        record.keep_picture(found[most]["picture"])
        yield from _rows(task, method, found, chosen["steps"])


def compose(count: int, train: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """Images [N, S, S], the class and the depth of every pixel, which digit it shows, and the true noise of depth."""
    data = load("mnist")
    digits, labels = (data.x_train, data.y_train) if train else (data.x_test, data.y_test)
    rng = np.random.default_rng([seed, train])
    if train:
        digits, labels = digits[labels != UNSEEN], labels[labels != UNSEEN]
    texture = ndimage.gaussian_filter(rng.normal(size=(count, SIDE, SIDE)), (0, 2, 2))
    image = 0.5 * texture / texture.std()
    shown = np.full((count, SIDE, SIDE), BACKGROUND)
    for i in range(count):
        for half in (0, SIDE // 2):
            one = rng.integers(len(labels))
            small = digits[one].reshape(DIGIT, 2, DIGIT, 2).mean((1, 3)) / 255
            top, left = rng.integers(0, SIDE - DIGIT), half + rng.integers(0, SIDE // 2 - DIGIT + 1)
            place = (i, slice(top, top + DIGIT), slice(left, left + DIGIT))
            image[place] += 2.5 * small
            shown[place] = np.where(small > 0.3, labels[one], shown[place])
    wrong = rng.uniform(size=(count, 1, 1)) < 0.5
    label = np.where((shown == CONFUSED) & wrong, TAKEN_FOR, shown)
    slope = np.linspace(0, 1, SIDE)[None, :, None]
    height = np.where(shown == BACKGROUND, 0.0, 0.2 + shown / 10)
    noise = np.where(np.arange(SIDE) < SIDE // 2, *NOISE)
    depth = slope + height + noise * rng.normal(size=image.shape)
    return {"image": image.astype(np.float32), "segmentation": label, "depth": depth, "shown": shown}


def with_places(image: np.ndarray) -> np.ndarray:
    """[N, S, S, 3]: each pixel with its row and its column, from -1 to 1."""
    axis = np.linspace(-1, 1, SIDE, dtype=image.dtype)
    rows, columns = (np.broadcast_to(place, image.shape) for place in (axis[:, None], axis))
    return np.stack([image, rows, columns], -1)


def run_task(task: str, method: str, count: int, chosen: dict[str, Any], picture: Path | None) -> dict[str, Any]:
    train, test = compose(count, train=True), compose(chosen["test_images"], train=False)
    likelihood = Categorical(11) if task == "segmentation" else HeteroscedasticGaussian(0.01)
    dropout = DROPOUT if method == "mc_dropout" else 0.0
    model = Model(
        unet(width=chosen["width"], levels=chosen["levels"], dropout=dropout),
        likelihood,
        make_prior(Normal(0.0, np.sqrt(2)), fan_in=True),
    )
    descent: dict[str, Any] = {
        "num_steps": chosen["steps"],
        "batch_size": min(16, count),
        "learning_rate": optax.cosine_decay_schedule(3e-3, chosen["steps"]),
    }
    made = MCDropout(**descent) if dropout else DeepEnsemble(**descent, num_members=chosen["members"])
    posterior = fit(model, made, (with_places(train["image"]), train[task]), seed=0, progress=False)
    prediction = posterior.predict(with_places(test["image"]), num_draws=chosen["passes"] if dropout else None)
    if picture is not None:
        save_picture(_picture(task, test, prediction), picture)
    noise, ignorance, shown = prediction.aleatoric, prediction.epistemic, test["shown"]
    seen = (shown != BACKGROUND) & (shown != UNSEEN)
    if task == "segmentation":
        added, quiet = shown == CONFUSED, seen & (shown != CONFUSED) & (shown != TAKEN_FOR)
        right = (prediction.label == test[task])[quiet]
        score = {"accuracy on quiet digits": float(right.mean())}
    else:
        right_half = np.broadcast_to(np.arange(SIDE) >= SIDE // 2, shown.shape)
        added, quiet = (shown == BACKGROUND) & right_half, (shown == BACKGROUND) & ~right_half
        score = {"noise found, right": float(np.sqrt(noise[added].mean()))}
    return {
        **score,
        "noise where added": float(noise[added].mean()),
        "noise elsewhere": float(noise[quiet].mean()),
        "ignorance where unseen": float(ignorance[shown == UNSEEN].mean()) if (shown == UNSEEN).any() else 0.0,
        "ignorance where seen": float(ignorance[seen].mean()),
        "picture": picture.name if picture is not None else None,
    }


def _rows(task: str, method: str, found: dict[int, dict[str, Any]], steps: int) -> list[Row]:
    most = found[max(found)]
    name = f"pixels, {task}, {LABELS[method]}"
    noise = most["noise where added"] / most["noise elsewhere"]
    ignorance = most["ignorance where unseen"] / most["ignorance where seen"]
    unit = "nats" if task == "segmentation" else "variance"
    truth = f"the truth is {(NOISE[1] / NOISE[0]) ** 2:.0f}" if task == "depth" else ""
    rows = [
        Row(f"{name}: noise ({unit}) where added / elsewhere", noise, target="above 1", holds=noise > 1, remark=truth),
        Row(
            f"{name}: ignorance on the unseen digit / on seen ones",
            ignorance,
            target="above 1",
            holds=ignorance > 1,
            remark=MISPLACED[task] if ignorance <= 1 else "",
        ),
    ]
    if task == "segmentation":
        for count, part in found.items():
            remark = f"after {steps} steps of 16 images, {16 * steps / count:.0f} epochs; {CHOSEN}"
            score = part["accuracy on quiet digits"]
            rows.append(Row(f"{name}: accuracy on digits without noise, {count} images", score, remark=remark))
    return rows + _with_more_images(name, method, found)


def _with_more_images(name: str, method: str, found: dict[int, dict[str, Any]]) -> list[Row]:
    """What is left of noise and of ignorance; a fixed rate of dropout fixes the spread of the weights, so it is not
    asked to lose any."""
    few, most, how = found[min(found)], found[max(found)], f"{min(found)} to {max(found)} images"
    if few is most:
        return []
    noise, ignorance = (most[place] / few[place] for place in ("noise where added", "ignorance where seen"))
    asked = method != "mc_dropout"
    return [
        Row(
            f"{name}: ignorance, {how}",
            ignorance,
            target="falls by more than noise does" if asked else "",
            holds=ignorance < min(noise, 1) if asked else None,
            remark="" if asked else "a fixed rate need not concentrate",
        ),
        Row(f"{name}: noise, {how}", noise, remark="1 would be: no change"),
    ]


def _picture(task: str, test: dict[str, np.ndarray], prediction: Prediction) -> Figure:
    """Some images: what is seen, the truth, what is predicted, and both kinds of uncertainty."""
    chosen = np.argsort(-(test["shown"] == UNSEEN).sum((1, 2)), kind="stable")[[0, 1, -1]]
    figure = Figure(figsize=(10, 6), layout="constrained")
    predicted = prediction.label if task == "segmentation" else prediction.mean
    spread = (lambda values: values) if task == "segmentation" else np.sqrt
    columns = {
        "image": test["image"],
        "truth": test[task],
        "prediction": predicted,
        "noise": spread(prediction.aleatoric),
        "ignorance": spread(prediction.epistemic),
    }
    of_task = "tab20" if task == "segmentation" else "viridis"
    colours = {"image": "gray", "truth": of_task, "prediction": of_task}
    ends = {name: (float(np.min(test[task])), float(np.max(test[task]))) for name in ("truth", "prediction")}
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
