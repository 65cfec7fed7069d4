"""Published data by name, and corruptions of images and tables."""

from posterity.datasets.catalogue import NAMES, Loaded, load
from posterity.datasets.corruptions import IMAGE_CORRUPTIONS, TABLE_CORRUPTIONS, corrupt, corrupt_table
from posterity.datasets.files import data_root

__all__ = [
    "IMAGE_CORRUPTIONS",
    "NAMES",
    "TABLE_CORRUPTIONS",
    "Loaded",
    "corrupt",
    "corrupt_table",
    "data_root",
    "load",
]
