"""What estimators are given, refused in scikit-learn's words or in ours, before anything is learned from it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import check_array
from sklearn.utils.validation import column_or_1d

from posterity.data.arrays import check_size, check_unmasked
from posterity.tables.columns import as_frame


def name_of(y: Any) -> str:
    """What a column of targets is called, for tables that hold it beside the inputs."""
    if isinstance(y, pd.DataFrame) and y.shape[1] == 1:
        return str(y.columns[0])
    return str(y.name) if isinstance(y, pd.Series) and y.name is not None else "y"


def checked_column(y: Any) -> np.ndarray:
    check_unmasked(y, "y")
    if np.ndim(y) == 2 and np.shape(y)[1] > 1:
        raise ValueError(
            f"y should be a 1d array, got an array of shape {np.shape(y)} instead. For several targets at once use "
            "BayesianMultiRegressor; for classes, a column of labels."
        )
    return column_or_1d(y, warn=True)


def checked_table(X: Any) -> pd.DataFrame:
    """A frame; of an array, what scikit-learn refuses is refused in its words."""
    check_unmasked(X, "X")
    if isinstance(X, pd.DataFrame) and X.size:
        frame = as_frame(X).reset_index(drop=True)
    else:
        values = np.asarray(check_array(X, dtype=None, ensure_all_finite="allow-nan"))  # type: ignore[arg-type]
        if values.dtype == object:
            with suppress(ValueError):  # texts are categories; what is neither number nor text stays an error
                values = values.astype(float)
        frame = as_frame(values)
    for name in frame.columns:
        if pd.api.types.is_float_dtype(frame[name]):
            check_size(frame[name].to_numpy(float, na_value=np.nan), f"X[{name!r}]")
    return frame
