"""Checked rows, splits into rows for training and validation, and batches without state."""

from posterity.data.arrays import Dataset, check_inputs, dataset, holdout_split

__all__ = ["Dataset", "check_inputs", "dataset", "holdout_split"]
