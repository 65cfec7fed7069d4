"""Data: checked arrays, splits into rows for training, validation and calibration, and batches."""

from posterity.data.dataset import Dataset, check_inputs, dataset, holdout_split

__all__ = ["Dataset", "check_inputs", "dataset", "holdout_split"]
