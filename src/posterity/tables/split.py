"""A raw table made ready: rows split at random, and columns as numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from posterity.core.types import Task
from posterity.data.arrays import Dataset, check_size
from posterity.tables.columns import PLAIN
from posterity.tables.defaults import num_aside
from posterity.tables.encoders import TableEncoder, TargetEncoder
from posterity.tables.pipeline import TableCode
from posterity.tables.reading import Reading

MAX_TEST_ROWS = 10_000
MIN_ROWS = 10
MANY_CLASSES = 10  # texts; from here on each must have two rows on average


class Prepared(NamedTuple):
    """A table as numbers, split."""

    code: TableCode
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    aside: Dataset | None  # for out-of-distribution p-values and conformal intervals, neither trained nor tested on
    frame: pd.DataFrame  # raw test inputs
    remarks: tuple[str, ...]
    test_share: float
    seed: int


def prepare(
    frame: pd.DataFrame,
    target: str,
    *,
    title: str = "table",
    task: Task | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    reading: Reading | None = None,
) -> Prepared:
    """Split a table at random and turn its columns into numbers, learning how from the training rows alone.

    Args:
        frame: Raw columns, the target among them.
        target: The column to predict.
        title: What the table is called in reports.
        task: "regression" or "classification"; by default as the target looks.
        test_share: Of the rows, to test on.
        seed: Of the split, and of every method that is fitted to it.
        reading: How the columns were read, for new rows to be read alike.
    """
    num_known = len(frame) - TargetEncoder.is_missing(frame[target]).sum()
    if num_known < MIN_ROWS:
        raise ValueError(f"Rows with a target: {num_known}; give at least {MIN_ROWS}.")
    target_encoder = TargetEncoder(task).fit(frame[target])
    frame = frame.loc[~target_encoder.is_missing(frame[target])].reset_index(drop=True)
    _check_classes(target_encoder.labels, target, len(frame))
    if target_encoder.task == "regression":
        check_size(target_encoder.transform(frame[target]), f"Column {target!r}")
    y, inputs = target_encoder.transform(frame[target]), frame.drop(columns=target)
    assert target_encoder.task is not None
    train, test, aside = _split(y, target_encoder.task, test_share, seed)
    remarks = [*target_encoder.remarks, _split_remark(len(train), len(test), len(aside))]
    if target_encoder.task == "regression":
        target_encoder = TargetEncoder(target_encoder.task).fit(y[train])  # its scale too is learned from training rows
    encoder = TableEncoder().fit(inputs.iloc[train], whole=inputs)
    x = encoder.transform(inputs)
    return Prepared(
        TableCode(encoder, target_encoder, target, title, reading=reading or Reading()),
        (x[train], y[train]),
        (x[test], y[test]),
        Dataset(x[aside], y[aside], np.ones(len(aside))) if len(aside) else None,
        inputs.iloc[test].reset_index(drop=True),
        (*remarks, *encoder.remarks),
        test_share,
        seed,
    )


def _check_classes(labels: list[Any], target: str, num_rows: int) -> None:
    """Refuse texts of which nearly every row has its own: prices with a sign, names."""
    if len(labels) >= MANY_CLASSES and 2 * len(labels) > num_rows and isinstance(labels[0], str):
        raise ValueError(
            f"Column {target!r} holds {len(labels)} different texts in {num_rows} rows, for instance {labels[0]!r}: "
            f"too many to be classes. If they stand for numbers, {PLAIN}; if they are classes, merge the rare ones."
        )


def _split_remark(num_train: int, num_test: int, num_held_out: int) -> str:
    text = f"{num_train:,} rows are trained on"
    if num_test:
        text += f", {num_test:,} are tested on"
    if num_held_out:
        text += f", {num_held_out:,} are held out to calibrate out-of-distribution p-values"
    return f"{text}."


def _split(y: np.ndarray, task: Task, share: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows to train on, to test on and to set aside; of each class its share where it has rows enough."""
    if not 0 <= share < 1:
        raise ValueError(f"The share of test rows is {share}; it must be at least 0 and below 1, for instance 0.2.")
    order = np.random.default_rng(seed).permutation(len(y))
    if task == "classification":
        # Rows of each class in random order, dealt out by turns: every stretch of `order` then has every class.
        position = np.empty(len(y))
        for label in np.unique(y):
            members = order[y[order] == label]
            position[members] = (np.arange(len(members)) + 0.5) / len(members)
        # The last rows of `order` are tested on: a class of one row stays in training.
        order = np.argsort(position, kind="stable")
    num_test = min(round(share * len(y)), MAX_TEST_ROWS)
    if share and num_test < 2:
        raise ValueError(
            f"A share of {share} leaves {num_test} of {len(y)} rows to test on; raise it, for instance to 0.2."
        )
    cuts = [len(y) - num_test - num_aside(len(y) - num_test, aloud=True), len(y) - num_test]
    train, aside, test = np.split(order, cuts)
    return np.sort(train), np.sort(test), np.sort(aside)
