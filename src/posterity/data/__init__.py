"""Data: sets by name, corruptions, checked arrays, splits into rows for training and validation, and batches."""

from posterity.data.catalogue import NAMES, Loaded, load
from posterity.data.corruptions import IMAGE_CORRUPTIONS, TABLE_CORRUPTIONS, corrupt, corrupt_table
from posterity.data.dataset import Dataset, check_inputs, dataset, holdout_split
from posterity.data.files import data_root

__all__ = [
    "IMAGE_CORRUPTIONS",
    "NAMES",
    "TABLE_CORRUPTIONS",
    "Dataset",
    "Loaded",
    "check_inputs",
    "corrupt",
    "corrupt_table",
    "data_root",
    "dataset",
    "holdout_split",
    "load",
]
