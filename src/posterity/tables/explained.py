"""Why is it unsure? What each column of a table adds to the mean, to the noise and to the ignorance of a prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from posterity.posterior.posterior import Posterior
from posterity.prediction.attribution import BASE, Attribution, shapley
from posterity.tables.encoders import TableEncoder, TargetEncoder
from posterity.tables.model_card import model_card
from posterity.tables.pipeline import TableCode

BACKGROUND_ROWS = 32


class Explained:
    """An estimator that explains its predictions and describes itself."""

    posterior_: Posterior
    table_: TableEncoder
    target_: TargetEncoder

    def _encoded_inputs(self, X: Any) -> np.ndarray:
        raise NotImplementedError

    def explain(self, X: Any, *, background: Any = None, num_background: int = BACKGROUND_ROWS) -> pd.DataFrame:
        """What each column of X adds to the mean, to the noise and to the ignorance of each row, with its error.

        Shapley values over background rows: those held out, or else trained on, or rows like X that are given. The
        values of a row and part add up to its prediction, the first of them being the mean over background rows. Of
        classes, the probability of the most probable one takes the place of the mean. See `plots.attributions`.
        """
        return explain(
            self.posterior_,
            self.table_,
            self._encoded_inputs(X),
            background=None if background is None else self._encoded_inputs(background),
            num_background=num_background,
            index=X.index if isinstance(X, pd.DataFrame) else None,
            labels=tuple(map(str, self.target_.labels)),
        )

    def model_card(self) -> str:
        """One page on the model in Markdown: data, method, how far to trust it, limits."""
        code = TableCode.of(self.posterior_)
        assert code is not None  # a fit to a table has one
        return model_card(self.posterior_, code)


def explain(
    posterior: Posterior,
    table: TableEncoder,
    x: np.ndarray,
    *,
    background: np.ndarray | None = None,
    num_background: int = BACKGROUND_ROWS,
    index: Any = None,
    labels: tuple[str, ...] = (),
    seed: int = 0,
) -> pd.DataFrame:
    """What columns add to what is predicted at encoded rows x; columns row, column, part, value, error.

    Args:
        posterior: Fitted to the table.
        table: The encoders of its columns.
        x: Encoded rows to explain.
        background: Encoded rows to compare with. None: those held out, or else those trained on.
        num_background: How many of them.
        index: What the rows are called. None: their places.
        labels: Of classes.
        seed: Of the background rows and of the orders of columns.
    """
    if background is None:
        background = np.asarray(posterior.inputs if posterior.held_out is None else posterior.held_out.x)
    chosen = np.random.default_rng(seed).permutation(len(background))[:num_background]
    groups = np.split(np.arange(x.shape[1]), np.cumsum([len(column.features) for column in table.columns])[:-1])
    found = shapley(lambda rows: _parts(posterior, rows), x, background[np.sort(chosen)], groups, seed=seed)
    names = [column.name for column in table.columns]
    rows = np.arange(len(x)) if index is None else index
    classes = posterior.model.likelihood.kind == "classes"
    frames = []
    for number, row in enumerate(rows):
        parts = _named_parts(found, number, labels) if classes else {"mean": 0, "aleatoric": 1, "epistemic": 2}
        frames += [_of_part(found, number, row, names, name, part) for name, part in parts.items()]
    return pd.concat(frames, ignore_index=True)


def _parts(posterior: Posterior, rows: np.ndarray) -> np.ndarray:
    """[R, P]: the mean, or probabilities of classes; then noise and ignorance."""
    prediction = posterior.predict(rows)
    mean = np.asarray(prediction.mean, float).reshape(len(rows), -1)
    return np.column_stack([mean, prediction.aleatoric, prediction.epistemic])


def _named_parts(found: Attribution, number: int, labels: tuple[str, ...]) -> dict[str, int]:
    """Of classes, the probability of the one that is most probable at the row."""
    probs = found.predicted[number, :-2]
    best, num_classes = int(probs.argmax()), len(probs)
    label = labels[best] if labels else str(best)
    return {f"probability of {label}": best, "aleatoric": num_classes, "epistemic": num_classes + 1}


def _of_part(found: Attribution, number: int, row: Any, names: list[str], part: str, place: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "row": [row] * (len(names) + 1),
            "column": [BASE, *names],
            "part": part,
            "value": [found.base[place], *found.values[number, :, place]],
            "error": [0.0, *found.standard_error[number, :, place]],
        }
    )


def importance(explained: pd.DataFrame) -> pd.DataFrame:
    """The mean size of what columns add, by part: columns as the index, the largest of ignorance first."""
    shown = explained[explained["column"] != BASE].assign(
        part=lambda frame: frame["part"].where(~frame["part"].str.startswith("probability"), "mean"),
        value=lambda frame: frame["value"].abs(),
    )
    table = shown.pivot_table("value", "column", "part", aggfunc="mean")
    table = table.reindex(columns=["mean", "aleatoric", "epistemic"]).rename_axis(columns=None)
    return table.sort_values(by=["epistemic"], ascending=False)
