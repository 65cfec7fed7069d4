"""Reports: a comparison of methods, or anything else made of sections, as one HTML file."""

from posterity.report.comparison import write_report
from posterity.report.page import Cell, Page

__all__ = ["Cell", "Page", "write_report"]
